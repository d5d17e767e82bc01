"""`isthmus launch` with Python workers."""

import getpass
import json
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest
from launching import LIMIT, ROOT, launch, launched

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
