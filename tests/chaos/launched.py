"""The run of a soak that `launch` starts, and the faults that can be caused in it."""

import collections
import json
import os
import re
import signal
import subprocess
import sys
import time

from faults import processes_with, write_fake_ssh
from processes import Failure, GrowingFile, die_with_parent, free_port, tail

LAUNCHED_PATIENCE = 150  # seconds; `launch` increases its delays for processes that die again
STEPS_OF_EACH = 15  # steps of each worker before the run counts as recovered

# Kinds of faults and their weights.
LAUNCHED_KINDS = {"kill a launched worker": 2, "kill the launched coordinator": 1, "suspend a launched worker": 1,
                  "cut ssh": 2, "kill the launcher": 1}


class Launched:
    """The run that `launch` starts: two sites over a fake ssh, which can be killed, and a local worker."""

    SITES = ("eu", "us")
    WORKERS = ("ap", "eu", "us")
    COORDINATOR_RESTARTS = 3  # limit of one launch

    def __init__(self, binary, folder, cluster):
        self.binary, self.folder, self.note = binary, folder, cluster.note
        folder.mkdir()
        self.environment = {**os.environ,
                            "PATH": f"{write_fake_ssh(folder / 'bin', sys.executable)}:{os.environ['PATH']}"}
        sites = "".join(f"  {site}: {{launch: {{ssh: {site}@127.0.0.1, program: {binary}, folder: {folder / site}}}}}\n"
                        for site in self.SITES)
        self.config = folder / "launched.yaml"
        text = cluster.config.read_text()
        text = re.sub(r"run: \{name: chaos, out: [^,]*", f"run: {{name: launched, out: {folder / 'runs'}, "
                      "restarts: 1000000", text)
        text = re.sub(r"replicas: \d+\n", "", text, count=1)
        text = re.sub(r"127\.0\.0\.1:\d+", f"127.0.0.1:{free_port()}", text)
        self.config.write_text(text + f"sites:\n{sites}  ap: {{replicas: 1}}\n")
        self.run_folder = folder / "runs" / "launched"
        self.settings = ["inner.schedule=constant", "network.emulate.rtt=100ms", "outer.max_local_rounds=100000"]
        places = {"ap": self.run_folder, **{site: folder / site / "launched" for site in self.SITES}}
        self.folders = {name: place / name for name, place in places.items()}
        self.metrics = {name: GrowingFile(place / "metrics.jsonl") for name, place in self.folders.items()}
        self.steps = collections.Counter()
        self.newest = {name: 0.0 for name in self.WORKERS}  # time at which the last step was read
        self.lives = self.restarts = 0
        self.launcher = None
        self.ended = False
        self.takes_up_at = None
        self.stopped = {}  # process id -> time at which it resumes
        self.last_step = time.monotonic()

    def start(self, *words):
        self.lives += 1
        self.coordinator_kills = 0
        self.log = self.folder / f"launch.{self.lives}.log"
        command = [self.binary, "launch", *words]
        with open(self.log, "wb") as log:
            self.launcher = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                             env=self.environment, start_new_session=True,
                                             preexec_fn=die_with_parent)

    def begin(self):
        self.start(str(self.config), *(w for s in self.settings for w in ("--set", s)))

    def processes(self, *words):
        return list(processes_with(str(self.folder), *words))

    def __exit__(self, *_):
        if self.launcher and self.launcher.poll() is None:
            self.launcher.kill()
            self.launcher.wait()
        for pid in self.processes():
            self.signal(pid, signal.SIGKILL)

    @staticmethod
    def signal(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def turn(self):
        now = time.monotonic()
        for name, file in self.metrics.items():
            for line in file.new_lines():
                if b'"data_step"' in line:
                    self.steps[name] += 1
                    self.newest[name] = self.last_step = now
        for pid in [pid for pid, end in self.stopped.items() if now >= end]:
            self.signal(pid, signal.SIGCONT)
            del self.stopped[pid]
        if self.takes_up_at is not None:
            if now >= self.takes_up_at:
                self.take_up()
        elif self.launcher and not self.ended and self.launcher.poll() is not None:
            raise Failure(f"launch ended with status {self.launcher.returncode}; the end of {self.log}:\n"
                          f"{tail(self.log, 20)}")
        if self.launcher and not self.ended and now - self.last_step > LAUNCHED_PATIENCE:
            raise Failure(f"a hang: no worker of the launched run made a step for {LAUNCHED_PATIENCE} s; "
                          f"the end of {self.log}:\n{tail(self.log, 20)}")

    def take_up(self):
        """Resumes the run after the launcher was killed, with the remaining processes or from their checkpoints."""
        self.takes_up_at = None
        self.note("the launched run is resumed")
        self.restarts += 1
        self.last_step = time.monotonic()
        self.start("--resume", str(self.run_folder))

    # ---- faults ----

    def all_train(self):
        now = time.monotonic()
        return self.takes_up_at is None and all(now - at < 3 for at in self.newest.values())

    def have_a_checkpoint(self):
        """Whether all workers have a common checkpoint. After a restart a worker has none for a while; if the launcher
        died then, the run would have to be resumed by hand."""
        kept = [{file.name for file in (folder / "checkpoints").glob("*.ckpt")} for folder in self.folders.values()]
        return bool(set.intersection(*kept))

    def happens(self, kind, rng):
        name, site, pause = rng.choice(self.WORKERS), rng.choice(self.SITES), rng.uniform(0.1, 6)
        if not self.all_train() or self.stopped:
            return False
        worker = self.processes(" worker ", f"--name {name} ")
        if kind == "kill a launched worker":
            return self.kill(f"launched {name}", worker)
        if kind == "kill the launched coordinator":
            if self.coordinator_kills == self.COORDINATOR_RESTARTS:
                return False
            self.coordinator_kills += 1
            return self.kill("the launched coordinator", self.processes(" coordinator "))
        if kind == "suspend a launched worker" and worker:
            self.note(f"SIGSTOP launched {name} for {pause:.1f} s")
            self.signal(worker[0], signal.SIGSTOP)
            self.stopped[worker[0]] = time.monotonic() + pause
            return True
        if kind == "cut ssh":
            return self.kill(f"ssh to {site}", self.processes(f" {site}@127.0.0.1 "))
        if kind == "kill the launcher" and self.have_a_checkpoint():
            self.note(f"kill -9 launch; resumed in {pause:.1f} s")
            self.launcher.kill()
            self.launcher.wait()
            self.takes_up_at = time.monotonic() + pause
            return True
        return False

    def kill(self, what, pids):
        if not pids:
            return False
        self.note(f"kill -9 {what}")
        self.restarts += 1
        for pid in pids:
            self.signal(pid, signal.SIGKILL)
        return True

    # ---- its end ----

    def heal(self):
        for pid in self.stopped:
            self.stopped[pid] = 0

    def everybody_is_back(self):
        marks = dict(self.steps)
        return lambda: self.all_train() and all(self.steps[name] >= marks.get(name, 0) + STEPS_OF_EACH
                                                for name in self.WORKERS)

    def stop(self):
        self.ended = True
        self.launcher.send_signal(signal.SIGINT)

    def check(self):
        if self.launcher.returncode != 130:
            raise Failure(f"launch ended with status {self.launcher.returncode}, expected 130; the end of {self.log}:\n"
                          f"{tail(self.log, 20)}")
        if left := processes_with(str(self.folder)):
            raise Failure(f"processes that launch has left running: {left}")
        hashes = json.loads((self.run_folder / "summary.json").read_text())["global_hash"]
        if set(hashes) != set(self.WORKERS) or len(set(hashes.values())) != 1:
            raise Failure(f"global hashes of the launched run: {hashes}")
        return next(iter(hashes.values()))
