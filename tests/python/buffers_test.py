"""Buffers of the module that all replicas share: running statistics, or the bias of a router."""

import subprocess

import pytest
import torch

import isthmus


def grow(run, outer, us=(), eu=(), **config):
    """Two replicas add 1 and 3 to a buffer in each step. Returns the global values and the number of steps."""
    run.write_config(run={"steps": 24}, outer=outer, **config)
    run.start_coordinator()
    run.start_worker("eu", "buffers.py", "--growth", 1, *eu)
    run.start_worker("us", "buffers.py", "--growth", 3, *us)
    run.finish()
    values = [torch.load(run.folder / f"{name}.values", weights_only=True) for name in ("eu", "us")]
    assert all(torch.equal(values[0][name], values[1][name]) for name in values[0])
    assert "own" not in values[0] and "steps" not in values[0]
    return values[0], 24


@pytest.mark.parametrize(
    "outer",
    [
        {},
        pytest.param({"merge": "alpha", "sync_delay": 0, "merge_alpha": 0}, marks=pytest.mark.long),
        pytest.param({"num_fragments": 1, "method": "diloco"}, marks=pytest.mark.long),
        {"warmup_steps": 5, "warmup_codec": "fp32"},
    ],
    ids=str,
)
def test_a_buffer_ends_as_the_mean_over_the_replicas(run, outer):
    values, steps = grow(run, outer)
    assert torch.equal(values["grown"], torch.full((70,), 2.0 * steps))


def test_few_bits_lose_nothing_for_good(run):
    """The next outer gradient has what a round's codec has lost, so the error stays that of one round."""
    values, steps = grow(run, {"codec": "4bit", "warmup_steps": 3, "warmup_codec": "4bit"})
    assert (values["grown"] - 2.0 * steps).abs().max() < 1


def test_its_rounds_are_logged_and_replayed(run, pytestconfig):
    grow(run, {"log": str(run.folder / "rounds"), "codec": "4bit"})
    program = pytestconfig.getoption("--build") + "/isthmus"
    done = subprocess.run([program, "replay", run.folder / "rounds/eu"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert run.report("eu")["global_hash"] in done.stdout, done.stdout


@pytest.mark.parametrize("ranks", [pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_a_site_of_two_ranks_has_the_buffers_of_its_first_one(run, ranks):
    site = ("--ranks", ranks, "--store", run.folder / "store")
    values, steps = grow(run, {"warmup_steps": 4, "warmup_codec": "fp32"}, us=site)
    assert torch.equal(values["grown"], torch.full((70,), 2.0 * steps))


def test_a_model_in_another_format_keeps_its_buffers_in_fp32(run):
    values, steps = grow(run, {}, us=("--dtype", "bfloat16"), eu=("--dtype", "bfloat16"))
    assert torch.equal(values["grown"], torch.full((70,), 2.0 * steps))


def test_an_observer_has_them_too(run):
    run.write_config(run={"steps": 24})
    run.start_coordinator()
    run.start_worker("watch", "watch.py", "--buffers", "gro*")
    run.wait_for("coordinator", "watch observes the run")
    for name, growth in (("eu", 1), ("us", 3)):
        run.start_worker(name, "buffers.py", "--growth", growth)
    run.finish()
    step, hash_of_all, values = torch.load(run.folder / "seen.pt", weights_only=True)[-1]
    assert step == "end" and hash_of_all == run.report("eu")["global_hash"]
    assert torch.equal(values["grown"], torch.full((70,), 48.0)) and not values["own"].any()


class Normed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(4)


@pytest.mark.parametrize(
    ("buffers", "says"),
    [
        ("norm.running_mean", "is the text 'norm.running_mean'; expected a list"),
        (["norm.running_average"], "no buffer of the model matches norm.running_average; it has norm.running_mean,"),
        (["norm.*"], "buffer norm.num_batches_tracked has dtype torch.int64"),
    ],
)
def test_what_cannot_be_averaged_is_refused(run, buffers, says):
    run.write_config()
    with pytest.raises(isthmus.ConfigError, match=says.replace("[", r"\[")):
        isthmus.OuterLoop(run.config, Normed(), name="eu", insecure=True, buffers=buffers)
