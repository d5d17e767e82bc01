#!/usr/bin/env python3
"""Prints how much of a mean outer gradient is left once its owner has encoded it: a table in docs/learning/codecs.md.

    .venv/bin/python scripts/codec_shrinkage.py            # needs numpy; takes seconds

Replicas' values are normal or Laplace distributed and correlate by 0.3 or 0.7. Each replica's are encoded and decoded,
and so is their mean. Printed is the projection of the result on the mean, the smallest and the largest of these cases.
"""
import numpy

CODECS = {"2bit": (128, [89, 301]), "3bit": (64, [47, 146, 262, 425]),  # block and levels, as in docs/numerics.md
          "4bit": (64, [24, 73, 124, 178, 238, 307, 392, 512])}
REPLICAS = [1, 2, 4, 8]
VALUES = 1 << 18


def encoded(values, block, levels):
    """The values after encoding and decoding; scales are not rounded."""
    levels = numpy.array(levels) / 512
    blocks = values.reshape(-1, block)
    scales = numpy.abs(blocks).max(axis=1, keepdims=True)
    nearest = numpy.searchsorted((levels[1:] + levels[:-1]) / 2, numpy.abs(blocks) / scales, side="right")
    return (numpy.sign(blocks) * levels[nearest] * scales).reshape(-1)


def projections(codec, replicas):
    random = numpy.random.default_rng(1)
    for draw in (random.standard_normal, lambda count: random.laplace(size=count)):
        for correlation in (0.3, 0.7):
            shared = draw(VALUES) * correlation**0.5
            sent = [encoded(shared + draw(VALUES) * (1 - correlation)**0.5, *codec) for _ in range(replicas)]
            mean = numpy.mean(sent, axis=0)
            yield encoded(mean, *codec) @ mean / (mean @ mean)


def main():
    print("| codec | " + " | ".join(f"{count}" for count in REPLICAS) + " |")
    print("| --- " * (len(REPLICAS) + 1) + "|")
    for name, codec in CODECS.items():
        ends = [[f"{end(list(projections(codec, count))):.2f}" for end in (min, max)] for count in REPLICAS]
        print(f"| `{name}` | " + " | ".join(" to ".join(dict.fromkeys(pair)) for pair in ends) + " |")


if __name__ == "__main__":
    main()
