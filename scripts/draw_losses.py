#!/usr/bin/env python3
"""Draws losses of runs as an SVG, for documents: against tokens, and the final losses against the bits sent. Each LABEL
is one line and one point. With several runs, its seeds, they show the mean, with a band from the lowest to the highest.

    scripts/draw_losses.py "data parallel=runs/dp1,runs/dp2" "quickstart=runs/a,runs/b" > docs/losses.svg
"""
import argparse
import json
import math
import pathlib
import statistics

COLOURS = ["#4878a8", "#c44e52", "#55a868", "#dd8452", "#8172b3", "#937860"]
DASHES = ["none", "8 3", "2 3", "8 3 2 3", "1 2", "12 4"]
LEFT, TOP, WIDTH, HEIGHT, APART = 56, 34, 380, 250, 96


def load(spec):
    label, _, paths = spec.partition("=")
    runs = [json.loads((pathlib.Path(path) / "summary.json").read_text()) for path in paths.split(",")]
    seeds = [{e["step"]: e["loss"] for e in run["evaluations"]} for run in runs]
    steps = sorted(set.intersection(*map(set, seeds)) - {0})
    losses = [[seed[step] for seed in seeds] for step in steps]
    tokens = runs[0]["tokens"] / runs[0]["steps"]
    return {"label": label, "tokens": [step * tokens / 1e6 for step in steps], "losses": losses,
            "bits": statistics.mean(run["bits_per_parameter_per_step"] for run in runs)}


class Panel:
    """Axes of one plot; `log`, if given, scales the x axis."""

    def __init__(self, x, title, axis, xs, ys, log=None):
        self.x, self.log = x, log
        self.xs, self.ys = xs, ys
        self.shapes = [f'<rect x="{x}" y="{TOP}" width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#888"/>',
                       f'<text x="{x}" y="{TOP - 12}" font-weight="bold">{title}</text>',
                       f'<text x="{x + WIDTH / 2}" y="{TOP + HEIGHT + 34}" text-anchor="middle">{axis}</text>']

    def at(self, x, y):
        begin, end = self.xs
        part = (self.log(x) - self.log(begin)) / (self.log(end) - self.log(begin)) if self.log else (x - begin) / (end - begin)
        low, high = self.ys
        return self.x + part * WIDTH, TOP + HEIGHT * (high - y) / (high - low)

    def tick_x(self, value, text):
        x, _ = self.at(value, self.ys[0])
        self.shapes.append(f'<text x="{x:.1f}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{text}</text>')

    def tick_y(self, value, text=None):
        _, y = self.at(self.xs[0], value)
        self.shapes += [f'<line x1="{self.x}" x2="{self.x + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>',
                        f'<text x="{self.x - 6}" y="{y + 4:.1f}" text-anchor="end">{text or f"{value:.2f}"}</text>']


def ticks(low, high, count=5):
    """About `count` round values between low and high."""
    rough = (high - low) / count
    step = min((s for power in range(-4, 3) for s in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)),
               key=lambda s: abs(s - rough))
    first = math.floor(low / step) + 1
    return [step * i for i in range(first, math.floor(high / step) + 1)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", nargs="+", metavar="LABEL=RUN[,RUN...]")
    parser.add_argument("--from-tokens", type=float, default=0, help="left end of the first plot, million tokens")
    options = parser.parse_args()
    groups = [load(spec) for spec in options.run]
    shown = [(t, l) for g in groups for t, ls in zip(g["tokens"], g["losses"]) if t >= options.from_tokens for l in ls]
    ends = [loss for g in groups for loss in g["losses"][-1]]
    room = .15 * (max(ends) - min(ends)) + 1e-3
    curve = Panel(LEFT, "loss of held-out text, nats per token", "tokens, millions",
                  (min(t for t, _ in shown), max(t for t, _ in shown)), (min(l for _, l in shown) - .02, max(l for _, l in shown)))
    bits = [max(g["bits"], 1e-3) for g in groups]
    point = Panel(LEFT + WIDTH + APART, "at the end, and what was sent", "bits per parameter and step",
                  (min(bits) / 2, max(bits) * 2), (min(ends) - room, max(ends) + room), math.log)
    for panel in (curve, point):
        for value in ticks(*panel.ys):
            panel.tick_y(value)
    for value in ticks(*curve.xs):
        curve.tick_x(value, f"{value:g}")
    for power in range(-3, 3):
        if point.xs[0] <= 10.0**power <= point.xs[1]:
            point.tick_x(10.0**power, f"{10.0**power:g}")
    legend = []
    for g, b, colour, dash in zip(groups, bits, COLOURS, DASHES):
        rows = [(t, ls) for t, ls in zip(g["tokens"], g["losses"]) if t >= options.from_tokens]
        band = [curve.at(t, max(ls)) for t, ls in rows] + [curve.at(t, min(ls)) for t, ls in reversed(rows)]
        line = [curve.at(t, statistics.mean(ls)) for t, ls in rows]
        curve.shapes += ['<polygon points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in band) +
                         f'" fill="{colour}" fill-opacity=".2"/>',
                         '<polyline points="' + " ".join(f"{x:.1f},{y:.1f}" for x, y in line) +
                         f'" fill="none" stroke="{colour}" stroke-width="1.6" stroke-dasharray="{dash}"/>']
        last = g["losses"][-1]
        (x, low), (_, high), (_, mean) = (point.at(b, v) for v in (min(last), max(last), statistics.mean(last)))
        point.shapes += [f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{low:.1f}" y2="{high:.1f}" stroke="{colour}" stroke-width="2"/>',
                         f'<circle cx="{x:.1f}" cy="{mean:.1f}" r="4" fill="{colour}"/>',
                         f'<text x="{x + 8:.1f}" y="{mean + 4:.1f}">{len(legend) + 1}</text>']
        y = TOP + HEIGHT + 58 + 18 * len(legend)
        seeds = f"{len(last)} seeds" if len(last) > 1 else "1 seed"
        legend.append(f'<line x1="{LEFT}" x2="{LEFT + 40}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="1.6" '
                      f'stroke-dasharray="{dash}"/><text x="{LEFT + 48}" y="{y}">{len(legend) + 1} {g["label"]}: {statistics.mean(last):.4f}, {g["bits"]:.3g} bits, {seeds}</text>')
    width, height = LEFT + 2 * WIDTH + APART + 20, TOP + HEIGHT + 66 + 18 * len(legend)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
          'font-family="sans-serif" font-size="12" role="img"><title>Losses of runs against tokens and bits</title>'
          '<rect width="100%" height="100%" fill="white"/>')
    print("\n".join(curve.shapes + point.shapes + legend) + "\n</svg>")


if __name__ == "__main__":
    main()
