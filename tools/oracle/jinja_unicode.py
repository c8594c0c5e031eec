#!/usr/bin/env python3
"""Writes src/text/jinja_unicode_data.cpp: Python's own character classes and case maps, as runs with a stride.

usage: jinja_unicode.py > src/text/jinja_unicode_data.cpp && clang-format -i src/text/jinja_unicode_data.cpp
"""
import unicodedata

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]


def runs(points):
    """Ascending code points -> (first, last, stride) with strides 1 and 2."""
    out = []
    for c in points:
        if out:
            first, last, stride = out[-1]
            if stride == 0 and c - last <= 2:
                out[-1] = (first, c, c - last)
                continue
            if stride and c - last == stride:
                out[-1] = (first, c, stride)
                continue
        out.append((c, c, 0))
    return [(a, b, s or 1) for a, b, s in out]


def emit_class(name, test):
    body = ", ".join(f"{{{a:#x}, {b:#x}, {s}}}" for a, b, s in runs([c for c in POINTS if test(chr(c))]))
    print(f"const Run k{name}Runs[] = {{{body}}};")
    print(f"const std::span<const Run> k{name} = k{name}Runs;")


def emit_map(name, convert):
    rows, special = [], []
    for c in POINTS:
        to = convert(chr(c))
        if len(to) > 1:
            special.append((c, to))
        elif ord(to) != c:
            delta = ord(to) - c
            a, b, stride, d = rows[-1] if rows else (0, 0, 0, 0)
            if d == delta and (c - b == stride or (stride == 0 and c - b <= 2)):
                rows[-1] = (a, c, c - b, d)
            else:
                rows.append((c, c, 0, delta))
    body = ", ".join(f"{{{a:#x}, {b:#x}, {s or 1}, {d}}}" for a, b, s, d in rows)
    print(f"const CaseRun k{name}Runs[] = {{{body}}};")
    text = ", ".join('{%#x, "%s"}' % (c, "".join(f"\\x{b:02x}" for b in to.encode())) for c, to in special)
    if special:
        print(f"const CaseText k{name}Texts[] = {{{text}}};")
    print(f"const CaseMap k{name} = {{k{name}Runs, {'k' + name + 'Texts' if special else '{}'}}};")


def main():
    print(f"// Made by tools/oracle/jinja_unicode.py from Python's unicodedata {unicodedata.unidata_version}. Do not edit.")
    print('#include "text/jinja_unicode.h"\n\nnamespace mettle::jinja {\n')
    emit_class("Printable", str.isprintable)
    emit_class("Alpha", str.isalpha)
    emit_class("Decimal", str.isdecimal)
    emit_class("Digit", str.isdigit)
    emit_class("Numeric", str.isnumeric)
    emit_class("Lower", str.islower)
    emit_class("Upper", lambda c: c.isupper())
    emit_class("Title", lambda c: unicodedata.category(c) == "Lt")
    # case-ignorable, found by asking Python: the sigma behind it is final after a letter, but not without one
    emit_class("CaseIgnorable", lambda c: ("A" + c + "\u03a3").lower().endswith("\u03c2")
               and not (c + "\u03a3").lower().endswith("\u03c2"))
    emit_map("ToUpper", str.upper)
    emit_map("ToLower", str.lower)
    emit_map("ToTitle", str.title)
    emit_map("ToFolded", str.casefold)
    print("\n}  // namespace mettle::jinja")


if __name__ == "__main__":
    main()
