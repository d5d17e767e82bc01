#!/usr/bin/env python3
"""newer_characters.py > data/unicode/newer_characters.inc: prints the characters that the `tokenizers` package knows and
Unicode 14 does not, as ranges of one general category, each with an older character of the same category and number of
bytes. Run it with Python 3.11, which has Unicode 14."""

import sys
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = "Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp".split()
CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def characters_of(name):
    """All characters that \\p{name} matches."""
    others = pre_tokenizers.Split(Regex(r"[^\p{%s}]+" % name), "removed")
    for begin in range(0, len(CHARACTERS), 1 << 16):
        for word, _ in others.pre_tokenize_str("".join(CHARACTERS[begin : begin + (1 << 16)])):
            yield from word


def main():
    if unicodedata.unidata_version != "14.0.0":
        sys.exit(f"this Python has Unicode {unicodedata.unidata_version}: expected 14.0.0: run this with Python 3.11")
    han = set(characters_of("Han"))
    kind = {c: (name, c in han, len(c.encode())) for name in CATEGORIES for c in characters_of(name)}
    newer = sorted(c for c in kind if unicodedata.category(c) != kind[c][0])
    older = {}
    for c in sorted(kind.keys() - set(newer)):
        older.setdefault(kind[c], []).append(ord(c))
    ranges = []
    for c in newer:
        if ranges and ord(ranges[-1][1]) + 1 == ord(c) and kind[ranges[-1][1]] == kind[c]:
            ranges[-1][1] = c
        else:
            ranges.append([c, c])
    for first, last in ranges:
        like = min(older[kind[first]], key=lambda c: abs(c - ord(first)))
        print(f"{{{ord(first):#x}, {ord(last):#x}, {like:#x}}},  // {kind[first][0]}")


if __name__ == "__main__":
    main()
