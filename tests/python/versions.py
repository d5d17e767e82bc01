#!/usr/bin/env python3
"""versions.py BUILD CPP VERSION: runs the binding's tests with another version of PyTorch, "newest" for the index's newest.

Installs it into BUILD/torch-VERSION, which takes up to 8 GB and the network.
"""

import os
import pathlib
import re
import subprocess
import sys
import venv

HERE = pathlib.Path(__file__).resolve().parent
# The tests that need only torch.
FILES = ["codecs", "storage", "agreement", "buffers", "moments", "batches", "trouble"]


def environment(build, version):
    folder = build / f"torch-{version}"
    python = folder / "bin/python"
    done = folder / "isthmus-complete"
    if not done.exists():
        venv.create(folder, clear=True, with_pip=True)
        wanted = "torch" if version == "newest" else f"torch=={version}"
        pinned = (HERE.parents[1] / "scripts/pinned.sh").read_text()
        pytest = [re.search(rf"\b{name}==[\d.]+", pinned)[0] for name in ("pytest", "iniconfig", "pluggy")]
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*pip, wanted, "numpy", "safetensors", *pytest], check=True)
        done.touch()
    return python


def main():
    build, cpp, version = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2], sys.argv[3]
    python = environment(build, version)
    found = subprocess.run([python, "-c", "import torch; print(torch.__version__)"], check=True, capture_output=True, text=True)
    print(f"torch {found.stdout.strip()}", flush=True)
    release = tuple(map(int, found.stdout.split(".")[:2]))
    words = [python, "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--build={build}", f"--cpp={cpp}", *sys.argv[4:]]
    # Before 2.9 torch.optim has no Muon. Before 2.6 FSDP2 runs on GPUs only, and in 2.4 the destructor of Gloo's process
    # group may wait for a thread that waits for the interpreter's lock, so the tests of several ranks wait for 2.6.
    # FSDP2 of 2.7 averages over a mesh of two dimensions with an operation that Gloo does not have.
    since = {"muon": (2, 9), "two_ranks": (2, 6), "mesh_of_two_dimensions": (2, 8)}
    without = [word for word, first in since.items() if release < first]
    words += ["-k", " and ".join(f"not {word}" for word in without)] if without else []
    files = FILES if release < (2, 6) else [*FILES, "site"]
    # One thread, as in the other entries: OpenMP's threads may hang after a fork, which workers of several ranks use.
    environ = {**os.environ, "PYTHONPATH": str(build / "python"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*words, *(HERE / f"{name}_test.py" for name in files)], env=environ)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
