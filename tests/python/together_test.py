"""Python workers in a run with `isthmus worker`, and with the coordinator's TLS, log and commands."""

import json
import random
import struct
import subprocess

import pytest
import torch
from safetensors.torch import load_file

LIMIT = 600
VOCABULARY, LENGTH = 97, 32
NAMES = ("eu", "us")


def program(run, *words, status=0):
    """The output of a command of the program."""
    done = subprocess.run(
        [str(run.build / "isthmus"), *map(str, words)], capture_output=True, text=True, timeout=LIMIT, cwd=run.folder
    )
    assert done.returncode == status, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def write_llama(run, name, kinds):
    """Trains a model that both kinds of workers support. All sequences of a site are equal, so that their order is
    irrelevant."""
    sites = {}
    for site in NAMES:
        chance = random.Random(site)
        row = [chance.randrange(VOCABULARY) for _ in range(LENGTH)] * 400
        (run.folder / f"{site}.bin").write_bytes(struct.pack(f"<{len(row)}H", *row))
        sites[site] = {"data": {"path": str(run.folder / f"{site}.bin")}}
    run.write_config(
        run={"name": name, "steps": 40, "eval_every": 0, "checkpoint_every": 40, "sample_tokens": 0},
        device="cpu",
        sites=sites,
        model={"layers": 3, "dim": 32, "heads": 4, "kv_heads": 2, "qk_norm": False},
        data={"seq_len": LENGTH, "tokenizer": f"vocab:{VOCABULARY}"},
        inner={
            "batch": 4,
            "precision": "fp32",
            "lr": 3e-3,
            "schedule": "constant",
            "warmup_steps": 0,
            "weight_decay": 0,
            "clip": 0,
        },
        outer={"sync_every": 8},
        trainer={"threads": 1},
        join={"inner_state": "fresh"},
    )
    run.start_coordinator()
    for site, kind in zip(NAMES, kinds):
        if kind == "python":
            run.start_worker(site, "llama.py", "--values", run.folder / f"{name}-{site}.pt")
        else:
            words = ["worker", "--config", run.config, "--coordinator", run.address, "--name", site]
            run.start(site, [run.build / "isthmus", *words])
    run.finish()
    run.processes.clear()
    if "python" in kinds:
        return torch.load(run.folder / f"{name}-{NAMES[kinds.index('python')]}.pt", weights_only=True)
    program(run, "export", run.folder / "runs" / name, "--out", run.folder / name)
    return load_file(run.folder / name / "model.safetensors")


def test_replicas_of_both_kinds_train_the_same_model_as_far_as_their_inner_steps_agree(run):
    of_cpp = write_llama(run, "cpp", ("cpp", "cpp"))
    of_python = write_llama(run, "python", ("python", "python"))
    mixed = write_llama(run, "mixed", ("cpp", "python"))
    moved = 0.0
    for name, value in of_cpp.items():
        for other in (of_python, mixed):
            torch.testing.assert_close(other[name], value, rtol=0, atol=2e-4, msg=lambda text: f"{name}: {text}")
        moved = max(moved, (value - value.mean()).abs().max().item())
    assert moved > 0.01  # the model has learned something


def test_tls_round_log_status_and_top_are_as_of_other_workers(run):
    run.write_config(run={"steps": 90, "checkpoint_every": 0}, outer={"log": str(run.folder / "log")})
    program(run, "certs", "init", "test")
    for name in ("coordinator", "operator", *NAMES):
        program(run, "certs", "issue", "test", name)
    certs = ["--certs", run.folder / "certs/test"]
    run.start_coordinator(*certs)
    for name in NAMES:
        run.start_worker(name, "train.py", "--pace", 0.03, *certs)
    run.wait_for("eu", "step 5\n")
    status = json.loads(program(run, "ctl", "status", "--coordinator", run.address, *certs, "--json"))
    assert {member["name"] for member in status["members"]} == set(NAMES), status
    program(run, "ctl", "status", "--coordinator", run.address, "--insecure", status=4)
    run.finish()
    replayed = program(run, "replay", run.folder / "log/eu")
    assert run.report("eu")["global_hash"] in replayed, replayed
    summary = program(run, "trace", run.folder / "runs/test/eu/trace.json")
    assert "train" in summary


