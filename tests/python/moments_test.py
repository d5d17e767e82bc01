"""A replica that joins a run copies the moments of the inner optimizer from another."""

import json
import math
import pathlib
import struct
import sys
import time

import pytest
import torch

import isthmus
import isthmus._placement as placement

sys.path.insert(0, str(pathlib.Path(__file__).parent / "workers"))
import toy  # noqa: E402


LIMIT = 300  # seconds


def join_late(run, joins=(), gives=(), **outer):
    """`us` is killed, and joins again while `eu` trains. Returns what each of its ranks began with, and eu's moments."""
    run.write_config(run={"steps": 100_000, "checkpoint_every": 0}, outer={"min_replicas": 1, **outer})
    run.start_coordinator()
    run.start_worker("eu", "moments.py", *gives)
    run.start_worker("us", "moments.py", "--killed-at", 9, *joins)
    ranks = 2 if "--ranks" in joins else 1
    assert run.wait("us") != 0
    for store in run.folder.glob("us.store"):
        store.unlink()
    run.start_worker("us", "moments.py", *joins)
    run.wait_for("us", "\nstep ")
    run.interrupt("coordinator")
    assert run.wait("us") == 0 and run.wait("eu") == 0, run.log("us") + run.log("eu")
    began = [torch.load(run.folder / f"us.{rank}.moments", weights_only=True)[0] for rank in range(ranks)]
    return began, torch.load(run.folder / "eu.0.moments", weights_only=True)


def check(began, donor):
    """The donor had each of these moments after some step. (If fragments cut a tensor, its parts are of several.)"""
    moments = {name for name in donor[-1] if not name.endswith(" step")}
    for rank in began:
        assert rank.keys() == donor[-1].keys()
        for name in moments:
            had = torch.stack([step[name] for step in donor[1:]])
            assert (had == rank[name]).any(dim=0).all(), name
            assert rank[name].abs().max() > 0, name
        for name in rank.keys() - moments:
            assert 1 < rank[name] < len(donor), name


@pytest.mark.parametrize("optimizer", ["adamw", *(pytest.param(name, marks=pytest.mark.long) for name in ("muon", "sgd")), "own"])
def test_of_each_kind_of_optimizer(run, optimizer):
    check(*join_late(run, ("--optimizer", optimizer), ("--optimizer", optimizer)))


def test_if_fragments_cut_tensors(run):
    check(*join_late(run, num_fragments=7))


@pytest.mark.parametrize(
    ("ranks", "way"),
    [
        ("fsdp", "joins"),
        ("ddp", "gives"),
        pytest.param("ddp", "joins", marks=pytest.mark.long),
        pytest.param("fsdp", "gives", marks=pytest.mark.long),
    ],
)
def test_of_a_site_of_two_ranks(run, ranks, way):
    name = {"joins": "us", "gives": "eu"}[way]
    check(*join_late(run, **{way: ("--ranks", ranks, "--store", run.folder / f"{name}.store")}))


def test_of_a_cpp_replica_that_joins(run):
    shapes = {name: tuple(parameter.shape) for name, parameter in toy.Model().named_parameters()}
    place = placement.place(shapes, 3, None, None)
    moments, values = run.folder / "us.moments", run.folder / "us.f32"
    values.write_bytes(struct.pack(f"<{2 * place.size}f", *[0.0] * (2 * place.size)))
    job = {"tensors": place.tensors, "fragments": place.fragments, "tokens": 64, "values": str(values)}
    (run.folder / "job.json").write_text(json.dumps({**job, "moments": str(moments)}))
    run.write_config(run={"steps": 100_000, "checkpoint_every": 0}, outer={"min_replicas": 1})
    run.start_coordinator()
    run.start_worker("eu", "moments.py")
    run.start_worker("us", "moments.py", "--killed-at", 9)
    assert run.wait("us") != 0
    us = run.start("us", [run.cpp / "table_worker", run.config, run.address, "us", run.folder / "job.json"])
    until = time.monotonic() + LIMIT
    while not moments.exists() and time.monotonic() < until and us.poll() is None:
        time.sleep(0.05)
    assert moments.exists(), run.log("us")
    run.interrupt("coordinator")
    assert run.wait("us") == 0 and run.wait("eu") == 0, run.log("us") + run.log("eu")
    flat = torch.frombuffer(bytearray(moments.read_bytes()), dtype=torch.float32)
    began = {}
    for name, shape, begin in place.tensors:
        for key, start in (("exp_avg", 1), ("exp_avg_sq", 1 + place.size)):
            began[f"{name} {key}"] = flat[start + begin : start + begin + math.prod(shape)].view(shape)
        began[f"{name} step"] = flat[0]
    check([began], torch.load(run.folder / "eu.0.moments", weights_only=True))


def test_an_unknown_optimizer_or_one_of_other_parameters_is_refused(run):
    run.write_config()

    def loop(model, optimizer):
        isthmus.OuterLoop(run.config, model, name="eu", insecure=True, optimizer=optimizer)

    model = torch.nn.Linear(3, 3)
    with pytest.raises(isthmus.ConfigError, match="the moments of Adagrad are not known; expected moment_keys"):
        loop(model, torch.optim.Adagrad(model.parameters()))
    with pytest.raises(isthmus.ConfigError, match="parameter bias is in no parameter group"):
        loop(model, torch.optim.AdamW([model.weight]))
