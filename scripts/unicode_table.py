#!/usr/bin/env python3
"""Write src/text/unicode_table.cpp: the classes of all code points as the `tokenizers` package sees them.

Its regular expressions follow Unicode 16.0, newer than the tables of PCRE2 10.42, so the classes are read out of the
package itself: what one pattern keeps of a string of all code points. Needs `tokenizers` (made with 0.23.3).

  scripts/unicode_table.py > src/text/unicode_table.cpp
"""
import unicodedata

import tokenizers
from tokenizers import Regex, normalizers, pre_tokenizers

POINTS = [c for c in range(0x110000) if not 0xD800 <= c <= 0xDFFF]
# bit of unicode.h: pattern
CLASSES = {1: r"\p{L}", 2: r"\p{N}", 4: r"\p{M}", 8: r"\p{P}", 16: r"\p{S}", 32: r"\s", 128: r"\w"}
NOT_NFC = 64


def members(pattern):
    keep = pre_tokenizers.Split(Regex(pattern), "removed", invert=True)
    found = set()
    for i in range(0, len(POINTS), 50_000):
        for piece, _ in keep.pre_tokenize_str("".join(map(chr, POINTS[i:i + 50_000]))):
            found.update(map(ord, piece))
    return found


def main():
    flags = [0] * 0x110000
    for bit, pattern in CLASSES.items():
        for c in members(pattern):
            flags[c] |= bit
    # \w is asked for by single_word alone, which another engine answers: no numbers of Latin-1, but the joiners.
    for c in (0xB2, 0xB3, 0xB9, 0xBC, 0xBD, 0xBE):
        flags[c] &= ~128
    for c in (0x200C, 0x200D):
        flags[c] |= 128
    # Characters that NFC changes, moves before their neighbour (ccc below that of U+0345, the highest), or joins to it. The
    # package's NFC knows Unicode 9.0: later marks neither move nor join there, so they get no bit.
    nfc = normalizers.NFC().normalize_str
    joins = {d.split()[1] for d in map(unicodedata.decomposition, map(chr, POINTS)) if len(d.split()) == 2 and d[0] != "<"}
    firsts = [chr(int(d.split()[0], 16)) for d in map(unicodedata.decomposition, map(chr, POINTS)) if d and d[0] != "<"]
    for c in POINTS:
        x = chr(c)
        moves = c == 0x345 or nfc("x\u0345" + x) == "x" + x + "\u0345"
        if moves or 0x1160 <= c <= 0x11FF or nfc(x) != x or (f"{c:04X}" in joins and any(nfc(f + x) != f + x for f in firsts)):
            flags[c] |= NOT_NFC
    runs = [(c << 8) | flags[c] for c in range(0x110000) if c == 0 or flags[c] != flags[c - 1]]
    print(f"// Made by scripts/unicode_table.py from tokenizers {tokenizers.__version__}; not edited by hand.")
    print("// A run of code points of equal classes: first code point << 8 | classes, up to the next run.")
    print('#include "text/unicode.h"\n')
    print("namespace mettle::unicode {\n")
    print("extern const uint32_t kClassRuns[];")
    print("extern const size_t kClassRunCount;\n")
    print("// clang-format off")
    print("const uint32_t kClassRuns[] = {")
    for i in range(0, len(runs), 10):
        print("  " + ", ".join(f"0x{r:x}" for r in runs[i:i + 10]) + ",")
    print("};")
    print("// clang-format on")
    print("const size_t kClassRunCount = sizeof(kClassRuns) / sizeof(kClassRuns[0]);\n")
    print("}  // namespace mettle::unicode")


if __name__ == "__main__":
    main()
