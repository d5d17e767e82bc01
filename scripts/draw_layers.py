#!/usr/bin/env python3
"""Draws the libraries of the project and which uses which, as an SVG, from the CMakeLists.txt that build them; and the
folders of outer_sync, from tests/layers/check.py. A box stands above all that it uses; an arrow that follows from
others is left out. The box outer_sync of the left picture is the whole right one.

    scripts/draw_layers.py > docs/layers.svg
"""
import math
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.dont_write_bytecode = True
sys.path.insert(0, str(ROOT / "tests/layers"))
import check  # noqa: E402

LAYER = re.compile(r"^isthmus_layer\((\w+)\s([^)]*)\)", re.MULTILINE)
BOX_WIDTH, BOX_HEIGHT, APART_X, APART_Y, TOP, MARGIN = 136, 28, 18, 34, 48, 16
PURE = "#e4efe4"
OTHERS = "#e8edf4"


def layers(root):
    """{library: [libraries that it uses]}; those of outer_sync/ are one here."""
    found = {}
    for file in sorted(root.glob("*/CMakeLists.txt")):
        if file.parent.name not in ("tests", "build"):
            for name, arguments in LAYER.findall(file.read_text(encoding="utf-8")):
                uses = {"outer_sync" if used.startswith("outer_sync_") else used for used in check.listed(arguments, "USES")}
                name = "outer_sync" if name.startswith("outer_sync_") else name
                found[name] = found.get(name, set()) | uses - {name}
    return {name: sorted(uses) for name, uses in found.items()}


def reached(uses, name):
    """All that a library uses, through others too."""
    found = set()
    for used in uses[name]:
        found |= {used} | reached(uses, used)
    return found


def reduced(uses):
    """Without what follows from other arrows."""
    return {name: [used for used in used_here if not any(used in reached(uses, other) for other in used_here)]
            for name, used_here in uses.items()}


def rank(uses, name):
    return 1 + max((rank(uses, used) for used in uses[name]), default=-1)


def with_bends(uses):
    """The same with a bend, which is a tuple, in each row that an arrow passes; and the rows, from the bottom."""
    ranks = {name: rank(uses, name) for name in uses}
    out, lines = {name: [] for name in uses}, [[] for _ in range(max(ranks.values()) + 1)]
    for name in sorted(uses):
        lines[ranks[name]].append(name)
    for name in sorted(uses):
        for used in uses[name]:
            upper = name
            for row in range(ranks[name] - 1, ranks[used], -1):
                bend = (name, used, row)
                lines[row].append(bend)
                out[upper], out[bend] = out[upper] + [bend], []
                upper = bend
            out[upper] = out[upper] + [used]
    return out, lines


def spread(lines, uses):
    """{box or bend: centre}: each near the middle of those above and below it that it has to do with."""
    wide = {name: (10 if isinstance(name, tuple) else BOX_WIDTH) for line in lines for name in line}
    near = {name: list(used) for name, used in uses.items()}
    for name, used_here in uses.items():
        for used in used_here:
            near[used] = near[used] + [name]
    centre = {}
    for line in lines:
        x = 0
        for name in line:
            centre[name] = x + wide[name] / 2
            x += wide[name] + APART_X
    for _ in range(60):
        for line in lines:
            wish = {name: sum(centre[other] for other in near[name]) / len(near[name]) if near[name] else centre[name]
                    for name in line}
            line.sort(key=lambda name: (wish[name], str(name)))
            left = -math.inf
            for name in line:
                centre[name] = max(wish[name], left + wide[name] / 2)
                left = centre[name] + wide[name] / 2 + APART_X
            shift = sum(wish[name] - centre[name] for name in line) / len(line)
            for name in line:
                centre[name] += shift
    first = min(centre[name] - wide[name] / 2 for name in centre)
    return {name: x - first for name, x in centre.items()}


def picture(uses, labels, pure, left, title):
    """Shapes of one picture and its width and height."""
    arrows, lines = with_bends(reduced(uses))
    centre = spread(lines, arrows)
    at = {name: (left + centre[name], TOP + (len(lines) - 1 - number) * (BOX_HEIGHT + APART_Y))
          for number, line in enumerate(lines) for name in line}
    shapes = [f'<text x="{left}" y="{TOP - 20}" font-weight="bold">{title}</text>']
    for name in uses:
        for lower in arrows[name]:
            (x, y), path = at[name], ""
            y += BOX_HEIGHT
            path = f"M{x:.0f},{y:.0f}"
            while True:
                to_x, to_y = at[lower]
                is_bend = isinstance(lower, tuple)
                to_y -= 0 if is_bend else 2
                middle = (y + to_y) / 2
                path += f" C{x:.0f},{middle:.0f} {to_x:.0f},{middle:.0f} {to_x:.0f},{to_y:.0f}"
                if not is_bend:
                    break
                x, y, lower = to_x, to_y + BOX_HEIGHT, arrows[lower][0]
                path += f" L{x:.0f},{y:.0f}"
            shapes.append(f'<path d="{path}" fill="none" stroke="#777" marker-end="url(#arrow)"/>')
    for name in sorted(uses):
        x, y = at[name]
        shapes.append(f'<rect x="{x - BOX_WIDTH / 2:.0f}" y="{y:.0f}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="4" '
                      f'fill="{PURE if name in pure else OTHERS}" stroke="#666"/>'
                      f'<text x="{x:.0f}" y="{y + 18:.0f}" text-anchor="middle">{labels[name]}</text>')
    return shapes, max(centre.values()) + BOX_WIDTH / 2, TOP + len(lines) * (BOX_HEIGHT + APART_Y)


def main():
    outer = layers(ROOT)
    labels = {folder: "/".join(folder.split("/")[-2:]) for folder in check.OUTER_SYNC}  # longer ones would not fit
    left, left_width, left_height = picture(outer, {name: name for name in outer}, {"quant"}, MARGIN, "Libraries")
    begin = MARGIN + left_width + 70
    right, right_width, right_height = picture(check.OUTER_SYNC, labels, check.PURE, begin, "outer_sync")
    width, height = begin + right_width + MARGIN, max(left_height, right_height) + 6
    print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
          'font-family="sans-serif" font-size="12" role="img"><title>Libraries, and which uses which</title>')
    print('<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
          '<path d="M0,0 L8,4 L0,8 z" fill="#777"/></marker></defs>')
    print(f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>')
    print("\n".join(left + right))
    print(f'<rect x="{MARGIN}" y="{height - 30:.0f}" width="16" height="12" fill="{PURE}" stroke="#666"/>'
          f'<text x="{MARGIN + 24}" y="{height - 20:.0f}">no sockets, threads or clocks</text>')
    print("</svg>")


if __name__ == "__main__":
    main()
