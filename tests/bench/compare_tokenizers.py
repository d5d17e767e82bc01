#!/usr/bin/env python3
"""compare_tokenizers.py ENCODE_TEXT [TOKENIZER.json ...] [--text FILE] [--rounds N]: compares the speed of Isthmus and
the `tokenizers` package. Both encode the same text in the same pieces of 1 MiB, with one thread each, alternately.
Without a TOKENIZER.json it trains tokenizers like those of GPT-2, Llama 3 and Qwen 2 on text of this machine. Prints a
line of JSON for each: MB/s (medians) and the ratio, ours divided by theirs; and MB/s of the tokenizer `bytes`.
ENCODE_TEXT is build/release/tests/data/encode_text.

    .venv/bin/python tests/bench/compare_tokenizers.py build/release/tests/data/encode_text
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "data"))
from tokenizers_test import Kinds, Tokenizer, pieces_of, real_text  # one thread: the module sets TOKENIZERS_PARALLELISM

PIECE = 1 << 20


class Ours:
    def __init__(self, program, tokenizer, text_file):
        self.process = subprocess.Popen(
            [program, tokenizer, text_file, str(PIECE)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        answer = json.loads(self.process.stdout.readline())
        self.ids = answer["ids"]
        return answer["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


class Theirs:
    """Uses encode_batch_fast, which omits offsets: the package's fastest function."""

    def __init__(self, tokenizer, text):
        self.tokenizer = Tokenizer.from_file(str(tokenizer))
        self.pieces = [piece.decode() for piece in pieces_of(text, PIECE)]

    def seconds(self):
        start = time.perf_counter()
        self.ids = 0
        for piece in self.pieces:
            [encoding] = self.tokenizer.encode_batch_fast([piece], add_special_tokens=False)
            self.ids += len(encoding.ids)
        return time.perf_counter() - start


def main():
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("encode_text")
    arguments.add_argument("tokenizers", nargs="*")
    arguments.add_argument("--text")
    arguments.add_argument("--rounds", type=int, default=5)
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        text_file = pathlib.Path(options.text) if options.text else folder / "text"
        if not options.text:
            text_file.write_text(real_text(10_000_000))
        text = text_file.read_bytes()
        files = options.tokenizers
        if not files:
            kinds = Kinds(folder, text.decode(), vocab=32000)
            files = [kinds.gpt2(), kinds.llama3(), kinds.qwen2()]
        for file in files:
            compare(options, pathlib.Path(file), text_file, text)
        ours = Ours(options.encode_text, "bytes", text_file)
        speeds = [len(text) / ours.seconds() / 1e6 for _ in range(options.rounds)]
        ours.close()
        print(json.dumps({"tokenizer": "bytes", "bytes": len(text), "ours_MBps": round(statistics.median(speeds), 1)}))


def compare(options, file, text_file, text):
    ours, theirs = Ours(options.encode_text, file, text_file), Theirs(file, text)
    times = [(ours.seconds(), theirs.seconds()) for _ in range(options.rounds)]
    ours.close()
    if ours.ids != theirs.ids:
        sys.exit(f"{file}: {ours.ids} ids, but tokenizers gives {theirs.ids}")
    ours_speed, theirs_speed = (len(text) / statistics.median(seconds) / 1e6 for seconds in zip(*times))
    result = {
        "tokenizer": file.name,
        "bytes": len(text),
        "ids": ours.ids,
        "ours_MBps": round(ours_speed, 1),
        "tokenizers_MBps": round(theirs_speed, 1),
        "ratio": round(ours_speed / theirs_speed, 2),
        "rounds": options.rounds,
    }
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
