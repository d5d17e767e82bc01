"""The programs in examples/python learn, save and resume."""

import json
import shutil
import subprocess
import sys

import pytest
import torch
from launching import ROOT, launch, launched
from safetensors.torch import load_file

TORCHRUN = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture
def few_steps(run):
    """Settings with which an example takes seconds."""
    corpus = run.folder / "corpus"
    corpus.mkdir()
    (corpus / "text.h").write_text("the outer loop streams small gradients between the sites. " * 800)
    assignments = ["run.steps=30", "run.eval_every=0", f"data.path={corpus}", "outer.sync_every=10", "inner.batch=4"]
    return [word for assignment in assignments for word in ("--set", assignment)]


def hashes_in(logs):
    return {line.split()[-1] for line in logs.splitlines() if "done: global hash" in line}


def train_gpt(run, few_steps):
    """Returns the files of the models that the replicas save, and what they print."""
    config, script, output = ROOT / "examples/python/nanogpt.yaml", "examples/python/nanogpt.py", run.folder / "gpt"
    options = ["--output", output]
    _, logs = launch(run, config, script, *few_steps, "--set", "run.checkpoint_every=15", options=options)
    return [output / f"replica-{number}/model.pt" for number in range(2)], logs


def test_the_gpt_example_learns_and_saves(run, few_steps):
    models, logs = train_gpt(run, few_steps)
    losses = [float(line.split()[2]) for line in logs.splitlines() if line.startswith("step 30: ")]
    assert len(losses) == 2 and max(losses) < 3.5, logs  # 5.5 before the first step
    one, other = (torch.load(model, weights_only=True) for model in models)
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.long
def test_the_gpt_example_resumed_saves_what_one_that_never_stopped_does(run, few_steps):
    models, _ = train_gpt(run, few_steps)
    before = torch.load(models[0], weights_only=True)
    for model in models:
        (model.parent / "checkpoint-30.pt").unlink()  # as if killed before it wrote this
        model.unlink()
    launched(run, "--resume", str(run.folder / "runs/nanogpt"))
    resumed = torch.load(models[0], weights_only=True)
    assert all(torch.equal(before[name], resumed[name]) for name in before)


MOE_SHAPES = {f"layers.1.mlp.experts.{n}.2.weight": [64, 128] for n in range(4)} | {"layers.1.mlp.balance": [4]}


@pytest.mark.parametrize(
    ("example", "shapes"),
    [
        ("fsdp2", {"layers.3.mlp.2.weight": [128, 512], "norm.bias": [128]}),
        ("moe", MOE_SHAPES),
    ],
)
@pytest.mark.long
def test_an_example_of_several_ranks_learns_and_saves_the_whole_model(run, few_steps, example, shapes):
    command = [*TORCHRUN, f"examples/python/{example}.py", "--output", str(run.folder / "out")]
    settings = [f"worker.command={json.dumps(command)}", f"run.out={run.folder / 'runs'}"]
    settings += ["replicas=1", "run.checkpoint_every=15"]  # sites with each other: site_test.py
    words = [word for assignment in settings for word in ("--set", assignment)]
    _, logs = launched(run, str(ROOT / f"examples/python/{example}.yaml"), *few_steps, *words)
    (loss,) = [float(line.split()[1].rstrip(",")) for line in logs.splitlines() if line.startswith("loss ")]
    assert loss < 3.5, logs  # 5.5 before the first step
    model = torch.load(run.folder / "out/replica-0/model.pt", weights_only=True)
    assert {name: list(model[name].shape) for name in shapes} == shapes
    assert (run.folder / "out/replica-0/checkpoint-15").is_dir()


def train_by_trainer(run, name, *settings):
    """On CPUs, where the inner steps repeat bit by bit."""
    config, script = ROOT / "examples/python/trainer.yaml", "examples/python/trainer.py"
    settings, options = ["--set", f"run.name={name}", *settings], ["--output", run.folder / name]
    return launch(run, config, script, *settings, options=options, gpus=False)


@pytest.mark.long
def test_the_trainer_example_stays_in_step(run):
    _, logs = train_by_trainer(run, "whole")
    hashes = [line.split()[-1] for line in logs.splitlines() if line.startswith("global hash")]
    assert len(hashes) == 2 and len(set(hashes)) == 1


