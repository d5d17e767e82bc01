#!/usr/bin/env python3
"""Prints how stable the carry merge is with late results: the table in docs/learning.md, section "Late results".

    .venv/bin/python scripts/carry_stability.py            # needs numpy; takes seconds

In a direction of curvature s, relative to the inner optimizer's step, a replica's difference x to the mean obeys
m' = b m + (1 - b) s x, x' = x - m' between two rounds, where b is the inner momentum. A round sent every H steps and
applied tau steps later subtracts the x of the step at which it was sent. For each b, H and tau this prints the share of
directions in which differences grow from round to round; s is spaced evenly by its logarithm from 0.01 to
2 (1 + b) / (1 - b).
"""
import numpy

CASES = [(10, 0), (10, 1), (10, 2), (10, 4), (6, 4), (5, 2), (3, 1), (24, 10), (30, 3)]
MOMENTA = [0.95, 0.9, 0.85, 0.8, 0.7]
DIRECTIONS = 2000


def growth(s, b, interval, delay):
    """The spectral radius of one round as a map of the vector (x, m)."""
    step = numpy.array([[1 - (1 - b) * s, -b], [(1 - b) * s, b]])
    power = numpy.linalg.matrix_power
    taken_away = power(step, interval - delay) @ numpy.diag([1.0, 0.0])
    return numpy.abs(numpy.linalg.eigvals(power(step, interval) - taken_away)).max()


def unstable_share(b, interval, delay):
    limit = 2 * (1 + b) / (1 - b)  # above it a single replica diverges
    directions = numpy.geomspace(0.01, limit, DIRECTIONS, endpoint=False)
    return numpy.mean([growth(s, b, interval, delay) > 1 for s in directions])


def main():
    print("| `inner.beta1` | " + " | ".join(f"{interval}, {delay}" for interval, delay in CASES) + " |")
    print("| --- " * (len(CASES) + 1) + "|")
    for b in MOMENTA:
        print(f"| {b} | " + " | ".join(f"{100 * unstable_share(b, *case):.0f} %" for case in CASES) + " |", flush=True)


if __name__ == "__main__":
    main()
