"""`isthmus launch` with Python workers, and the examples."""

import getpass
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest
import torch

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 600


def launch(run, config, script, *arguments, options=()):
    words = [sys.executable, "-B", script, *options]
    command = "worker.command=" + json.dumps([str(word) for word in words])
    out = f"run.out={run.folder / 'runs'}"
    return launched(run, str(config), "--set", command, "--set", out, *arguments)


def launched(run, *arguments):
    done = subprocess.run(
        [str(run.build / "isthmus-coordinator"), "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
    )
    logs = "\n".join(log.read_text() for log in run.folder.glob("runs/*/*/worker.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout, logs


def test_launch_starts_what_worker_command_says(run):
    run.write_config()
    output, logs = launch(run, run.config, ROOT / "tests/python/workers/train.py")
    assert "step 24" in logs and logs.count("done: global hash") == 2
    assert (run.folder / "runs/test/replica-0/metrics.jsonl").read_text().count('"step"') >= 24
    assert (run.folder / "runs/test/replica-0/trace.json").exists()


@pytest.fixture
def ssh(run):
    """Starts an ssh server on loopback with its own keys and folder. Returns the `launch` section for a site on it."""
    if not (server := shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")):
        pytest.skip("sshd is missing: scripts/setup.sh --tests installs it")
    if getpass.getuser() == "root":
        pathlib.Path("/run/sshd").mkdir(exist_ok=True)
    folder = run.folder / "ssh"
    folder.mkdir()
    for key in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key], check=True)
    reserved = socket.socket()  # no other process can take the port; sshd can, since both set this option
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    reserved.bind(("127.0.0.1", 0))
    port = reserved.getsockname()[1]
    kind, key, *_ = (folder / "host.pub").read_text().split()
    (folder / "known").write_text(f"[127.0.0.1]:{port} {kind} {key}\n")
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPasswordAuthentication no\nPermitRootLogin yes\n"
    )
    process = subprocess.Popen([server, "-D", "-e", "-f", folder / "config"], stderr=(folder / "log").open("w"))
    deadline = time.monotonic() + 30
    while "Server listening" not in (folder / "log").read_text() and process.poll() is None:
        assert time.monotonic() < deadline, (folder / "log").read_text()
        time.sleep(0.05)
    assert process.poll() is None, (folder / "log").read_text()
    yield {
        "ssh": f"{getpass.getuser()}@127.0.0.1",
        "port": port,
        "identity": str(folder / "user"),
        "options": [f"UserKnownHostsFile={folder}/known", "GlobalKnownHostsFile=/dev/null"],
        "program": str(run.build / "isthmus-coordinator"),
    }
    process.terminate()
    process.wait(timeout=30)
    reserved.close()


def test_launch_starts_it_by_ssh_too(run, ssh):
    environment = {"PYTHONPATH": str(run.build / "python")}
    words = [sys.executable, "-B", str(ROOT / "tests/python/workers/train.py")]
    sites = {
        name: {"launch": {**ssh, "folder": str(run.folder / name), "environment": environment}} for name in ("eu", "us")
    }
    run.write_config(worker={"command": words}, sites=sites)
    launched(run, str(run.config), "--set", f"run.out={run.folder / 'runs'}")
    for name in sites:
        log = (run.folder / name / "test" / name / "worker.log").read_text()
        assert "step 24" in log and "done: global hash" in log, log
    hashes = json.loads((run.folder / "runs/test/summary.json").read_text())["global_hash"]
    assert set(hashes) == set(sites) and len(set(hashes.values())) == 1


def test_a_command_that_cannot_be_started_is_named(run):
    run.write_config(worker={"command": ["no-such-program", "train.py"]})
    command = [run.build / "isthmus-coordinator", "worker", "--config", run.config, "--name", "eu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and "worker.command begins with 'no-such-program'" in done.stderr
    run.write_config(worker={"command": "python train.py"})
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 2 and "expected a list like [python, train.py]" in done.stderr


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


def test_the_gpt_example_learns_and_is_resumed_and_saves(run, few_steps):
    config, script, output = ROOT / "examples/python/nanogpt.yaml", "examples/python/nanogpt.py", run.folder / "gpt"
    options = ["--output", output]
    _, logs = launch(run, config, script, *few_steps, "--set", "run.checkpoint_every=15", options=options)
    losses = [float(line.split()[2]) for line in logs.splitlines() if line.startswith("step 30: ")]
    assert len(losses) == 2 and max(losses) < 3.5, logs  # 5.5 before the first step
    models = [output / f"replica-{number}/model.pt" for number in range(2)]
    before, other = (torch.load(model, weights_only=True) for model in models)
    assert all(torch.equal(before[name], other[name]) for name in before)
    for model in models:
        (model.parent / "checkpoint-30.pt").unlink()  # as if killed before it wrote this
        model.unlink()
    launched(run, "--resume", str(run.folder / "runs/nanogpt"))
    resumed = torch.load(models[0], weights_only=True)
    assert all(torch.equal(before[name], resumed[name]) for name in before)


@pytest.mark.parametrize(
    ("example", "shapes"),
    [
        ("fsdp2", {"layers.3.mlp.2.weight": [128, 512], "norm.bias": [128]}),
        ("moe", {**{f"layers.1.mlp.experts.{n}.2.weight": [64, 128] for n in range(4)}, "layers.1.mlp.balance": [4]}),
    ],
)
def test_an_example_of_several_ranks_learns_and_saves_the_whole_model(run, few_steps, example, shapes):
    torchrun = [sys.executable, "-B", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, f"examples/python/{example}.py", "--output", str(run.folder / "out")]
    settings = [f"worker.command={json.dumps(command)}", f"run.out={run.folder / 'runs'}"]
    settings += ["replicas=1", "run.checkpoint_every=15"]  # sites with each other: site_test.py
    words = [word for assignment in settings for word in ("--set", assignment)]
    _, logs = launched(run, str(ROOT / f"examples/python/{example}.yaml"), *few_steps, *words)
    (loss,) = [float(line.split()[1].rstrip(",")) for line in logs.splitlines() if line.startswith("loss ")]
    assert loss < 3.5, logs  # 5.5 before the first step
    model = torch.load(run.folder / "out/replica-0/model.pt", weights_only=True)
    assert {name: list(model[name].shape) for name in shapes} == shapes
    assert (run.folder / "out/replica-0/checkpoint-15").is_dir()


def test_the_extension_links_no_libtorch(run):
    (extension,) = (run.build / "python" / "isthmus").glob("_native*.so")
    lines = subprocess.run(["ldd", extension], capture_output=True, text=True, check=True).stdout.splitlines()
    libraries = " ".join(line.split()[0] for line in lines)  # names only, since an address may contain "c10"
    assert "libcrypto" in libraries and "torch" not in libraries and "c10" not in libraries


@pytest.mark.parametrize("module", ["isthmus", "isthmus.codecs"])
def test_every_public_name_is_documented(module):
    import importlib

    for name, value in vars(importlib.import_module(module)).items():
        if not name.startswith("_") and callable(value) and getattr(value, "__module__", "").startswith("isthmus"):
            assert value.__doc__, f"{module}.{name} has no docstring"


def train_by_trainer(run, name, *settings):
    config, script = ROOT / "examples/python/trainer.yaml", "examples/python/trainer.py"
    return launch(run, config, script, "--set", f"run.name={name}", *settings, options=["--output", run.folder / name])


def test_the_trainer_example_stays_in_step(run):
    _, logs = train_by_trainer(run, "whole")
    hashes = [line.split()[-1] for line in logs.splitlines() if line.startswith("global hash")]
    assert len(hashes) == 2 and len(set(hashes)) == 1


def test_the_trainer_example_resumed_ends_as_one_that_never_stopped(run):
    log = run.folder / "runs/whole/replica-0/worker.log"
    train_by_trainer(run, "whole", "--set", "replicas=1", "--set", "run.checkpoint_every=20")
    whole = log.read_text()
    shutil.rmtree(run.folder / "whole/replica-0/checkpoint-40")  # as if killed before it wrote this
    launched(run, "--resume", str(run.folder / "runs/whole"))
    resumed = log.read_text().removeprefix(whole)
    assert "from step 20" in resumed and hashes_in(resumed) == hashes_in(whole), resumed
