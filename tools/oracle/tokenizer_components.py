#!/usr/bin/env python3
"""Write tests/data/tokenizer_components.jsonl: small tokenizers that use every component, with the ids and the decoded
text that Hugging Face's `tokenizers` gives (made with 0.23.3).

The first line is a whole tokenizer.json; each other line is {"name", "patch": a merge patch (RFC 7396) of the first,
"cases": [{"text", "ids", "decoded", "plain" (without special tokens)}], "junk": ids in no order, with their text}.

  tools/oracle/tokenizer_components.py > tests/data/tokenizer_components.jsonl
"""
import copy
import json
import random

from tokenizers import Tokenizer


def byte_characters():
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    table = {b: chr(b) for b in printable}
    for b in range(256):
        if b not in table:
            table[b] = chr(256 + len(table) - len(printable))
    return table


TABLE = byte_characters()
SPELL = lambda text: "".join(TABLE[b] for b in text.encode())
WORDS = ["he", "ll", "llo", "hello", " w", "or", " wor", "ld", " world", "  ", "\n\n", "12", "99", "é", "ab", "aba", "'s", "--", "的"]


def base(merges_as_strings=False):
    """256 bytes, then the words, each with the merges that build it from the left."""
    vocab = {TABLE[b]: i for i, b in enumerate(sorted(TABLE))}
    merges = []
    for word in WORDS:
        spelled = SPELL(word)
        while spelled not in vocab:
            left = max((k for k in range(1, len(spelled)) if spelled[:k] in vocab))
            right = spelled[left]
            vocab[spelled[:left] + right] = len(vocab)
            merges.append([spelled[:left], right])
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": level,
            "post_processor": None, "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": vocab, "merges": [" ".join(m) for m in merges] if merges_as_strings else merges}}


def added(config, content, **flags):
    ids = [*config["model"]["vocab"].values(), *(t["id"] for t in config["added_tokens"])]
    token = {"id": config["model"]["vocab"].get(content, max(ids) + 1), "content": content, "single_word": False, "lstrip": False,
             "rstrip": False, "normalized": False, "special": False}
    config["added_tokens"].append({**token, **flags})


def split(pattern, behavior, invert=False, literal=False):
    return {"type": "Split", "pattern": {"String" if literal else "Regex": pattern}, "behavior": behavior, "invert": invert}


