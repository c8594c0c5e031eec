#!/usr/bin/env python3
"""Plants the faults of tests/mutants/cuda/faults in copies of src/ops/cuda; the sources themselves stay as they are.

  plant.py check             every text is found exactly once; 0 when so
  plant.py files             the files of src/ops/cuda that get a fault
  plant.py units             the sources to be compiled again: those, and who includes one of them
  plant.py write FOLDER      the copies, under FOLDER/ops/cuda, and FOLDER/planted_faults.inc

The form of `faults`, one fault:
  [name]                     unique
  op backend/tactic slice CODE...   which proof must refuse it, on which slice, with one of which verdicts; `race`
                             stands for all that a race may look like
  a sentence: what it imitates
  @ file                     of src/ops/cuda; then one change of it, as often as wanted:
  ~ text                     what stands before the changed text (may be left out)
  - text                     what is changed; found once in the file, white space does not count
  + text                     what stands there under the fault. An expression for an expression, statements (text ends
                             in ; or }) for statements; nothing: left out under the fault.
  ! text                     instead of +: verbatim; FAULT is true under the fault
Lines of one kind that follow each other belong together. A text may be changed by several faults, but not in parts.
"""
import os, re, sys

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCES = os.path.normpath(os.path.join(HERE, "../../../src"))
RACE = ["WRONG_OUTPUT", "NOT_FINITE", "NONDETERMINISTIC", "ROW_DEPENDENT", "ZERO_OUTPUT", "INCOMPLETE_WRITE", "WRONG_SELECTION"]


class Wrong(Exception):
    pass


class Change:
    def __init__(self, file):
        self.file, self.before, self.old, self.new, self.raw = file, "", "", "", None


class Fault:
    def __init__(self, name):
        self.name, self.changes = name, []


def read_faults():
    faults, names, kind, wait = [], set(), None, 0
    for number, line in enumerate(open(os.path.join(HERE, "faults"), encoding="utf-8"), 1):
        line = line.rstrip("\n")
        place = f"faults:{number}"
        if not line.strip() or line.startswith("#"):
            continue
        if m := re.fullmatch(r"\[(\w+)\]", line):
            if m[1] in names:
                raise Wrong(f"{place}: {m[1]} stands there twice")
            names.add(m[1])
            faults.append(Fault(m[1]))
            wait = 2
        elif wait == 2:
            words = line.split()
            if len(words) < 4 or "/" not in words[1]:
                raise Wrong(f"{place}: must be: op backend/tactic slice CODE...")
            f = faults[-1]
            f.op, f.slice = words[0], words[2]
            f.backend, f.tactic = words[1].split("/")
            f.codes = []
            for w in words[3:]:
                f.codes += RACE if w == "race" else [w]
            wait = 1
        elif wait == 1:
            faults[-1].about = line.strip()
            wait = 0
        elif line[0] == "@":
            faults[-1].changes.append(Change(line[1:].strip()))
            kind = "@"
        elif line[0] in "~-+!" and faults and faults[-1].changes:
            c = faults[-1].changes[-1]
            if line[0] in "~-" and kind in ("+", "!") or line[0] == "~" and kind == "-":
                faults[-1].changes.append(Change(c.file))
                c = faults[-1].changes[-1]
            kind = line[0]
            text = line[1:].strip() + "\n"
            if kind == "~":
                c.before += text
            elif kind == "-":
                c.old += text
            elif kind == "+":
                c.new += text
            else:
                c.raw = (c.raw or "") + text
        else:
            raise Wrong(f"{place}: not understood: {line}")
    for f in faults:
        if not f.changes or any(not c.old for c in f.changes):
            raise Wrong(f"{f.name}: changes nothing")
    return faults


TOKEN = re.compile(r"\w+|[^\w\s]")


def pattern_of(text):
    tokens, out = TOKEN.findall(text), ""
    for i, t in enumerate(tokens):
        if i > 0:
            out += r"\s+" if re.match(r"\w", tokens[i - 1]) and re.match(r"\w", t) else r"\s*"
        out += re.escape(t)
    if tokens and re.match(r"\w", tokens[0]):
        out = r"(?<!\w)" + out
    if tokens and re.match(r"\w", tokens[-1]):
        out += r"(?!\w)"
    return out


def path_of(file):
    return os.path.join(SOURCES, "ops/cuda", file)


