"""Prints the cost of after_step() when nothing is due: overhead.py BUILD, with PYTHONPATH=BUILD/python. Not a test.

Runs one replica and a coordinator for 5,000 steps between two sends.
"""

import pathlib
import statistics
import sys
import tempfile
import time

import torch

HERE = pathlib.Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE / "workers")]
import conftest  # noqa: E402
import toy  # noqa: E402

import isthmus  # noqa: E402


def main():
    with tempfile.TemporaryDirectory() as folder:
        run = conftest.Run(pathlib.Path(folder), sys.argv[1], "", None)  # no workers: no nursery
        outer = {"sync_every": 6000, "num_fragments": 1, "sync_delay": 1, "min_replicas": 1}
        run.write_config(run={"steps": 5500, "trace_steps": 0}, replicas=1, outer=outer)
        run.start_coordinator()
        try:
            model = toy.Model(layers=32)
            took = []
            with isthmus.OuterLoop(run.config, model, name="eu", coordinator=run.address, quiet=True) as loop:
                for _ in range(5000):
                    begin = time.perf_counter_ns()
                    loop.after_step(1.0)
                    took.append((time.perf_counter_ns() - begin) / 1000)
                assert loop.step == len(took)
        finally:
            run.end()
    took.sort()
    print(
        f"after_step() with {sum(1 for _ in model.parameters())} tensors: median {statistics.median(took):.1f} us, "
        f"mean {statistics.fmean(took):.1f} us, 99th percentile {took[len(took) * 99 // 100]:.1f} us"
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