@pytest.mark.long
def test_the_trainer_example_resumed_ends_as_one_that_never_stopped(run):
    log = run.folder / "runs/whole/replica-0/worker.log"
    train_by_trainer(run, "whole", "--set", "replicas=1", "--set", "run.checkpoint_every=20")
    whole = log.read_text()
    shutil.rmtree(run.folder / "whole/replica-0/checkpoint-40")  # as if killed before it wrote this
    launched(run, "--resume", str(run.folder / "runs/whole"), gpus=False)
    resumed = log.read_text().removeprefix(whole)
    assert "from step 20" in resumed and hashes_in(resumed) == hashes_in(whole), resumed


@pytest.mark.long
def test_the_trainer_example_learns_on_two_ranks_and_saves_the_global_parameters(run):
    output = run.folder / "out"
    command = [*TORCHRUN, "examples/python/trainer.py", "--output", str(output)]
    settings = [f"worker.command={json.dumps(command)}", f"run.out={run.folder / 'runs'}", "run.checkpoint_every=20"]
    words = [word for assignment in [*settings, "replicas=1"] for word in ("--set", assignment)]
    _, logs = launched(run, str(ROOT / "examples/python/trainer-ranks.yaml"), *words)
    (line,) = [line for line in logs.splitlines() if line.startswith("global hash")]
    assert line.split()[-1] in hashes_in(logs)
    last, left = (load_file(output / "replica-0" / name / "model.safetensors") for name in ("checkpoint-40", "."))
    assert all(torch.equal(last[name], value) for name, value in left.items())
    assert (output / "replica-0/checkpoint-20/isthmus.pt").is_file()


NANOGPT_MODEL = """import sys
sys.path.append({examples!r})
import nanogpt
from torch.nn import functional

class GPTConfig:
    pass

class GPT(nanogpt.GPT):
    def __init__(self, config):
        super().__init__(layers=1, width=32)

    def forward(self, ids, targets):
        return functional.cross_entropy(super().forward(ids).flatten(0, 1), targets.flatten())
"""


@pytest.fixture
def nanogpt(run):
    """A folder with a program like nanoGPT's train.py, changed by the diff of the examples; the arguments for it."""
    folder = run.folder / "nanogpt"
    folder.mkdir()
    (folder / "train.py").write_text((ROOT / "tests/python/workers/nanogpt_shape.txt").read_text())
    (folder / "model.py").write_text(NANOGPT_MODEL.format(examples=str(ROOT / "examples/python")))
    with open(ROOT / "examples/python/nanogpt_train.diff", encoding="utf-8") as diff:
        subprocess.run(["patch", "-p1", "--fuzz=0"], cwd=folder, stdin=diff, check=True, stdout=subprocess.DEVNULL)
    (folder / "text").write_text("the outer loop streams small gradients between the sites. " * 200)
    return [str(folder / "train.py"), f"--text_file={folder}/text"]


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_ten_lines_in_nanogpts_train_py_learn_and_resume(run, nanogpt, ranks):
    added = [line for line in (ROOT / "examples/python/nanogpt_train.diff").read_text().splitlines() if line[0] == "+"]
    assert len(added) - 1 <= 10  # the first is the name of the file

    names = [f"replica-{number}" for number in range(2)]

    def train(start, *more):
        """Each replica has a folder of its own, as on a machine of its own."""
        begin = TORCHRUN if ranks > 1 else [sys.executable, "-B"]
        for name in names:
            command = json.dumps([*begin, *nanogpt, f"--out_dir={run.folder}/{name}", *more])
            start += ["--set", f"sites.{name}.worker.command={command}"]
        _, logs = launched(run, *start, "--set", f"run.out={run.folder / 'runs'}")
        one, other = (torch.load(run.folder / name / "global.pt", weights_only=True) for name in names)
        assert all(torch.equal(one[key], other[key]) for key in one)
        return logs

    sites = {name: {"replicas": 1} for name in names}
    run.write_config(sites=sites, run={"steps": 30}, inner={"batch": 8}, data={"seq_len": 32})
    logs = train([str(run.config)])
    losses = [float(line.split()[-1]) for line in logs.splitlines() if line.startswith("iter 29:")]
    assert losses and max(losses) < 4.5, logs  # 5.5 before the first step
    for name in names:
        (run.folder / name / "global.pt").unlink()  # as if killed after the checkpoint of step 20
    both = train(["--resume", str(run.folder / "runs/test")], "--init_from=resume")
    assert both.count("from step 20") == 2, both
    for step, times in ((19, 1), (20, 2), (29, 2)):
        assert both.count(f"iter {step}:") == times * logs.count(f"iter {step}:"), both
