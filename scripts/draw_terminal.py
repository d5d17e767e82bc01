#!/usr/bin/env python3
"""Draws the output of a command as an SVG for the documentation, below a line with the command that readers would type.

    isthmus doctor two_sites.yaml | scripts/draw_terminal.py "isthmus doctor two_sites.yaml" > doctor.svg
    scripts/draw_terminal.py --screen "late" "isthmus top" isthmus top > top.svg

With --screen the command runs in a terminal of 80 x 24, and the first complete screen in which the pattern is found
counts; then it gets the key q.
"""
import argparse
import contextlib
import pathlib
import re
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests/app"))
from svg_picture import Picture  # noqa: E402

COLUMN, ROW, MARGIN, SIZE = 7.9, 18, 14, 13


def screen(words, pattern):
    """The lines of the first screen in which the pattern is found."""
    from top_test import Terminal

    with contextlib.closing(Terminal(words)) as terminal:
        terminal.until(f"screen with {pattern!r}", lambda: re.search(pattern, terminal.text()))
        lines = list(terminal.screen)
        terminal.press(b"q")
        terminal.expect_given_back(0)
    return lines


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shown")
    parser.add_argument("--screen", metavar="PATTERN")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    lines = screen(options.command, options.screen) if options.screen else sys.stdin.read().split("\n")
    lines = [line.rstrip() for line in lines]
    lines = [line for before, line in zip(["", *lines], lines) if line or before]  # one empty line, not several
    while lines and not lines[-1]:
        lines.pop()
    columns = max(80, max(map(len, lines)))
    picture = Picture(2 * MARGIN + columns * COLUMN, 2 * MARGIN + (len(lines) + 2) * ROW, f"The output of {options.shown}",
                      "\n".join(lines), "ui-monospace, 'DejaVu Sans Mono', Menlo, Consolas, monospace", SIZE)
    picture.box(1, 1, picture.width - 2, picture.height - 2, "paper", "line")
    for row, line in enumerate(["$ " + options.shown, "", *lines]):
        if line:
            text = line.lstrip()
            picture.typed(MARGIN + (len(line) - len(text)) * COLUMN, MARGIN + (row + 0.75) * ROW, text, len(text) * COLUMN,
                          "faint" if row == 0 else "first" if re.search(r"\b(FAIL|warn)\b", line) else "ink")
    print(picture)


if __name__ == "__main__":
    main()
