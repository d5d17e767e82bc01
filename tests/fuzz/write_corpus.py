#!/usr/bin/env python3
"""Writes the seeds of the fuzzers: in corpus/decode/ a small valid stream of each codec, in corpus/round_trip/ values
for each codec, in corpus/log/ damage to a log, in corpus/tokenizer_json/ changes to a tokenizer.json, in
corpus/bpe_text/ texts, in corpus/id_files/ files of ids. fuzz_support.h describes the head of an input, fuzz_log.cpp
the damage."""

import pathlib
import struct

KINDS = ["fp32", "bf16", "int8", "int4", "e3m0", "lloyd4", "lloyd3", "lloyd2", "sign", "topk"]
BITS = {"int8": 8, "int4": 4, "e3m0": 4, "lloyd4": 4, "lloyd3": 3, "lloyd2": 2, "sign": 1}
ELEMENTS = 37
ONE = {0: b"\x80\x3f", 1: bytes([28 * 8 + 1]), 2: bytes([127])}  # by scale format


def head(kind, scale=0, stochastic=False, top_k=512, choice=255):
    return struct.pack(
        "<BBBHHB", KINDS.index(kind), scale | stochastic << 2, 0, top_k - 1, ELEMENTS, choice
    )


def stream(kind, scale):
    if kind == "fp32":
        return struct.pack("<37f", *(i / 8 - 2 for i in range(ELEMENTS)))
    if kind == "bf16":
        return b"\x80\x3f\x00\xbf" * ELEMENTS
    if kind == "topk":  # five of 37: positions 1, 2, 9, 16 and 36
        positions = sum(p << (12 * i) for i, p in enumerate((1, 2, 9, 16, 36)))
        return ONE[0] + positions.to_bytes(8, "little") + b"\xe4\x01"
    group = 128 if BITS[kind] == 3 else 128 // BITS[kind]
    codes = -(-ELEMENTS // group) * group * BITS[kind] // 8
    return ONE[scale] * 3 + bytes(i * 37 % 256 for i in range(codes))


def values():
    strange = [0.0, -0.0, 2.0**-149, -(2.0**-126), 2.0**-120, 1.0, -1.5, 2.0**100, 1 / 3]
    return struct.pack(f"<{len(strange)}f", *strange)


def log_edits(good, *edits):
    """An input of fuzz_log. An edit is (file, 1 to cut it, place, byte to add)."""
    return bytes([good]) + b"".join(struct.pack("<BHB", file | cut << 6, at, add) for file, cut, at, add in edits)


LOG_EDITS = {
    "sound": log_edits(0),
    "torn": log_edits(0, (0, 1, 700, 0)),
    "flipped": log_edits(0, (1, 0, 80, 1)),
    "other_snapshot": log_edits(1, (0, 0, 60, 7)),
    "other_result": log_edits(1, (1, 0, 240, 1)),
    "other_round": log_edits(1, (0, 0, 8, 1)),
    "other_header": log_edits(3, (2, 0, 20, 1)),
    "fewer_elements": log_edits(3, (2, 0, 64, 255)),
}


# Merge patches for fuzz_tokenizer_json.
TOKENIZER_CHANGES = {
    "pattern": """{"pre_tokenizer": {"type": "Split", "pattern": {"Regex": "(?i:a|[^\\\\s-x])+?|\\\\p{L}{2,3}"}}}""",
    "sequence": """{"pre_tokenizer": {"pretokenizers": [{"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false}]}}""",
    "vocab": """{"model": {"vocab": {"zz": 263, "a": null}, "merges": ["a b", ["a", "a"]], "ignore_merges": true}}""",
    "added": """{"added_tokens": [{"id": 263, "content": "</s>", "single_word": false, "lstrip": true, "rstrip": true, "normalized": true, "special": true}]}""",
    "normalizer": """{"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}]}, "post_processor": {"type": "ByteLevel"}}""",
}
BPE_TEXTS = {
    "words": "the baab thethe aaaaaaab 'S 'll 12345 \r\n\n  <|endoftext|>",
    "unicode": "é e\u0301 語 \u00a0\u2028\u3000 \u0665 😀\U0010ffff",
}


def main():
    corpus = pathlib.Path(__file__).parent / "corpus"
    for folder in ("bpe_text", "decode", "id_files", "log", "round_trip", "tokenizer_json"):
        (corpus / folder).mkdir(parents=True, exist_ok=True)
    for i, kind in enumerate(KINDS):
        scale = i % 3 if kind in BITS else 0
        (corpus / "decode" / kind).write_bytes(head(kind, scale) + stream(kind, scale))
        (corpus / "round_trip" / kind).write_bytes(head(kind, 0, i % 2 == 1, choice=i) + values())
    for name, edits in LOG_EDITS.items():
        (corpus / "log" / name).write_bytes(edits)
    for name, change in TOKENIZER_CHANGES.items():
        (corpus / "tokenizer_json" / name).write_text("0" + change)
    for name, text in BPE_TEXTS.items():
        (corpus / "bpe_text" / name).write_bytes(text.encode())
    (corpus / "bpe_text" / "no_utf8").write_bytes(b"the \xff\xc0\x80\xed\xa0\x80\xf0\x9f the\xe8\xaa")
    ids = struct.pack("<40H", *range(40))
    header = lambda magic, version, count: struct.pack("<3i", magic, version, count) + bytes(1012)
    index = (b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 8, 3, 4) + struct.pack("<3i", 10, 20, 10)
             + struct.pack("<3q", 0, 20, 60) + struct.pack("<4q", 0, 1, 2, 3))
    for name, data in {
        "nanogpt": b"\0" + ids,
        "llmc": b"\0" + header(20240520, 1, 40) + ids,
        "llmc_wide": b"\2" + header(20240801, 7, 20) + ids,
        "megatron": b"\1" + struct.pack("<H", len(index)) + index + ids,
    }.items():
        (corpus / "id_files" / name).write_bytes(data)


if __name__ == "__main__":
    main()
