#!/usr/bin/env python3
"""Draws, as an SVG, how far the losses of runs are above or below their baselines: against the number of replicas, the
size of the model, and the bits that a replica sends. A baseline is a run without an outer loop, with the same steps,
size, seed and machine. A point is a mean over seeds, with their number in brackets and, for several seeds, a 95 %
interval.

    scripts/draw_gaps.py docs/learning.jsonl > docs/gaps.svg
"""
import json
import math
import pathlib
import statistics
import sys

from draw_losses import APART, COLOURS, HEIGHT, LEFT, TOP, WIDTH, Panel, ticks

STUDENT = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31}  # 97.5 % points, by seeds
BASELINES = ("data parallel", "one replica")


def key(run):
    return run["steps"], run["parameters"], run["seed"], run["machine"]


def points(runs, x):
    """[(x, mean gap, half of its interval, seeds)] for each arm, gaps in percent; `x` is the name of a run's field."""
    baselines = {key(run): run["loss"] for run in runs if run["arm"] in BASELINES}
    pairs = {}
    for run in runs:
        if run["arm"] not in BASELINES and "left_out" not in run and key(run) in baselines:
            pairs.setdefault((run[x], run["arm"]), []).append((run["loss"], baselines[key(run)]))
    found = []
    for (value, _), losses in sorted(pairs.items()):
        base = statistics.mean(b for _, b in losses)
        gaps = [100 * (loss - b) / base for loss, b in losses]
        half = STUDENT[min(len(gaps), max(STUDENT))] * statistics.stdev(gaps) / math.sqrt(len(gaps)) if len(gaps) > 1 else 0
        found.append((value, statistics.mean(gaps), half, len(gaps)))
    return found


def panel(number, title, axis, series, ticks_x, lowest, highest):
    xs = [x for points_ in series.values() for x, *_ in points_]
    drawn = Panel(LEFT + number * (WIDTH + APART), title, axis, (min(xs) / 2, max(xs) * 2), (lowest, highest), math.log)
    for value in ticks(lowest, highest):
        drawn.tick_y(value, f"{value:+g} %" if value else "0")
    _, zero = drawn.at(drawn.xs[0], 0)
    drawn.shapes.append(f'<line x1="{drawn.x}" x2="{drawn.x + WIDTH}" y1="{zero:.1f}" y2="{zero:.1f}" stroke="#444"/>')
    for value in ticks_x:
        drawn.tick_x(value, f"{value:g}")
    for index, ((label, points_), colour) in enumerate(zip(series.items(), COLOURS)):
        for x, mean, half, seeds in points_:
            (px, low), (_, high), (_, y) = (drawn.at(x, v) for v in (mean - half, mean + half, mean))
            drawn.shapes += [
                f'<line x1="{px:.1f}" x2="{px:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}" stroke-width="2"/>',
                f'<circle cx="{px:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/>',
                f'<text x="{px:.1f}" y="{low + 18 if index == 1 else high - 8:.1f}" text-anchor="middle">{mean:+.1f} % ({seeds})</text>']
        y = TOP + HEIGHT + 58 + 18 * index
        drawn.shapes.append(f'<circle cx="{drawn.x + 6}" cy="{y - 4}" r="4" fill="{colour}"/><text x="{drawn.x + 16}" y="{y}">{label}</text>')
    return drawn


def power_law(points_):
    """(c, a) of gap = c x^a, by least squares of logarithms."""
    logs = [(math.log(x), math.log(gap)) for x, gap, *_ in points_]
    x, y = (statistics.mean(values) for values in zip(*logs))
    a = sum((u - x) * (v - y) for u, v in logs) / sum((u - x) ** 2 for u, _ in logs)
    return math.exp(y - a * x), a


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    runs = [json.loads(line) for line in pathlib.Path(sys.argv[1]).read_text().splitlines()]

    def of(section, x):
        """The points of one section's arms, against the baselines of all sections."""
        return points([run for run in runs if run["section"] == section or run["arm"] in BASELINES], x)

    number = panel(0, "1,600 steps: replicas", "replicas that share the batch", {
        "two bits a value, .14 to .30 bits per parameter and step": of("1,600 steps", "replicas"),
        "one replica under the outer step, which sends nothing (on a CPU)": of("one replica", "replicas")}, (1, 2, 4, 8), -4, 4)
    sizes = of("size", "parameters")
    scale, exponent = power_law(sizes)
    size = panel(1, "about 19 tokens a parameter: size", "parameters, millions", {
        f"two replicas in four bits; line: {scale:.2f} % x N^{exponent:.2f}, N in millions": sizes}, (.3, 1, 3, 10), -1, 4.5)
    between = [sizes[0][0] * (sizes[-1][0] / sizes[0][0]) ** (part / 20) for part in range(21)]
    curve = " ".join("{:.1f},{:.1f}".format(*size.at(n, scale * n**exponent)) for n in between)
    size.shapes.append(f'<polyline points="{curve}" fill="none" stroke="#888" stroke-dasharray="6 3"/>')
    two = [run for run in runs if run["replicas"] == 2 or run["arm"] in BASELINES]
    bits = panel(2, "two replicas: bits", "bits per parameter and step", {
        "1,600 steps, as in the first panel": points([run for run in two if run["section"] == "1,600 steps"], "bits"),
        "400 steps": of("400 steps", "bits"), "1,600 steps, few bits": of("few bits", "bits")}, (.01, .1, 1, 10), -3, 11)
    width, height = LEFT + 3 * WIDTH + 2 * APART + 20, TOP + HEIGHT + 108
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
          'font-family="sans-serif" font-size="12" role="img"><title>Loss differences to the baselines, in percent</title>'
          '<rect width="100%" height="100%" fill="white"/>')
    for drawn in (number, size, bits):
        print("\n".join(drawn.shapes))
    print("</svg>")


if __name__ == "__main__":
    main()
