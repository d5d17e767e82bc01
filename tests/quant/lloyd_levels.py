#!/usr/bin/env python3
"""Prints the levels in quant/formats.h, in 512ths: Lloyd's algorithm (Lloyd 1982, "Least squares quantization in
PCM") on Gaussian values, each block divided by its largest magnitude. The square of this magnitude weights the errors,
so that the algorithm minimises the error of the values before the division. Takes about half a minute."""

import random

BLOCK = 64
PIECE = 4096
KEPT = 64
BINS = 1 << 14  # number of bins for magnitudes up to 1
STEPS = 300


class Histogram:
    """Weights of magnitudes from 0 to 1, and their first moments, summed from below."""

    def __init__(self):
        self.weight = [0.0] * (BINS + 1)
        self.moment = [0.0] * (BINS + 1)

    def add_block(self, values, largest):
        square = largest * largest
        for value in values:
            bin_ = min(int(value / largest * BINS), BINS - 1) + 1
            self.weight[bin_] += square
            self.moment[bin_] += square * value / largest

    def accumulate(self):
        for i in range(BINS):
            self.weight[i + 1] += self.weight[i]
            self.moment[i + 1] += self.moment[i]

    def mean(self, low, high):
        """The mean of the magnitudes from low to high."""
        a, b = round(low * BINS), round(high * BINS)
        return (self.moment[b] - self.moment[a]) / (self.weight[b] - self.weight[a])


def lloyd(histogram, levels, last_is_fixed):
    """Moves each level to the mean of the magnitudes nearest to it, repeatedly."""
    for _ in range(STEPS):
        borders = [0.0] + [(a + b) / 2 for a, b in zip(levels, levels[1:])] + [1.0]
        means = [histogram.mean(a, b) for a, b in zip(borders, borders[1:])]
        levels = means[:-1] + [1.0 if last_is_fixed else means[-1]]
    return levels


def gaussian_blocks(draw, count):
    histogram = Histogram()
    for _ in range(count):
        block = [abs(draw.gauss(0, 1)) for _ in range(BLOCK)]
        histogram.add_block(block, max(block))
    histogram.accumulate()
    return histogram


def gaussian_pieces(draw, count):
    """Uses only the largest of every 4096 values, since the format sends no others."""
    histogram = Histogram()
    for _ in range(count):
        values = sorted((abs(draw.gauss(0, 1)) for _ in range(PIECE)), reverse=True)[:KEPT]
        histogram.add_block(values, values[0])
    histogram.accumulate()
    return histogram


def show(name, levels):
    print(f"{name:8}", " ".join(f"{level * 512:.1f}" for level in levels))


def main():
    draw = random.Random(1)
    blocks = gaussian_blocks(draw, 150_000)
    show("lloyd4", lloyd(blocks, [(i + 0.5) / 8 for i in range(7)] + [1.0], True))
    show("lloyd3", lloyd(blocks, [(i + 0.5) / 4 for i in range(4)], False))
    show("lloyd2", lloyd(blocks, [0.25, 0.75], False))
    show("TopkLevels", lloyd(gaussian_pieces(draw, 10_000), [0.65, 0.85], False))


if __name__ == "__main__":
    main()