def spans_of(faults):
    """By file: (begin, end) -> [(number of the fault, change)]."""
    by_file, texts = {}, {}
    for number, f in enumerate(faults, 1):
        for c in f.changes:
            if c.file not in texts:
                if not os.path.exists(path_of(c.file)):
                    raise Wrong(f"{f.name}: no file src/ops/cuda/{c.file}")
                texts[c.file] = open(path_of(c.file), encoding="utf-8").read()
            pattern = (pattern_of(c.before) + r"\s*" if c.before else "") + "(" + pattern_of(c.old) + ")"
            found = [m.span(1) for m in re.finditer(pattern, texts[c.file])]
            if len(found) != 1:
                shown = " ".join((c.before + c.old).split())
                raise Wrong(f"{f.name}: must be found once in src/ops/cuda/{c.file}, is found {len(found)} times: {shown}\n"
                            f"  the kernel has changed: change the fault in tests/mutants/cuda/faults with it")
            by_file.setdefault(c.file, {}).setdefault(found[0], []).append((number, c))
    for file, spans in by_file.items():
        last = None
        for span in sorted(spans):
            if last and span[0] < last[1]:
                names = [faults[n - 1].name for n, _ in spans[last] + spans[span]]
                raise Wrong(f"{file}: parts of one text are changed by {', '.join(names)}")
            last = span
    return by_file, texts


def condition(number):
    return f"mettle_planted({number})"


def changed(old, changes):
    raw = [x for x in changes if x[1].raw is not None]
    if raw:
        if len(changes) > 1:
            raise Wrong(f"{' '.join(old.split())}: a verbatim change stands beside another")
        return raw[0][1].raw.strip().replace("FAULT", condition(raw[0][0]))
    if old.rstrip()[-1] in ";}":
        text = f"{{ {old} }}"
        for number, c in reversed(changes):
            new = c.new.strip()
            text = f"if ({condition(number)}) {{ {new} }} else {text}"
        return text
    text = f"({old})"
    for number, c in reversed(changes):
        text = f"({condition(number)} ? ({c.new.strip()}) : {text})"
    return text


def planted_text(text, spans):
    for span in sorted(spans, reverse=True):
        text = text[: span[0]] + changed(text[span[0] : span[1]], spans[span]) + text[span[1] :]
    return '#include "mettle_planted.h"\n' + text


def units_of(files):
    """Sources of src/ops/cuda that are or include one of the files, through any header of it."""
    folder = os.path.join(SOURCES, "ops/cuda")
    includes, all_files = {}, []
    for root, _, names in os.walk(folder):
        for name in names:
            path = os.path.relpath(os.path.join(root, name), folder)
            all_files.append(path)
            text = open(os.path.join(root, name), encoding="utf-8").read()
            includes[path] = set(re.findall(r'#include "ops/cuda/([^"]+)"', text))
    touched, grown = set(files), True
    while grown:
        grown = False
        for path in all_files:
            if path not in touched and includes[path] & touched:
                touched.add(path)
                grown = True
    return sorted(p for p in touched if p.endswith((".cu", ".cpp")))


def write(path, text):
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text)


def table(faults):
    def quoted(s):
        return '"' + s.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return "".join(f"{{{n}, {quoted(f.name)}, {quoted(f.op)}, {quoted(f.backend)}, {quoted(f.tactic)}, {quoted(f.slice)}, "
                   f"{{{', '.join(quoted(c) for c in f.codes)}}}, {quoted(f.about)}}},\n" for n, f in enumerate(faults, 1))


def main(args):
    faults = read_faults()
    by_file, texts = spans_of(faults)
    planted = {file: planted_text(texts[file], spans) for file, spans in by_file.items()}
    if args == ["check"]:
        print(f"{len(faults)} faults in {len(by_file)} files of src/ops/cuda")
    elif args == ["files"]:
        print(";".join(sorted(by_file)), end="")
    elif args == ["units"]:
        print(";".join(units_of(by_file)), end="")
    elif len(args) == 2 and args[0] == "write":
        for file, text in planted.items():
            write(os.path.join(args[1], "ops/cuda", file), text)
        write(os.path.join(args[1], "planted_faults.inc"), table(faults))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Wrong as e:
        print("plant:", e, file=sys.stderr)
        sys.exit(1)
