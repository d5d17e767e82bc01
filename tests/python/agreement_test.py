"""Compares the binding with plain PyTorch and with the C++ outer loop."""

import json
import math
import pathlib
import struct
import random
import sys

import pytest
import torch

sys.path.insert(0, str(pathlib.Path(__file__).parent / "workers"))
import toy  # noqa: E402
from plain_diloco import PlainDiloco  # noqa: E402

import isthmus._placement as placement  # noqa: E402

NAMES = ("eu", "us")


@pytest.mark.parametrize("alpha", [0.5, None], ids=["alpha", "carry"])
def test_global_parameters_are_those_of_plain_pytorch_over_twenty_rounds(run, alpha):
    every, delay, steps = 6, 2, 42
    merge = {"merge": "carry"} if alpha is None else {"merge": "alpha", "merge_alpha": alpha}
    optimizer = {"lr": 0.6, "momentum": 0.8, "average_first": 0, "average_last": 0}
    outer = {"sync_every": every, "sync_delay": delay, "optimizer": optimizer, **merge}
    run.write_config(run={"steps": steps}, outer=outer)
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--record", f"{name}.pt")
    run.finish()
    recorded = torch.load(run.folder / "eu.pt", weights_only=True)
    for mine, others in zip(recorded, torch.load(run.folder / "us.pt", weights_only=True)):
        assert all(torch.equal(mine[name], others[name]) for name in mine)

    models = [toy.Model() for _ in NAMES]
    optimizers = [toy.optimizer_of(model) for model in models]
    shapes = {name: tuple(p.shape) for name, p in models[0].named_parameters()}
    plain = PlainDiloco(models, placement.by_layers(shapes, 3), every, delay, alpha, 0.6, 0.8)
    for step in range(1, steps + 1):
        for name, model, optimizer in zip(NAMES, models, optimizers):
            toy.loss_of(model, name, step).backward()
            optimizer.step()
            optimizer.zero_grad()
        plain.after_step()
        if step == steps:
            plain.finish()
        for name, value in plain.globals.items():
            torch.testing.assert_close(recorded[step - 1][name], value, rtol=2e-4, atol=2e-6, msg=f"{name}, step {step}")
    assert run.report("eu")["rounds"] >= 20


def test_replicas_average_in_pairs_and_their_rounds_stay_agreed(run):
    run.write_config(run={"steps": 200}, outer={"sync_every": 64, "sync_delay": 1, "gossip_every": 30})
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--record", f"{name}.pt")
    run.finish()
    ours, others = (torch.load(run.folder / f"{name}.pt", weights_only=True) for name in NAMES)
    assert len(ours) == len(others) == 200
    for mine, theirs in zip(ours, others):
        assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert sum(run.report(name)["exchanges_averaged"] for name in NAMES) > 0


def write_job(run, steps):
    """Writes a job for each replica: the placement of its parameters, and a table of inner steps."""
    shapes = {"inlet.weight": (40, 30), "inlet.bias": (40,)}
    for layer in range(3):
        shapes |= {f"layers.{layer}.weight": (50, 30), f"layers.{layer}.bias": (7,)}
    place = placement.place(shapes, 3, None, None)
    for replica, name in enumerate(NAMES):
        # The initial values are the same for all replicas, the steps are not; padding stays zero.
        rows = []
        for row in range(steps + 1):
            chance = random.Random(f"{replica if row else 'all'} {row}")
            flat = [0.0] * place.size
            for _, shape, begin in place.tensors:
                for i in range(begin, begin + math.prod(shape)):
                    flat[i] = chance.gauss(0, 0.02)
            rows += flat
        file = run.folder / f"{name}.f32"
        file.write_bytes(struct.pack(f"<{len(rows)}f", *rows))
        job = {"tensors": place.tensors, "fragments": place.fragments, "tokens": 64, "values": str(file)}
        (run.folder / f"{name}.json").write_text(json.dumps(job))


def hash_of(run, kinds, steps):
    """The global hash of a run with replicas of these kinds."""
    run.write_config(run={"steps": steps}, outer={"codec": "4bit", "error_feedback": True, "merge": "alpha", "merge_alpha": 0.3})
    run.start_coordinator()
    for name, kind in zip(NAMES, kinds):
        job = run.folder / f"{name}.json"
        if kind == "python":
            run.start_worker(name, "table.py", "--job", job)
        else:
            run.start(name, [run.cpp / "table_worker", run.config, run.address, name, job])
    run.finish()
    hashes = {run.hash_of(name) for name in NAMES}
    assert len(hashes) == 1 and run.report("eu")["global_hash"] in hashes
    run.processes.clear()
    return hashes.pop()


def test_the_global_hash_is_that_of_the_cpp_loop_bit_for_bit(run):
    steps = 20
    write_job(run, steps)
    of_cpp = hash_of(run, ("cpp", "cpp"), steps)
    assert len(of_cpp) == 64
    assert hash_of(run, ("python", "python"), steps) == of_cpp
    assert hash_of(run, ("cpp", "python"), steps) == of_cpp
