#!/usr/bin/env python3
"""Draws when replicas compute and when they exchange, as an SVG for docs/how-it-works.md: `methods` compares data
parallel, DiLoCo and Streaming DiLoCo; `fragments` shows H, P and tau.

    scripts/draw_timeline.py methods > docs/pictures/methods.svg
    scripts/draw_timeline.py fragments > docs/pictures/fragments.svg
"""
import sys

sys.dont_write_bytecode = True
from svg_picture import Picture  # noqa: E402

FRAGMENT_COLOURS = ("first", "second", "third")
# One replica, in units of one inner step: (begin, end) of the times in which it computes and in which it exchanges.
UNITS = 24
METHODS = [
    ("Data parallel", "exchanges all gradients after every step, and waits",
     "above: the replica computes; below: the exchange over the network",
     [(t, t + 1) for t in range(0, UNITS, 3)], [(t + 1, t + 3, 0) for t in range(0, UNITS, 3)]),
    ("DiLoCo", "exchanges how far all parameters moved in H steps, and waits", "",
     [(t + s, t + s + 1) for t in (0, 8, 16) for s in range(6)], [(t + 6, t + 8, 0) for t in (0, 8, 16)]),
    ("Streaming DiLoCo", "exchanges one fragment of the parameters at a time, and computes on",
     "below: fragments in flight, a colour for each",
     [(t, t + 1) for t in range(UNITS)], [(t, t + 2, t // 3 % 3) for t in range(3, UNITS - 1, 3)]),
]
STEPS, EVERY, FRAGMENTS, DELAY = 20, 9, 3, 2  # H, P and tau of the second picture


def methods():
    left, unit, row, top = 16, 40, 108, 14
    picture = Picture(
        left + UNITS * unit + 16, top + row * len(METHODS) + 16, "Three ways to train on several machines",
        "Bars over time for one replica, not to scale. With data parallel it computes one step, then waits for an exchange "
        "that takes longer than the step, again and again. With DiLoCo it computes six steps between two exchanges, and "
        "waits for each. With Streaming DiLoCo it computes without a pause, while one fragment after another is exchanged.")
    for index, (name, what, note, computes, exchanges) in enumerate(METHODS):
        y = top + index * row
        picture.text(left, y + 12, name, bold=True)
        picture.text(left + 150, y + 12, what, "faint")
        for begin, end in computes:
            picture.box(left + begin * unit, y + 24, (end - begin) * unit - 2, 28, "compute")
        busy = {t for begin, end in computes for t in range(begin, end)}
        for begin, end, fragment in exchanges:
            if begin not in busy:
                picture.box(left + begin * unit, y + 24, (end - begin) * unit - 2, 28, "wait")
                picture.text(left + (begin + end) / 2 * unit, y + 43, "waits", anchor="middle")
            colour = "line" if begin not in busy else FRAGMENT_COLOURS[fragment]
            picture.box(left + begin * unit, y + 58, (end - begin) * unit - 2, 8, colour)
        if note:
            picture.text(left, y + 84, note, "faint")
    return picture


def sends():
    """(fragment, step) of each send: fragment p is sent at the steps t with (t - floor(p H / P)) mod H = 0."""
    return [(p, step) for step in range(1, STEPS + 1) for p in range(FRAGMENTS)
            if (step - p * EVERY // FRAGMENTS) % EVERY == 0]


def fragments():
    left, unit = 92, 44
    rows = {"eu": 84, "us": 230}
    picture = Picture(
        left + STEPS * unit + 16, 356, f"H = {EVERY}, P = {FRAGMENTS} and tau = {DELAY}",
        f"Two replicas, eu and us, make {STEPS} inner steps each without a pause. The model has {FRAGMENTS} fragments, P. "
        + " ".join(f"Fragment {p} is sent after step {step} and its result merged after step {step + DELAY}."
                   for p, step in sends() if step + DELAY <= STEPS)
        + f" Each fragment is sent every {EVERY} steps, H, and merged {DELAY} steps later, tau.")
    for name, y in rows.items():
        picture.text(left - 14, y + 19, f"replica {name}", anchor="end", bold=True)
        for step in range(1, STEPS + 1):
            x = left + (step - 1) * unit
            picture.box(x, y, unit - 2, 28, "compute")
            picture.text(x + unit / 2 - 1, y + 19, str(step), anchor="middle")
    upper, lower = rows["eu"] + 28, rows["us"]
    middle = (upper + lower) / 2
    for p, step in sends():
        colour, begin, end = FRAGMENT_COLOURS[p], left + step * unit - 1, left + (step + DELAY) * unit - 1
        in_picture = step + DELAY <= STEPS
        for edge in (upper, lower):
            down = 1 if edge == upper else -1
            picture.line([(begin, edge + 2 * down), (begin + 8, middle - 14 * down)], colour, "end", 2)
            if in_picture:
                picture.line([(end - 8, middle - 14 * down), (end, edge + 3 * down)], colour, "end", 2)
        if in_picture:
            picture.box(begin, middle - 13, end - begin, 26, "box", colour)
            picture.text((begin + end) / 2, middle + 5, f"fragment {p}", colour, "middle")
    p, first = sends()[0]
    begin, end = left + first * unit - 1, left + (first + EVERY) * unit - 1
    for x in (begin, end):
        picture.line([(x, 46), (x, rows["eu"] - 3)], "line", dashed=True)
    picture.line([(begin + 2, 52), (end - 2, 52)], "ink", "both")
    picture.text((begin + end) / 2, 42, f"H = {EVERY}: steps between two sends of fragment {p}", anchor="middle")
    y = rows["us"] + 28
    end = left + (first + DELAY) * unit - 1
    for x in (begin, end):
        picture.line([(x, y + 3), (x, y + 28)], "line", dashed=True)
    picture.line([(begin + 2, y + 20), (end - 2, y + 20)], "ink", "both")
    picture.text(begin, y + 46, f"tau = {DELAY}: steps from sending a fragment to merging its result", anchor="start")
    picture.text(left, y + 78, f"P = {FRAGMENTS} fragments. Arrows out of a row send what changed in a fragment; arrows into it merge "
                 "the mean. No step waits.", "faint")
    picture.text(left, 16, "inner steps of two replicas", "faint")
    return picture


if __name__ == "__main__":
    drawings = {"methods": methods, "fragments": fragments}
    if len(sys.argv) != 2 or sys.argv[1] not in drawings:
        sys.exit(__doc__)
    print(drawings[sys.argv[1]]())