def test_settings_change_in_mid_run_for_both_kinds(run):
    run.write_config(run={"steps": 120})
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--pace", 0.03)
    run.wait_for("eu", "step 5\n")
    program(run, "ctl", "pause", "--coordinator", run.address, "--config", run.config)
    program(run, "ctl", "set", "outer.sync_every=12", "--coordinator", run.address, "--config", run.config)
    program(run, "ctl", "resume", "--coordinator", run.address, "--config", run.config)
    run.finish()
    assert run.report("eu")["global_hash"] == run.report("us")["global_hash"]


def test_a_drained_worker_ends_its_loop_and_the_other_goes_on(run):
    run.write_config(run={"steps": 150}, outer={"min_replicas": 1})
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--pace", 0.03)
    run.wait_for("us", "step 5\n")
    program(run, "ctl", "drain", "us", "--coordinator", run.address, "--config", run.config)
    run.finish()
    assert "step 150" in run.log("eu") and "step 150" not in run.log("us")


def test_a_drained_worker_leaves_a_paused_run(run):
    run.write_config(run={"steps": 150}, outer={"min_replicas": 1})
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--pace", 0.03)
    run.wait_for("us", "step 5\n")
    program(run, "ctl", "pause", "--coordinator", run.address, "--config", run.config)
    program(run, "ctl", "drain", "us", "--coordinator", run.address, "--config", run.config)
    run.finish("us")
    assert "left the run at step" in run.log("us")
    program(run, "ctl", "resume", "--coordinator", run.address, "--config", run.config)
    run.finish()
    assert "step 150" in run.log("eu") and "step 150" not in run.log("us")


# ---- observers ----


def test_an_observer_has_the_global_parameters_of_each_step_that_is_evaluated(run):
    run.write_config(run={"steps": 120, "eval_every": 10}, outer={"codec": "4bit", "error_feedback": True})
    run.start_coordinator()
    run.start_worker("watch", "watch.py")
    run.wait_for("coordinator", "watch observes the run")
    for name in NAMES:
        run.start_worker(name, "train.py", "--record", f"{name}.pt", "--pace", 0.02)
    run.finish()
    recorded = torch.load(run.folder / "eu.pt", weights_only=True)
    seen = torch.load(run.folder / "seen.pt", weights_only=True)
    steps = [step for step, _, _ in seen]
    assert steps[-1] == "end" and len([step for step in steps if isinstance(step, int)]) > 3, steps
    for step, _, values in seen:
        if step:  # nothing was recorded before the first step
            now = recorded[-1 if step == "end" else step - 1]
            assert all(torch.equal(values[name], now[name]) for name in now), step
    assert seen[-1][1] == run.report("eu")["global_hash"]


def test_an_observer_takes_the_newest_and_the_run_does_not_wait(run):
    run.write_config(run={"steps": 100_000})
    run.start_coordinator()
    for name in NAMES:
        run.start_worker(name, "train.py", "--pace", 0.02)
    run.wait_for("eu", "step 20\n")
    run.start_worker("watch", "watch.py", "--newest")
    assert run.wait("watch") == 0, run.log("watch")
    run.interrupt("coordinator")
    assert run.wait("eu") == 0 and run.wait("us") == 0, run.log("eu")


@pytest.mark.parametrize("width", [24, 25])
def test_an_observer_that_waits_can_be_interrupted_and_one_with_another_model_is_refused(run, width):
    run.write_config()
    run.start_coordinator()
    run.start_worker("eu", "train.py")
    run.wait_for("coordinator", "eu")
    run.start_worker("watch", "watch.py", "--width", width)
    if width == 24:
        run.wait_for("coordinator", "watch observes the run")
        run.interrupt("watch")
    assert run.wait("watch") not in (0, -6, -11), run.log("watch")
    said = "KeyboardInterrupt" if width == 24 else "ConfigError"
    assert said in run.log("watch"), run.log("watch")
