#!/usr/bin/env python3
"""Draws some steps of the replicas' traces as an SVG, for documents. To explore a trace, open trace.json in
https://ui.perfetto.dev or chrome://tracing.

    scripts/draw_trace.py runs/NAME --from-step 130 --steps 24 > docs/trace.svg
"""
import argparse
import json
import pathlib

ROWS = ["train", "outer", "send", "reduce", "receive"]
COLOURS = {"train": "#4878a8", "outer_wait": "#c44e52", "fragment in flight": "#dd8452", "chunk": "#55a868",
           "reduce": "#8172b3", "encode": "#937860", "apply": "#da8bc3", "inner_step": "#2f5478"}
LEFT, WIDTH, HEIGHT, GAP = 150, 1000, 20, 4


def load(path):
    """Events of one trace; a file cut off by a crash lacks its closing bracket."""
    text = path.read_text().rstrip().rstrip(",")
    return json.loads(text if text.endswith("]") else text + "]")


def intervals(events):
    """(row, name, begin, end, args) of complete and paired asynchronous events, in microseconds."""
    rows = {e["tid"]: e["args"]["name"] for e in events if e.get("name") == "thread_name"}
    begun = {}
    for e in events:
        if e["ph"] == "X":
            yield rows[e["tid"]], e["name"], e["ts"], e["ts"] + e["dur"], e.get("args", {})
        elif e["ph"] == "b":
            begun[e["name"], e["id"]] = e
        elif e["ph"] == "e" and (e["name"], e["id"]) in begun:
            begin = begun.pop((e["name"], e["id"]))
            yield rows[begin["tid"]], e["name"], begin["ts"], e["ts"], begin.get("args", {})


def window(found, first, count):
    steps = {args["step"]: (begin, end) for _, name, begin, end, args in found if name == "train" and "step" in args}
    return steps[first][0], steps[first + count - 1][1]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=pathlib.Path)
    parser.add_argument("--from-step", type=int, default=130)
    parser.add_argument("--steps", type=int, default=24)
    options = parser.parse_args()
    replicas = {path.parent.name: list(intervals(load(path))) for path in sorted(options.run.glob("*/trace.json"))}
    begin, end = window(next(iter(replicas.values())), options.from_step, options.steps)
    scale = WIDTH / (end - begin)
    shapes, y = [], 30
    for replica, found in replicas.items():
        for row in ROWS:
            shapes.append(f'<text x="4" y="{y + 14}">{replica} {row}</text>')
            for of_row, name, b, e, _ in sorted(found, key=lambda i: i[2]):
                if of_row != row or e < begin or b > end:
                    continue
                # Fragments in flight overlap: each gets the upper half of the row, faint enough to see through.
                flight = name == "fragment in flight"
                x, w = LEFT + max(0, (b - begin) * scale), max(1, (min(e, end) - max(b, begin)) * scale)
                shapes.append(f'<rect x="{x:.1f}" y="{y}" width="{w:.1f}" height="{HEIGHT}" rx="2" '
                              f'fill="{COLOURS.get(name, "#999")}" opacity="{0.45 if flight else 0.95}"/>')
            y += HEIGHT + GAP
        y += 10
    legend = "".join(f'<rect x="{LEFT + i * 134}" y="6" width="12" height="12" fill="{c}"/>'
                     f'<text x="{LEFT + i * 134 + 16}" y="16">{n}</text>' for i, (n, c) in enumerate(COLOURS.items()))
    ruler = f'<text x="{LEFT}" y="{y + 12}">{(end - begin) / 1e6:.1f} s: steps {options.from_step} to ' \
            f'{options.from_step + options.steps - 1}</text>'
    width, height = LEFT + WIDTH + 40, y + 24
    print(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
          f'font-family="sans-serif" font-size="12" role="img"><title>Steps of {len(replicas)} replicas over time</title><rect width="100%" height="100%" fill="white"/>'
          f'{legend}{"".join(shapes)}{ruler}</svg>')


if __name__ == "__main__":
    main()
