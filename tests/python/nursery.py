"""Forks Python workers from a process that has imported torch, since the import takes longer than most workers run.

A forked worker behaves as if started by `python SCRIPT ARGUMENT ...`. As a program, started only by Nursery, this
module reads a line of JSON for each worker and answers with the worker's process id.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import pathlib
import signal
import subprocess
import sys
import time
import types


class Worker:
    """The part of subprocess.Popen that the tests use."""

    def __init__(self, pid, status):
        self.pid, self.status, self.returncode = pid, status, None

    def poll(self):
        if self.returncode is None and self.status.exists():
            self.returncode = int(self.status.read_text())
        return self.returncode

    def wait(self, timeout=600):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired(str(self.status), timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class Nursery:
    def __init__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-B", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, words, folder, name, modules=()):
        """Starts a worker in this folder, with its output in NAME.log. Imports the modules once for all workers."""
        log, status = folder / f"{name}.log", folder / f"{name}.status"
        log.write_text("")
        status.unlink(missing_ok=True)
        job = {"words": words, "folder": folder, "log": log, "status": status, "modules": modules}
        print(json.dumps(job, default=str), file=self.process.stdin, flush=True)
        pid = self.process.stdout.readline()
        assert pid, "the process that forks workers has ended"
        return Worker(int(pid), status)

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def serve(jobs):
    """Returns in each worker with its job, and in the parent with None after the last job."""
    for line in jobs:
        job = json.loads(line)
        for module in job["modules"]:
            importlib.import_module(module)
        gc.freeze()  # so that the exit of a forked worker does not copy the pages of all imported modules
        if os.fork() != 0:
            continue
        worker = os.fork()
        if worker == 0:
            return job
        os.write(1, f"{worker}\n".encode())
        os.close(1)
        code = os.waitstatus_to_exitcode(os.waitpid(worker, 0)[1])
        written = pathlib.Path(job["status"] + ".new")
        written.write_text(str(code))
        written.rename(job["status"])
        os._exit(0)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.wait()


def become(job):
    """Turns this process into the worker of the job."""
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(job["log"], os.O_WRONLY)
    for opened, number in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(opened, number)
    # The first call recreates a forked process's thread pool, and must not happen in two threads at once.
    torch.set_num_threads(torch.get_num_threads())
    os.chdir(job["folder"])
    script = sys.argv[0] = job["words"][0]
    sys.argv[1:] = map(str, job["words"][1:])
    sys.path[0] = os.path.dirname(script)
    sys.modules["__main__"] = program = types.ModuleType("__main__")
    program.__file__ = script
    exec(compile(pathlib.Path(script).read_bytes(), script, "exec"), program.__dict__)
    program.has_ended = True


def end_fast():
    """Skips torch's destructors after a script without an exception: they would take longer than most scripts."""
    if getattr(sys.modules["__main__"], "has_ended", False):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


if __name__ == "__main__":
    atexit.register(end_fast)  # the first one registered is the last one called
    import torch._dynamo  # otherwise imported by the first optimizer
    import torch.distributed.checkpoint.state_dict
    import torch.distributed.fsdp

    if job := serve(sys.stdin):
        become(job)