def configs():
    yield "plain", base()
    yield "merges as strings", base(merges_as_strings=True)

    level = base()["pre_tokenizer"]
    for prefix in (False, True):
        for regex in (False, True):
            c = base()
            c["pre_tokenizer"] = {**level, "add_prefix_space": prefix, "use_regex": regex}
            yield f"ByteLevel prefix={prefix} regex={regex}", c
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            for pattern, literal in ((r"\s", False), ("l", True), (r"\w+|[^\w\s]+", False), (r"o*", False)):
                c = base()
                c["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split(pattern, behavior, invert, literal), level]}
                yield f"Split {pattern} {behavior} invert={invert}", c
    for individual in (False, True):
        c = base()
        c["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": individual}, level]}
        yield f"Digits individual={individual}", c
    for pattern in (r"^\w+$", r"\p{N}{1,3}+", r"a{2}?", r"\h+", r"(?i:HE)llo|[[:alpha:]]+", r"\u0065", r"(?<=l)o", r"\S+|\W", r"[^\s]+\s?",
                    r"(a|b)+|.", r"[\w-]+", r"\v|\n"):
        c = base()
        c["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split(pattern, "Isolated"), level]}
        yield f"pattern {pattern}", c

    for normalizer in ({"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Prepend", "prepend": "ab"},
                       {"type": "Replace", "pattern": {"String": "l"}, "content": "é"},
                       {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "},
                       {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Replace", "pattern": {"String": "é"}, "content": "he"}]}):
        c = base()
        c["normalizer"] = normalizer
        added(c, "<é>", normalized=True)
        added(c, "<hell>", normalized=False)
        yield f"normalizer {json.dumps(normalizer)}", c

    for flags in ({}, {"special": True}, {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True},
                  {"single_word": True, "lstrip": True, "rstrip": True, "special": True}, {"normalized": True, "rstrip": True}):
        c = base()
        for content in ("<x>", "<x", "hello", " w", "é", "<x>>", "a b", "~~"):
            added(c, content, **flags)
        yield f"added tokens {flags}", c

    c = base()
    c["model"]["ignore_merges"] = True
    for word in ("worldly", "zzz", "的的"):
        c["model"]["vocab"][SPELL(word)] = len(c["model"]["vocab"])
    c["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [split(r"\s", "Isolated"), level]}
    yield "ignore_merges", c

    for fuse in (False, True):
        for unknown in (None, "<unk>"):
            for fallback in (False, True):
                c = base()
                for byte in (b"z", b"q", b"\xc3", b"\xa9", b"\x00"):
                    gone = TABLE[byte[0]]
                    c["model"]["merges"] = [m for m in c["model"]["merges"] if gone not in "".join(m)]
                    c["model"]["vocab"] = {t: i for t, i in c["model"]["vocab"].items() if gone not in t}
                c["model"]["vocab"]["<unk>"] = 5000
                for i, b in enumerate((0x7A, 0xC4, 0x80)):
                    c["model"]["vocab"][f"<0x{b:02X}>"] = 5001 + i
                c["model"].update(fuse_unk=fuse, unk_token=unknown, byte_fallback=fallback)
                yield f"fuse_unk={fuse} unk={unknown} byte_fallback={fallback}", c

    c = base()
    c["model"]["merges"] += [[SPELL("a"), SPELL("b")], [SPELL("h"), SPELL("e")]]
    yield "merges twice", c

    c = base()
    c["post_processor"] = {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                           "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
                           "special_tokens": {"<s>": {"id": "<s>", "ids": [9000], "tokens": ["<s>"]}}}
    added(c, "<s>", special=True, id=9000)
    c["decoder"] = {"type": "Sequence", "decoders": [c["decoder"], {"type": "Fuse"}]}
    yield "post-processor and decoder sequence", c


TEXTS = ["", " ", "hello world", "hello  world\n\nhe's ab 12 99 123456", "abababab aba", "<x> <x>> <x  <xhello>", "  <x>  hello  <x>\n", "hello<x>hello a b~~ ~~a",
         "é e\u0301 的的 的\u00a0é", "<é> <hell> <e\u0301> hell <hell>", "worldly zzz 的的", "zq\x00zz qé", "aa aaa a\u0661\u0662\u00b2\u0664", "ﬁ ½ ① Å \u212b \u1e9b\u0323",
         "a\u0316\u0301\u0345b \u0344\u0958", "line\nline two\r\nx\ty\x0bz", "~~é~~ w hello w", "ooo loo hello-world foo--bar", "😀🙂\u200d", "\u3000x\u2003<x>\u3000"]


def merge_patch(old, new):
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    patch = {k: merge_patch(old[k], v) if k in old else v for k, v in new.items() if k not in old or old[k] != v}
    patch.update({k: None for k in old if k not in new})
    return patch


def main():
    print(json.dumps(base()))
    rng = random.Random(1)
    alphabet = "".join(TEXTS) + "     lohe<x>"
    for name, config in configs():
        tokenizer = Tokenizer.from_str(json.dumps(copy.deepcopy(config)))
        cases = []
        for text in TEXTS + ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 30))) for _ in range(4)]:
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            cases.append({"text": text, "ids": ids, "decoded": tokenizer.decode(ids, skip_special_tokens=False),
                          "plain": tokenizer.decode(ids, skip_special_tokens=True)})
        junk = [rng.randrange(0, 300) for _ in range(60)]
        print(json.dumps({"name": name, "patch": merge_patch(base(), config), "cases": cases,
                          "junk": {"ids": junk, "decoded": tokenizer.decode(junk, skip_special_tokens=False)}}, ensure_ascii=True))


if __name__ == "__main__":
    main()
