"""Lightning's Trainer: what it validates, saves and leaves in the module, how it resumes, and errors."""

import logging
import types

import pytest
import torch
import trainers
from trainers import NAMES, assert_same, results_of, write_config

import isthmus


def start(run, name, *arguments):
    trainers.start(run, name, "lightning_worker.py", ["pytorch_lightning"], *arguments)


def train(run, *coordinator, arguments=None):
    run.start_coordinator(*coordinator)
    for name in NAMES:
        start(run, name, *(arguments[name] if arguments else []))
    return results_of(run)


def test_the_global_parameters_are_validated_saved_and_left_and_a_resumed_run_ends_the_same(run):
    write_config(run)
    whole, (eu, us) = train(run)  # the workers compare at each event
    assert [step for step, _ in eu["validated"]] == [8, 16, 24]
    assert eu["validated"] == us["validated"]
    assert set(eu["saved"]) == {"step=13.ckpt", *(f"model-step={step}.ckpt" for step in (8, 16, 24))}
    for file, values in eu["saved"].items():
        assert_same(values, us["saved"][file])
    assert_same(eu["saved"]["model-step=24.ckpt"], eu["final"])
    for one in (eu, us):
        assert_same(one["left"], eu["final"])
    own, other = (one["own"]["step=13.ckpt"] for one in (eu, us))
    assert own.keys() == eu["final"].keys() and not any(torch.equal(own[name], other[name]) for name in own)
    for name in NAMES:
        assert run.log(name).count("have the global parameters") == 1
        assert "isthmus: " not in run.log(name)  # no warning
        assert run.report(name)["tokens"] == 24 * 8 * 16

    checkpoints = {name: ["--load", run.folder / "output" / name / "step=13.ckpt"] for name in NAMES}
    resumed, _ = train(run, "--resume", arguments=checkpoints)
    assert "from step 13" in run.log("eu")
    assert resumed == whole


def test_two_ranks_validate_and_save_the_global_parameters(run):
    write_config(run)
    _, (eu, us) = train(run, arguments={"eu": ["--ranks", 2], "us": []})
    assert [step for step, _ in eu["validated"]] == [8, 16, 24]
    assert_same(eu["left"], us["left"])
    for file, values in eu["saved"].items():
        assert_same(values, us["saved"][file])


def test_an_exception_in_training_leaves_the_run_with_its_reason(run):
    run.write_config()
    run.start_coordinator()
    start(run, "eu", "--fail-at", 6)
    start(run, "us", "--max-steps", 30)
    assert run.wait("eu") == 1
    assert run.wait("us") == 0 and run.wait("coordinator") == 0
    assert "RuntimeError: the user's own error" in run.log("coordinator")
    log = run.log("us")
    assert "has 30 steps" not in log and "this replica then leaves the run" not in log
    run.processes.clear()


def callback_with(**trainer):
    from isthmus._trainers import Warnings
    from isthmus.lightning import OuterLoopCallback

    callback = OuterLoopCallback("experiment.yaml", name="eu")
    experiment = types.SimpleNamespace(batch=8, sequence_length=16)
    storage = types.SimpleNamespace(sharded=False)
    loop = {"experiment": experiment, "steps": 40, "step": 0, "is_first": True, "synchronous": True, "tokens": 128}
    callback.loop = types.SimpleNamespace(_storage=storage, **loop)
    callback._warnings = Warnings(callback.loop)
    defaults = {"global_step": 0, "world_size": 2, "accumulate_grad_batches": 1, "lr_scheduler_configs": []}
    defaults |= {"estimated_stepping_batches": 40, "train_dataloader": None, "optimizers": [0], "checkpoint_callbacks": []}
    return callback, types.SimpleNamespace(**{**defaults, **trainer})


def test_differences_between_the_trainer_and_the_config_are_named(caplog):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
    configs = [types.SimpleNamespace(scheduler=schedule, interval="step")]
    loader = types.SimpleNamespace(batch_size=2)
    callback, trainer = callback_with(
        estimated_stepping_batches=20, lr_scheduler_configs=configs, train_dataloader=loader
    )
    with caplog.at_level(logging.WARNING):
        callback._compare(trainer)
    ends, length, batch = (record.getMessage() for record in caplog.records)
    assert "its step 20 (max_steps or max_epochs), and run.steps is 40" in ends
    assert "has 30 steps, and run.steps is 40: it ends before the run" in length
    assert "batch is 4 sequences (batch_size 2, accumulate_grad_batches 1, 2 ranks), and inner.batch is 8" in batch
    assert callback.loop.tokens == 4 * 16


def test_what_the_callback_cannot_do_is_refused_with_what_to_do():
    from pytorch_lightning.callbacks import ModelCheckpoint

    weights = ModelCheckpoint(".", save_weights_only=True, every_n_train_steps=5)
    callback, trainer = callback_with(checkpoint_callbacks=[weights])
    with pytest.raises(isthmus.ConfigError, match="leave save_weights_only out"):
        callback._check(trainer)
    callback, trainer = callback_with(optimizers=[0, 1])
    with pytest.raises(isthmus.ConfigError, match="has 2 optimizers; expected one with outer.warmup_steps"):
        callback._check(trainer)
    callback, trainer = callback_with(global_step=7)
    with pytest.raises(isthmus.ConfigError, match="its checkpoint has no state of the outer loop"):
        callback._saved(trainer)
