#!/usr/bin/env python3
"""Chooses the constants of outer.auto during a run (ReplanTuning) on simulated link histories; docs/plan.md has the table.

    scripts/tune_replanner.py --seed 1 [--program build/release/bench/bench_replan] [--compare NAME=VALUE ...]

Each constant has one of the plain values in GRID. The score of a set of constants is the mean over histories of
  100 x lost                share of the time lost below the wanted utilisation, or below the highest possible one,
  + 2 x log2(cost)          learning cost, relative to the cheapest sufficient settings of each moment,
  + 0.05 x changes an hour  so that a change counts like 1.8 s of computing.
The smallest is best. On the quickstart a doubling of the interval costs about 2 % of loss (docs/learning/late-results.md).
The search scores random sets on a few histories and the best of them on many. From the best one, and from the hand-set
constants, it moves one constant at a time to a neighbouring value as long as that helps. It prints the better end, and
compares it with the hand-set constants on histories of another seed. With --compare it compares the given constants
instead. The output depends on the seed alone.
"""

import argparse
import json
import math
import pathlib
import random
import subprocess
import sys

GRID = {
    "margin_up": [0, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4],
    "margin_down": [0.1, 0.2, 0.25, 1 / 3, 0.4, 0.5, 0.6],
    "tolerated": [0, 0.1, 0.2, 0.35, 0.5, 0.75, 1],
    "gain_part": [0.1, 0.25, 0.5, 0.75, 1],
    "cheaper": [0.5, 0.6, 2 / 3, 0.75, 0.8, 0.9],
    "alike": [0.02, 0.05, 0.1, 0.15],
    "intervals_between": [0, 1, 2, 3, 4, 6],
    "confirmed": [0.15, 0.25, 0.35, 0.5, 0.75, 1],
    "readings": [3, 5, 7, 9, 11, 15],
}
HAND_SET = {"margin_up": 0.1, "margin_down": 1 / 3, "tolerated": 0.2, "gain_part": 0.25, "cheaper": 2 / 3, "alike": 0.05,
            "intervals_between": 2, "confirmed": 0.25, "readings": 5}
HELD_OUT = 1_000_000  # added to the seed


def points(history, seconds):
    return 100 * history["lost"] + 2 * math.log2(history["cost"]) + 0.05 * history["changes"] * 3600 / seconds


class Histories:
    """A running bench_replan, which keeps its histories and predictions; remembers the answers."""

    def __init__(self, program, seed, each, seconds):
        words = ["--seed", seed, "--each", each, "--seconds", seconds, "--lines"]
        self.process = subprocess.Popen([program, *map(str, words)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.seconds, self.known = seconds, {}

    def of(self, constants):
        line = " ".join(f"{name}={value}" for name, value in sorted(constants.items()))
        if line not in self.known:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
            answer = self.process.stdout.readline()
            if not answer:
                sys.exit("tune_replanner.py: bench_replan has ended; its message is above")
            self.known[line] = json.loads(answer)["histories"]
        return self.known[line]

    def score(self, constants):
        found = self.of(constants)
        return sum(points(history, self.seconds) for history in found) / len(found)


def neighbours(constants, name):
    values = GRID[name]
    at = values.index(constants[name])
    return [{**constants, name: values[place]} for place in (at - 1, at + 1) if 0 <= place < len(values)]


def refined(constants, score, tried):
    """Moves one constant at a time to a neighbouring value as long as that helps, with at most `tried` more sets."""
    best, known, improved = constants, set(), True
    while improved:
        improved = False
        for name in GRID:  # in turn, each from the best set so far
            for other in neighbours(best, name):
                if len(known) >= tried:
                    return best
                known.add(str(other))
                if score(other) < score(best):
                    best, improved = other, True
                    break
    return best


def search(options, say):
    few = Histories(options.program, options.seed, options.few, options.seconds)
    many = Histories(options.program, options.seed, options.many, options.seconds)
    dice = random.Random(options.seed)
    drawn = [{name: dice.choice(values) for name, values in GRID.items()} for _ in range(options.random)]
    drawn.sort(key=few.score)
    begins = [min(drawn[: max(1, options.random // 8)], key=many.score), HAND_SET]
    ends = [refined(begin, many.score, options.moves) for begin in begins]
    for begin, end in zip(begins, ends):
        say(f"from {many.score(begin):.3f} to {many.score(end):.3f}: {end}")
    return min(ends, key=many.score)


def mean(values):
    values = list(values)
    return sum(values) / len(values)


def row(name, found, seconds):
    hours = seconds / 3600
    return (
        f"| {name} | {mean(points(h, seconds) for h in found):.2f} | {100 * mean(h['utilization'] for h in found):.2f} % | "
        f"{100 * mean(h['lost'] for h in found):.2f} % | {mean(h['cost'] for h in found):.3f} | "
        f"{mean(h['changes'] for h in found) / hours:.1f} | {100 * mean(h['below'] for h in found) / seconds:.1f} % |"
    )


def compare(options, constants):
    """Prints the tables; returns the mean difference of the scores and its standard error."""
    held_out = Histories(options.program, options.seed + HELD_OUT, options.held_out, options.seconds)
    sets = {"hand-set": held_out.of(HAND_SET), "tuned": held_out.of(constants)}
    print("| constants | score | utilisation | lost | learning cost | changes an hour | time below |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, found in sets.items():
        print(row(name, found, options.seconds))
    print("\n| kind | " + " | ".join(f"{name}: score; lost, cost, changes" for name in sets) + " |")
    print("| --- | --- | --- |")
    for kind in dict.fromkeys(h["kind"] for h in sets["tuned"]):
        cells = []
        for found in sets.values():
            own = [h for h in found if h["kind"] == kind]
            changes = mean(h["changes"] for h in own) * 3600 / options.seconds
            score = mean(points(h, options.seconds) for h in own)
            cells.append(f"{score:.2f}; {100 * mean(h['lost'] for h in own):.2f} %, {mean(h['cost'] for h in own):.3f}, {changes:.1f}")
        print(f"| {kind.replace('_', ' ')} | " + " | ".join(cells) + " |")
    apart = [points(b, options.seconds) - points(a, options.seconds) for a, b in zip(*sets.values())]
    middle = mean(apart)
    error = math.sqrt(sum((value - middle) ** 2 for value in apart) / (len(apart) - 1) / len(apart))
    print(f"\ntuned minus hand-set, {len(apart)} held-out histories: {middle:+.3f} +- {2 * error:.3f} (two standard errors)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("build/release/bench/bench_replan"))
    parser.add_argument("--seconds", type=int, default=2400, help="of a history")
    parser.add_argument("--random", type=int, default=64, help="sets that are drawn at random")
    parser.add_argument("--moves", type=int, default=20, help="sets that are tried from each of the two beginnings")
    parser.add_argument("--few", type=int, default=1, help="histories of each kind for random sets")
    parser.add_argument("--many", type=int, default=4, help="histories of each kind for the others")
    parser.add_argument("--held-out", type=int, default=12, help="held-out histories of each kind")
    parser.add_argument("--compare", nargs="+", metavar="NAME=VALUE", help="compare these constants, without a search")
    options = parser.parse_args()
    if options.compare:
        constants = dict(word.split("=") for word in options.compare)
    else:
        constants = search(options, lambda line: print(line, file=sys.stderr, flush=True))
    print("constants: " + " ".join(f"{name}={value}" for name, value in constants.items()) + "\n")
    compare(options, constants)
    return 0


if __name__ == "__main__":
    sys.exit(main())
