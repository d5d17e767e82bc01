"""Common parts of the tests of Hugging Face's Trainer and of Lightning's."""

import torch

NAMES = ("eu", "us")


def write_config(run):
    run.write_config(run={"checkpoint_every": 13}, inner={"batch": 8}, data={"seq_len": 16})


def start(run, name, script, modules, *arguments):
    """Starts a worker that writes its values to NAME.pt, and its checkpoints to output/NAME."""
    output = ["--values", run.folder / f"{name}.pt", "--output", run.folder / "output" / name]
    run.start_worker(name, script, *output, *arguments, modules=modules)


def results_of(run, names=NAMES):
    """The common hash of the workers at the end of the run, and what each has written."""
    run.finish()
    hashes = {run.log(name).split("\nhash ")[-1].split()[0] for name in names}
    assert len(hashes) == 1
    found = [torch.load(run.folder / f"{name}.pt", weights_only=True) for name in names]
    run.processes.clear()
    return hashes.pop(), found


def assert_same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name
