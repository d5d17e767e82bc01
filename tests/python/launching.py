"""Runs `isthmus launch` with Python workers."""

import json
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).parents[2]
LIMIT = 600  # seconds


def launch(run, config, script, *arguments, options=(), gpus=True):
    words = [sys.executable, "-B", script, *options]
    command = "worker.command=" + json.dumps([str(word) for word in words])
    out = f"run.out={run.folder / 'runs'}"
    return launched(run, str(config), "--set", command, "--set", out, *arguments, gpus=gpus)


def launched(run, *arguments, gpus=True):
    done = subprocess.run(
        [str(run.build / "isthmus-coordinator"), "launch", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        stdin=subprocess.DEVNULL,
        env=None if gpus else {**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    logs = "\n".join(log.read_text() for log in run.folder.glob("runs/*/*/worker.log"))
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{logs}"
    return done.stdout, logs
