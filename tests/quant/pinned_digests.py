#!/usr/bin/env python3
"""Writes pinned_digests.inc, the digests that codec_layout_test.cpp compares with those of the codecs. It follows the
formats' definitions with exact fractions and linear search instead of the codecs' optimisations. `--check` compares the
file instead of writing it. Run it when a format changes on purpose."""

import hashlib
import math
import pathlib
import struct
import sys
from collections import namedtuple
from fractions import Fraction

KEY = 0x0123456789ABCDEF
FIRST_ELEMENT = 8192  # element number of the first value, which its noise depends on
PIECE = 4096

Spec = namedtuple("Spec", "kind block scale clip rounding top_k")


# ---- fp32 ----


def f32(x):
    """Rounds to fp32. This gives the correctly rounded sum, product or quotient of two fp32, computed in double."""
    return struct.unpack("<f", struct.pack("<f", x))[0]


def is_negative(x):
    return math.copysign(1, x) < 0


def bits_of(x):
    return struct.unpack("<I", struct.pack("<f", x))[0]


def bf16_value(bits):
    return struct.unpack("<f", struct.pack("<I", bits << 16))[0]


def bf16_neighbour(x):
    """Bits of the bfloat16 at x or next to it towards zero, and the fraction of the way from there to the next one."""
    below = bits_of(x) >> 16
    low, high = Fraction(bf16_value(below)), Fraction(bf16_value(below + 1))
    return below, (Fraction(x) - low) / (high - low)


def bf16(x):
    """Bits of the nearest bfloat16, ties to even."""
    below, part = bf16_neighbour(x)
    return below + (part > Fraction(1, 2) or (part == Fraction(1, 2) and below % 2 == 1))


# ---- random numbers ----


def mix64(x):
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def random_bits(seed, stream, counter):
    return mix64(mix64(mix64(seed) ^ stream) ^ counter)


def noise_bits(element):
    """32 bits of the noise of one element."""
    mask = 2**32 - 1
    x = (element + KEY) & mask
    x = (x ^ x >> 16) * 0x7FEB352D & mask
    x = ((x ^ x >> 15) + (KEY >> 32)) * 0x846CA68B & mask
    x = (x ^ x >> 16) * 0x9E3779B1 & mask
    return x ^ x >> 15


def noise_unit(element):
    return (noise_bits(element) >> 8) / 2**24


# ---- inputs ----


def wide(n):
    """Values of many magnitudes, 128 at a time."""
    return scattered(n, -40, 60)


def narrow(n):
    """Like wide(), within the range of e5m3."""
    return scattered(n, -33, 35)


