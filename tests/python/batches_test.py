"""Batches by the run's ledger: each sample once in an epoch, also when a run is resumed or a replica is lost."""

import json

import pytest
import torch

import isthmus

SIZE = 96  # samples: two replicas make 24 steps on batches of 2
WHOLE = ([(0, 0, 48), (1, 0, 48)], 0)


def start(run, name, *arguments):
    run.start_worker(name, "batches.py", "--samples", run.folder / f"{name}.samples", *arguments)


def steps_of(run, name, rank=0):
    lines = (run.folder / f"{name}.samples.{rank}").read_text().splitlines()
    return [tuple(json.loads(line)) for line in lines]


def samples_in(steps):
    return sorted(index for _, indices in steps for index in indices)


def ledger_of(run, name):
    """Samples in the global parameters as (track, first, end), and how many are there twice."""
    found = json.loads((run.folder / "runs/test" / name / "ledger.json").read_text())
    assert found["unknown_rounds"] == 0
    return [tuple(entry) for entry in found["done"]], sum(end - begin for _, begin, end in found["twice"])


def test_an_epoch_has_each_sample_once_although_the_loader_fetches_ahead(run):
    run.write_config(outer={"warmup_steps": 3, "warmup_codec": "fp32"})
    run.start_coordinator()
    start(run, "eu", "--workers", 1)
    start(run, "us")
    run.finish()
    steps = steps_of(run, "eu") + steps_of(run, "us")
    assert samples_in(steps) == list(range(SIZE))
    for name in ("eu", "us"):
        assert ledger_of(run, name) == WHOLE


def test_the_ranks_of_a_site_share_its_batches(run):
    run.write_config()
    run.start_coordinator()
    start(run, "eu", "--ranks", 2, "--batch", 1)
    start(run, "us")
    run.finish()
    ranks = [steps_of(run, "eu", rank) for rank in (0, 1)]
    assert [len(rank) for rank in ranks] == [24, 24]
    assert samples_in([*ranks[0], *ranks[1], *steps_of(run, "us")]) == list(range(SIZE))
    assert ledger_of(run, "us") == WHOLE


def test_a_resumed_run_goes_on_with_the_samples_that_are_left(run):
    run.write_config(run={"checkpoint_every": 13})
    steps = []
    for resume in (False, True):
        run.start_coordinator(*(["--resume"] if resume else []))
        for name in ("eu", "us"):
            file = run.folder / f"{name}.pt"
            start(run, name, "--workers", 1, *(["--load", file] if resume else ["--save", file]))
        run.finish()
        run.processes.clear()
        for name in ("eu", "us"):
            steps += [step for step in steps_of(run, name) if resume or step[0] <= 13]
            (run.folder / f"{name}.samples.0").unlink()
        ledger = ledger_of(run, "eu")
    assert samples_in(steps) == list(range(SIZE))
    assert ledger == WHOLE


def test_others_get_the_samples_that_a_lost_replica_has_not_contributed(run):
    run.write_config(outer={"min_replicas": 1}, network={"detect_timeout": "2s"})
    run.start_coordinator()
    # Samples of a lost replica are dealt in blocks of 1,024. The epoch is longer than the run, since eu makes some steps
    # again, a few or many, and would begin the next epoch.
    many = ["--batch", 256, "--size", 2 * 48 * 256]
    start(run, "eu", *many)
    start(run, "us", *many, "--kill-at", 9)
    assert run.wait("us") == -9
    run.finish("eu", "coordinator")
    run.processes.clear()
    (own, other), twice = ledger_of(run, "eu")
    assert own[:2] == (0, 0) and other[:2] == (1, 0), "no gaps"
    eu, us = (set(samples_in(steps_of(run, name))) for name in ("eu", "us"))
    assert eu & us and own[2] + other[2] <= len(eu | us)
    assert not eu & set(samples_in(step for step in steps_of(run, "us") if step[0] <= 2)), "contributed"
    assert twice <= len(eu & us), "steps of us that are in the rounds of some fragments only"


def test_numbers_that_are_not_positive_are_refused():
    with pytest.raises(isthmus.ConfigError, match="Batches: size 0, batch 2, accumulate 1; expected at least 1 each"):
        isthmus.Batches(None, 0, 2)
    assert issubclass(isthmus.Batches, torch.utils.data.Sampler)
