#!/usr/bin/env python3
"""Draws the losses of a comparison's arms as an SVG: against time, and against what a replica sent, both on a
logarithmic x axis. REPORT is the report.json of `isthmus compare`.

    scripts/draw_time.py runs/far_sites/report.json > docs/pictures/far-sites.svg
"""
import argparse
import json
import math
import pathlib

from draw_losses import APART, COLOURS, DASHES, HEIGHT, LEFT, TOP, WIDTH, Panel, ticks

FROM_LOSS = 3.0  # the first steps, which look the same for all, would squeeze the rest


def points(arm, x):
    return [(p[x], p["loss"]) for p in arm["band"] if p[x] and p["loss"] <= FROM_LOSS]


def panel(number, title, axis, arms, x, scale, marks):
    series = [[(value / scale, loss) for value, loss in points(arm, x)] for arm in arms]
    xs, losses = zip(*(point for line in series for point in line))
    drawn = Panel(LEFT + number * (WIDTH + APART), title, axis, (min(xs) * .9, max(xs) * 1.1), (min(losses) - .05, max(losses)), math.log)
    for value in ticks(*drawn.ys):
        drawn.tick_y(value)
    for value in marks:
        if drawn.xs[0] <= value <= drawn.xs[1]:
            drawn.tick_x(value, f"{value:g}")
    for line, colour, dash in zip(series, COLOURS, DASHES):
        at = [drawn.at(*point) for point in line]
        drawn.shapes += ['<polyline points="' + " ".join(f"{a:.1f},{b:.1f}" for a, b in at) +
                         f'" fill="none" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>',
                         f'<circle cx="{at[-1][0]:.1f}" cy="{at[-1][1]:.1f}" r="3.5" fill="{colour}"/>']
    return drawn


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("report", type=pathlib.Path)
    arms = json.loads(parser.parse_args().report.read_text())["arms"]
    powers = [m * 10.0**p for p in range(-2, 6) for m in (1, 2, 5)]
    shapes = panel(0, "loss of held-out text, nats per token", "minutes", arms, "seconds", 60, powers).shapes
    shapes += panel(1, "the same", "megabytes sent by a replica", arms, "bytes", 1e6, [p for p in powers if str(p)[0] != "2"]).shapes
    for index, (arm, colour, dash) in enumerate(zip(arms, COLOURS, DASHES)):
        last, y = arm["band"][-1], TOP + HEIGHT + 58 + 18 * index
        shapes.append(f'<line x1="{LEFT}" x2="{LEFT + 40}" y1="{y - 4}" y2="{y - 4}" stroke="{colour}" stroke-width="1.8" stroke-dasharray="{dash}"/>'
                      f'<text x="{LEFT + 48}" y="{y}">{arm["name"].replace("_", " ")}, {arm["about"]}: {last["loss"]:.3f} after '
                      f'{last["seconds"] / 60:.1f} minutes and {last["bytes"] / 1e6:.3g} MB</text>')
    width, height = LEFT + 2 * WIDTH + APART + 20, TOP + HEIGHT + 66 + 18 * len(arms)
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
          'font-family="sans-serif" font-size="12" role="img"><title>Losses against time and bytes sent</title>'
          '<rect width="100%" height="100%" fill="white"/>')
    print("\n".join(shapes) + "\n</svg>")


if __name__ == "__main__":
    main()