def scattered(n, lowest, exponents):
    unit = lambda i: (random_bits(7, 0, i) >> 40) / 2**24
    return [math.ldexp(2 * unit(i) - 1, random_bits(7, 1, i // 128) % exponents + lowest) for i in range(n)]


def coarse(n):
    """Few different values: ties between levels, and between elements that topk may keep."""
    return [f32((random_bits(7, 2, i) % 33 - 16) / 16) for i in range(n)]


# ---- scales ----

E5M3 = [Fraction(0)] + [Fraction(8 + m, 8) * Fraction(2) ** (e - 28) for e in range(32) for m in range(8)][:255]


def scale_of(spec, absmax, wanted):
    """Code and value of a block's scale; a block below the smallest scale has 0."""
    smallest = Fraction(2) ** (-28 if spec.scale == "e5m3" else -120)
    if Fraction(absmax) < smallest:
        return 0, 0.0
    wanted = max(Fraction(wanted), smallest)
    if spec.scale == "bf16":
        code = bf16(float(wanted))
        return code, bf16_value(code)
    if spec.scale == "e5m3":
        code = min(range(1, 256), key=lambda c: (abs(E5M3[c] - wanted), -c))
        return code, float(E5M3[code])
    exponent = math.frexp(float(wanted))[1] - 1  # wanted is in [1, 2) times this power of two
    exponent += wanted / Fraction(2) ** exponent >= Fraction(f32(math.sqrt(2)))
    return exponent + 127, math.ldexp(1, exponent)


def mean_magnitude(block):
    """Computes sixteen partial sums, then adds them in order."""
    sums = [0.0] * 16
    for i, v in enumerate(block):
        sums[i % 16] = f32(sums[i % 16] + abs(v))
    total = 0.0
    for s in sums:
        total = f32(total + s)
    return f32(total / len(block))


# ---- codes ----

LEVELS = {
    "int8": range(128),
    "int4": range(8),
    "e3m0": [0] + [Fraction(1, 2**e) for e in range(6, -1, -1)],
    "lloyd4": [Fraction(i, 512) for i in (24, 73, 124, 178, 238, 307, 392, 512)],
    "lloyd3": [Fraction(i, 512) for i in (47, 146, 262, 425)],
    "lloyd2": [Fraction(i, 512) for i in (89, 301)],
    "sign": [Fraction(1)],
    "topk": [Fraction(i, 512) for i in (340, 424)],
}
UNIT = {"int8": 127, "int4": 7}
BITS = {"int8": 8, "int4": 4, "e3m0": 4, "lloyd4": 4, "lloyd3": 3, "lloyd2": 2, "sign": 1, "topk": 2}


def nearest(kind, magnitude):
    """Index of the nearest level; in a tie, the even one for int formats, else the larger."""
    levels = LEVELS[kind]
    if kind in UNIT:
        return min(round(Fraction(magnitude)), levels[-1])
    return min(range(len(levels)), key=lambda i: (abs(Fraction(magnitude) - levels[i]), -i))


def drawn(kind, magnitude, negative, u):
    """Index and sign by stochastic rounding: a level's range begins at a random place above the level below it."""
    levels = [float(level) for level in LEVELS[kind]]
    if kind in UNIT:
        return min(math.floor(f32(magnitude + u)), UNIT[kind]), negative
    begins = [f32(a + f32(u * (b - a))) for a, b in zip(levels, levels[1:])]
    smallest = levels[0]
    if smallest > 0 and magnitude < f32(smallest - f32(u * 2 * smallest)):
        negative = not negative
    return sum(magnitude >= begin for begin in begins), negative


def code(spec, value, inverse, element):
    in_scales = f32(value * inverse)
    negative = is_negative(in_scales)
    if spec.rounding == "nearest":
        index = nearest(spec.kind, abs(in_scales))
    else:
        index, negative = drawn(spec.kind, abs(in_scales), negative, noise_unit(element))
    return index | negative << (BITS[spec.kind] - 1)


# ---- packing ----


def rows(codes, bits):
    """16 bytes of the codes of 128 / bits elements."""
    return bytes(sum(c << (bits * r) for r, c in enumerate(codes[j::16])) for j in range(16))


def group(codes, bits):
    if bits != 3:
        return rows(codes, bits)
    indices, signs = [c & 3 for c in codes], [c >> 2 for c in codes]
    return rows(indices[:64], 2) + rows(indices[64:], 2) + rows(signs, 1)


def encode_blocks(spec, values):
    scales, codes = b"", []
    bits = BITS[spec.kind]
    factor = f32(f32(spec.clip) / UNIT.get(spec.kind, 1))
    for begin in range(0, len(values), spec.block):
        block = values[begin : begin + spec.block]
        absmax = max(map(abs, block))
        from_mean = spec.kind == "sign" and spec.rounding == "nearest"
        stored, scale = scale_of(spec, absmax, mean_magnitude(block) if from_mean else f32(absmax * factor))
        scales += stored.to_bytes(2 if spec.scale == "bf16" else 1, "little")
        inverse = f32(1 / scale) if stored else 0.0
        codes += [code(spec, v, inverse, FIRST_ELEMENT + begin + i) for i, v in enumerate(block)]
    length = 128 if bits == 3 else 128 // bits
    while len(codes) % length:
        codes.append(code(spec, 0.0, 0.0, FIRST_ELEMENT + len(codes)))
    return scales + b"".join(group(codes[i : i + length], bits) for i in range(0, len(codes), length))


def encode_topk(spec, values):
    out = b""
    for begin in range(0, len(values), PIECE):
        v = values[begin : begin + PIECE]
        kept = -(-spec.top_k * len(v) // PIECE)
        positions = sorted(sorted(range(len(v)), key=lambda i: (-abs(v[i]), i))[:kept])
        absmax = max(map(abs, v))
        stored, scale = scale_of(spec._replace(scale="bf16"), absmax, absmax)
        inverse = f32(1 / scale) if stored else 0.0
        codes = [code(spec, v[i], inverse, FIRST_ELEMENT + begin + i) for i in positions]
        out += struct.pack("<H", stored)
        out += sum(p << (12 * i) for i, p in enumerate(positions)).to_bytes((12 * kept + 7) // 8, "little")
        out += sum(c << (2 * i) for i, c in enumerate(codes)).to_bytes((kept + 3) // 4, "little")
    return out


def drawn_bf16(x, element):
    """Rounds up with the probability of the fraction that is cut off, in steps of 2^-16."""
    below, part = bf16_neighbour(x)
    return below + (part * 2**16 + (noise_bits(element) >> 16) >= 2**16)


def encode(spec, values):
    if spec.kind == "fp32":
        return b"".join(struct.pack("<f", v) for v in values)
    if spec.kind == "bf16":
        one = (lambda i, v: bf16(v)) if spec.rounding == "nearest" else lambda i, v: drawn_bf16(v, FIRST_ELEMENT + i)
        return b"".join(struct.pack("<H", one(i, v)) for i, v in enumerate(values))
    return encode_topk(spec, values) if spec.kind == "topk" else encode_blocks(spec, values)


# ---- pinned cases ----


def cases():
    """Spec, input and number of values: partial blocks and groups, odd tails."""
    yield Spec("fp32", 64, "bf16", 1, "nearest", 64), wide, 37
    for rounding in ("nearest", "stochastic"):
        yield Spec("bf16", 64, "bf16", 1, rounding, 64), wide, 1189
        for kind in list(LEVELS)[:-1]:
            yield Spec(kind, 64, "bf16", 1, rounding, 64), wide, 1189
            yield Spec(kind, 16, "e8m0", 1, rounding, 64), wide, 531
            yield Spec(kind, 128, "e5m3", 0.75, rounding, 64), narrow, 1189
            yield Spec(kind, 32, "bf16", 0.9, rounding, 64), coarse, 305
            yield Spec(kind, 1024, "bf16", 1, rounding, 64), wide, 1500
        yield Spec("topk", 64, "bf16", 1, rounding, 64), wide, 4096 + 777
        yield Spec("topk", 64, "bf16", 1, rounding, 300), coarse, 4096 + 33
        yield Spec("topk", 64, "bf16", 1, rounding, 1), coarse, 5


def line(spec, make, n):
    digest = hashlib.sha256(encode(spec, make(n))).hexdigest()
    return (
        f"{{{{CodecKind::{spec.kind}, {spec.block}, ScaleFormat::{spec.scale}, {spec.clip}F, "
        f"Rounding::{spec.rounding}, {spec.top_k}}}, &{make.__name__}, {n},\n"
        f' "{digest}"}},\n'
    ).replace(" 1F,", " 1.0F,")


def main():
    text = "// Written by pinned_digests.py.\n" + "".join(line(*case) for case in cases())
    path = pathlib.Path(__file__).with_name("pinned_digests.inc")
    if sys.argv[1:] != ["--check"]:
        path.write_text(text)
    elif path.read_text() != text:
        sys.exit(f"{path} differs from this script's output")


if __name__ == "__main__":
    main()
