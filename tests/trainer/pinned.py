#!/usr/bin/env python3
"""Prints the pinned values of adamw_test.cpp and parameter_table_test.cpp, computed from the formulas in adamw.h and
parameter_table.h with Python's doubles. Rounding to fp32 after every operation gives the results of fp32 hardware,
since 53 >= 2 * 24 + 2 bits. Run it when a formula changes on purpose."""

import hashlib
import math
import struct


def f32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def mix64(x):
    mask = 2**64 - 1
    x = (x + 0x9E3779B97F4A7C15) & mask
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 & mask
    x = (x ^ x >> 27) * 0x94D049BB133111EB & mask
    return x ^ x >> 31


def random_bits(seed, stream, counter):
    return mix64(mix64(mix64(seed) ^ stream) ^ counter)


def numbers(stream, n, scale):
    units = ((random_bits(9, stream, i) >> 40) * 2.0**-24 for i in range(n))
    return [f32(f32(u - 0.5) * f32(scale)) for u in units]


def norm(g, block=4096, lanes=16):
    total = 0.0
    for begin in range(0, len(g), block):
        sums = [0.0] * lanes
        for i, x in enumerate(g[begin : begin + block]):
            sums[i % lanes] += x * x
        part = 0.0
        for s in sums:
            part += s
        total += part
    return math.sqrt(total)


def bf16(x):
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    return (bits + 0x7FFF + (bits >> 16 & 1)) >> 16


def adamw(n=1003, lr=3e-3, beta1=0.9, beta2=0.99, eps=1e-8, decay=0.1, clip=0.5):
    p, m, v = numbers(0, n, 2.0), [0.0] * n, [0.0] * n
    power1 = power2 = 1.0
    for t in range(1, 4):
        g = numbers(t, n, 0.1)
        length = norm(g)
        scale = f32(clip / length) if length > clip else 1.0
        power1 *= beta1
        power2 *= beta2
        rate, scale_v, keep = f32(lr / (1 - power1)), f32(1 / (1 - power2)), f32(1 - lr * decay)
        b1, o1, b2, o2, e = map(f32, (beta1, 1 - beta1, beta2, 1 - beta2, eps))
        for i in range(n):
            x = f32(scale * g[i])
            m[i] = f32(f32(b1 * m[i]) + f32(o1 * x))
            v[i] = f32(f32(b2 * v[i]) + f32(o2 * f32(x * x)))
            root = f32(f32(math.sqrt(f32(v[i] * scale_v))) + e)
            p[i] = f32(f32(keep * p[i]) - f32(rate * f32(m[i] / root)))
    packed = [struct.pack(f"<{n}f", *x) for x in (p, m, v)] + [struct.pack(f"<{n}H", *map(bf16, p))]
    return hashlib.sha256(b"".join(packed)).hexdigest()


def initial_parameters(seed=42, std=0.2):
    """The tests' small model in three fragments: dim 16, 4 heads of 4, 2 key heads, feed-forward 24, 31 ids."""
    values = []

    def normals(name, n, deviation=std):
        stream = 0xCBF29CE484222325
        for c in name.encode():
            stream = (stream ^ c) * 0x100000001B3 % 2**64
        for i in range(n):
            words = [random_bits(seed, stream, 4 * i + k) for k in range(4)]
            total = 6 + sum(w >> shift & 0x1FFFFF for w in words for shift in (0, 21, 42))
            values.append(f32((total * 2.0**-21 - 6) * deviation))

    def ones(n):
        values.extend([1.0] * n)
        values.extend([0.0] * (-len(values) % 64))

    for layer in range(2):
        at = f"model.layers.{layer}."
        for part, n in (("q", 256), ("k", 128), ("v", 128)):
            normals(f"{at}self_attn.{part}_proj.weight", n)
        normals(at + "self_attn.o_proj.weight", 256, std / math.sqrt(4.0))
        normals(at + "mlp.gate_proj.weight", 384)
        normals(at + "mlp.up_proj.weight", 384)
        normals(at + "mlp.down_proj.weight", 384, std / math.sqrt(4.0))
        ones(16 + 16 + 4 + 4)
    normals("model.embed_tokens.weight", 31 * 16)
    normals("lm_head.weight", 31 * 16)
    values.extend([1.0] * 16)
    return hashlib.sha256(struct.pack(f"<{len(values)}f", *values)).hexdigest()


print("AdamW, three steps:", adamw())
print("norm of 10007 numbers: 0x%016x" % struct.unpack("<Q", struct.pack("<d", norm(numbers(3, 10007, 2.0)))))
print("initial parameters:", initial_parameters())
