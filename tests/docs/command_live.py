"""Runs the docs' commands for live runs: a tiny detached run of three workers on loopback, steered as the docs say."""

import json
import re
import socket
import time

from columns import too_wide

# In this order, because some end what others need. A run that was stopped is resumed for `attach --stop`.
VERBS = ["ctl status", "top", "ctl set", "ctl pause", "ctl resume", "ctl checkpoint", "observe", "ctl drain",
         "ctl stop", "attach", "attach --stop"]
# It ends by itself within minutes if the test was killed.
FILE = """run: {name: live, steps: 100000, eval_every: 1000, eval_sequences: 2, sample_tokens: 0}
model: {layers: 1, dim: 32}
data: {path: data/corpus, seq_len: 32}
inner: {batch: 2}
trainer: {threads: 1}
device: cpu
sites:
  eu: {replicas: 1}
  us: {replicas: 2}
network: {coordinator: ADDRESS, heartbeat: 0.2s}
"""
STOPPED = 130  # the exit status of a stopped run, which `attach` ends with


class Live:
    def __init__(self, room):
        self.room, self.queue = room, []

    def add(self, command, call, program):
        self.queue.append((command, call, program))

    def run(self, report):
        """Runs all commands and reports each that fails; gives their number."""
        if not self.queue:
            return 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        (self.room.folder / "live.yaml").write_text(FILE.replace("ADDRESS", self.address), encoding="utf-8")
        try:
            self.start(["launch", "--detach", "live.yaml"])
            done = {}
            for stage in VERBS:
                for command, call, program in self.queue:
                    if self.stage(call) != stage:
                        continue
                    words = tuple(self.words(command.words[1:], call))
                    if words not in done:
                        done[words] = self.call(stage, words, program)
                    if done[words]:
                        report(command, f"`isthmus {' '.join(words)}`, with a live run on this machine, {done[words]}")
                if stage == "attach":
                    self.start(["launch", "--detach", "--resume", "runs/live"])
        finally:
            stopped = self.room.call(["attach", "--stop", "runs/live"])
        if stopped.returncode not in (0, STOPPED):
            raise SystemExit(f"the live run did not stop: {stopped.stderr}")
        return len(self.queue)

    def start(self, words):
        started = self.room.call(words)
        deadline = time.monotonic() + 120
        while started.returncode == 0 and time.monotonic() < deadline:
            status = self.room.call(["ctl", "status", "live.yaml", "--json"])
            if status.returncode == 0 and self.trains(json.loads(status.stdout)):
                return
            time.sleep(0.2)
        raise SystemExit(f"the live run, in which the docs' commands run, did not start:\n{started.stderr}"
                         f"{self.room.text('runs/live/launch.log')}")

    @staticmethod
    def trains(status, members=3):
        """Whether this many are in the view, and all of these have made steps."""
        present = Live.present(status)
        return len(present) >= members and all(member.get("step", 0) > 0 for member in present)

    @staticmethod
    def present(status):
        return [member for member in status.get("members", []) if member["state"] == "member"]

    def settle(self):
        """Waits until all members train in the present view: before their first step in it, a change is refused. (A
        change makes a new view, and the first heartbeats in it can be of steps made before.)"""
        views = {}
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            status = self.room.call(["ctl", "status", "live.yaml", "--json"])
            if status.returncode == 0:
                status = json.loads(status.stdout)
                steps = views.setdefault(status.get("view"), {})
                for member in self.present(status):
                    steps.setdefault(member["name"], set()).add(member.get("step", 0))
                # Two, while the link of eu is closed.
                if self.trains(status, 2) and all(len(of_member) > 2 for of_member in steps.values()):
                    return
            time.sleep(0.1)

    def await_checkpoint(self):
        """Waits until a replica that leaves later has a checkpoint that the others have too: the run is resumed."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            of_replicas = [{file.name for file in self.room.folder.glob(f"runs/live/{name}/checkpoints/*.ckpt")}
                           for name in ("eu", "us-1", "us-2")]
            if set.intersection(*of_replicas):
                return
            time.sleep(0.1)

    def stage(self, call):
        return "attach --stop" if call.verb == "attach" and call.values("--stop") else call.verb

    def words(self, words, call):
        words = [re.sub(r"^(runs/.*|RUN|FOLDER)$", "runs/live", word) for word in words]
        if call.verb == "attach":
            return words
        if "--coordinator" in words:
            words[words.index("--coordinator") + 1] = self.address
        words = ["live.yaml" if self.room.mapped(word).endswith(".yaml") else word for word in words]
        # An observer follows a run to its end.
        return words + (["--once"] if call.verb == "observe" and "--once" not in words else [])

    def call(self, stage, words, program):
        if stage in ("ctl set", "ctl pause"):
            self.settle()
        done = self.room.call(words, program)
        if stage == "ctl checkpoint":
            self.await_checkpoint()
        if stage == "ctl pause":
            self.room.call(["ctl", "resume", "live.yaml"])
        if done.returncode == (STOPPED if stage == "attach" else 0):
            # `attach` prints the log; a line of it may be wide.
            wide = [] if stage == "attach" or "--json" in words else too_wide(done.stdout)
            return "".join(f"printed a line of {len(line)} columns: {line}" for line in wide[:1])
        return f"ended with status {done.returncode}: {done.stderr.strip()[-600:]}"
