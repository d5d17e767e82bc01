#!/usr/bin/env python3
"""Prints whether levels fitted to recent outer gradients beat the codecs' fixed ones: a table in docs/numerics.md.

    .venv/bin/python scripts/learned_levels.py runs/NAME/replica-0/outer_gradients ...     # needs numpy

The folders are written by runs with run.record_outer_gradients=1. For each fragment, Lloyd's algorithm fits levels to a
round's values, divided by their blocks' scales and weighted by the scales' squares, so that it minimises the squared
error of what is decoded. They encode the fragment's next round, as owners could agree on them, and the same round, which
is the best that any fit can do. Scales are not rounded.
"""
import pathlib
import re
import sys

import numpy

CODECS = {"4bit": (64, [24, 73, 124, 178, 238, 307, 392, 512]), "3bit": (64, [47, 146, 262, 425]), "2bit": (128, [89, 301])}
ITERATIONS = 30


def normalised(values, block):
    """Magnitudes divided by their block's largest one, and the squares of the latter."""
    blocks = numpy.abs(values[: len(values) // block * block].reshape(-1, block))
    scales = blocks.max(axis=1, keepdims=True)
    kept = scales[:, 0] > 0
    return (blocks[kept] / scales[kept]).reshape(-1), numpy.repeat(scales[kept, 0] ** 2, block)


def nearest(magnitudes, levels):
    return numpy.searchsorted((levels[1:] + levels[:-1]) / 2, magnitudes, side="right")


def fitted(magnitudes, weights, levels):
    for _ in range(ITERATIONS):
        chosen = nearest(magnitudes, levels)
        totals = numpy.bincount(chosen, weights, len(levels))
        sums = numpy.bincount(chosen, weights * magnitudes, len(levels))
        levels = numpy.where(totals > 0, sums / numpy.maximum(totals, 1e-300), levels)
    return levels


def squares(magnitudes, weights, levels):
    """The squared error, and the squares of the values."""
    error = levels[nearest(magnitudes, levels)] - magnitudes
    return weights @ error**2, weights @ magnitudes**2


def rounds_in(folder):
    """Files of each fragment, by step."""
    fragments = {}
    for file in sorted(pathlib.Path(folder).glob("step_*_fragment_*.f32")):
        fragments.setdefault(re.search(r"fragment_(\d+)", file.name)[1], []).append(file)
    return fragments.values()


def main():
    print("| codec | outer gradients | fixed levels | fitted to the last round | fitted to the same round |")
    print("| --- | --- | --- | --- | --- |")
    for name, (block, fixed) in CODECS.items():
        fixed = numpy.array(fixed) / 512
        for folder in sys.argv[1:]:
            sums = numpy.zeros((3, 2))
            for files in rounds_in(folder):
                last = None
                for file in files:
                    values = normalised(numpy.fromfile(file, "<f4").astype(float), block)
                    own = fitted(*values, fixed)
                    if last is not None:
                        sums += [squares(*values, levels) for levels in (fixed, last, own)]
                    last = own
            errors = [(error / power) ** 0.5 for error, power in sums]
            cells = [f"{errors[0]:.4f}", *(f"{error:.4f} ({100 * (error / errors[0] - 1):+.1f} %)" for error in errors[1:])]
            print(f"| `{name}` | {pathlib.Path(folder).parts[-3]} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
