"""A run of a coordinator and workers on loopback, which are killed, suspended, asked to leave and restarted while their
output is read. Shared by chaos.py, cut_sites.py and soak_cluster.py.
"""

import json
import random
import re
import signal
import sys
import time

from processes import Failure, Process, Worker, free_port, tail

REPLICAS = 4
MIN_REPLICAS = 2
PATIENCE = 90  # seconds without a step of any worker that count as a hang
LEFT, REFUSED = 128 + signal.SIGTERM, 2

CONFIG = """\
run: {{name: chaos, out: {out}, steps: {steps}, checkpoint_every: 50, eval_every: 100, eval_sequences: 64,
       sample_tokens: 0, trace_steps: 0}} # with checkpoints, so that a returning worker moves its old folder
replicas: {replicas}
device: cpu
model: {{layers: 2, dim: 32, heads: 2}}
data: {{path: {corpus}, seq_len: 32}}
inner: {{batch: 4, lr: 3e-3, warmup_steps: 5, precision: fp32}}
trainer: {{threads: 1}}
outer: {{num_fragments: 3, sync_every: {sync_every}, sync_delay: 2, codec: int4, error_feedback: true, warmup_steps: 10,
        min_replicas: {min_replicas}, max_local_rounds: 1000}} # a round takes a second; must outlast suspensions
network: {{coordinator: "127.0.0.1:{port}", heartbeat: 300ms, detect_timeout: 3s, emulate: {{rtt: 400ms}}}}
"""


def write_corpus(file):
    words = "stone river light small bridge carries the north water over under wind of and a".split()
    rng = random.Random(1)
    text = ""
    while len(text) < 200_000:
        text += "".join(rng.choice(words) + (".\n" if rng.random() < 0.125 else " ") for _ in range(1000))
    file.write_text(text)


class Cluster:
    """The run, and the faults that can be caused in it. Single-threaded: everything happens in `turn`."""

    def __init__(self, binary, folder, steps, sync_every=30, settings=()):
        self.binary, self.folder = binary, folder
        folder.mkdir()
        write_corpus(folder / "corpus.txt")
        self.config = folder / "chaos.yaml"
        self.port = free_port()
        self.config.write_text(CONFIG.format(out=folder / "runs", corpus=folder / "corpus.txt", steps=steps,
                                             port=self.port, replicas=REPLICAS,
                                             min_replicas=MIN_REPLICAS, sync_every=sync_every))
        self.steps = steps
        self.settings = list(settings)
        self.later = []  # (time, action)
        self.hurry = False
        self.events = []
        self.begin = time.monotonic()
        self.coordinator = Process("coordinator", self.command("coordinator"), folder, self.environment("coordinator"))
        self.workers = [
            Worker(name, self.command(name), folder, self.run_folder_of(name) / name / "metrics.jsonl",
                   self.environment(name))
            for name in (f"w{m}" for m in range(REPLICAS + 1))]
        self.fifth = self.workers[-1]
        self.last_step = time.monotonic()

    # ---- overridden by other kinds of runs ----

    def run_folder_of(self, name):
        return self.folder / "runs" / "chaos"

    def settings_of(self, name):
        return []

    def flags_of(self, name):
        return []

    def environment(self, name):
        return {}

    def expects(self, difference):
        """Whether a line of a log that reports a difference is expected."""
        return False

    # ---- processes ----

    @property
    def run_folder(self):
        """The coordinator's run folder."""
        return self.run_folder_of("coordinator")

    def command(self, name):
        verb = ["coordinator"] if name == "coordinator" else ["worker", "--quiet", "--name", name]
        settings = [*self.settings, *self.settings_of(name)]
        return [self.binary, *verb, "--config", str(self.config), *self.flags_of(name),
                *(word for setting in settings for word in ("--set", setting))]

    def __enter__(self):
        self.coordinator.start()
        for worker in self.workers[:-1]:
            worker.start()
        return self

    def __exit__(self, *_):
        for process in self.processes():
            process.kill()

    def processes(self):
        return [self.coordinator, *self.workers]

    def note(self, text):
        self.events.append((time.monotonic(), text))
        print(f"{time.monotonic() - self.begin:7.1f} s, step {self.step():5}: {text}", file=sys.stderr, flush=True)

    def step(self):
        return max((w.step or 0 for w in self.workers if w.lives), default=0)

    def inner_steps(self):
        return sum(len(w.times) for w in self.workers)

    def after(self, seconds, action):
        self.later.append((time.monotonic() + (0 if self.hurry else seconds), action))

    def turn(self):
        """One turn of the loop: runs due actions, reads new lines, checks ended processes, and detects hangs."""
        time.sleep(0.02)
        due = [entry for entry in self.later if entry[0] <= time.monotonic()]
        self.later = [entry for entry in self.later if entry not in due]
        for _, action in due:
            action()
        before = self.inner_steps()
        for worker in self.workers:
            worker.read()
            if worker.problems:
                raise Failure(f"{worker.name}: {worker.problems[0]}")
        if self.inner_steps() > before:
            self.last_step = time.monotonic()
        for process in self.processes():
            self.check_end(process)
        # The last rounds and evaluations are not steps, so the limit includes them.
        if time.monotonic() - self.last_step > PATIENCE:
            raise Failure(f"a hang: no worker made a step for {PATIENCE} s\n" + self.ends_of_logs())

    def check_end(self, process):
        if process.child is None or process.running() or process.absent:
            return
        status = process.child.returncode
        if status not in process.expected:
            raise Failure(f"{process.name} ended with status {status}, expected {sorted(process.expected)}; "
                          f"the end of {process.log}:\n{tail(process.log)}")
        process.absent = True

    def coordinator_is_done(self):
        return not self.coordinator.running() and self.coordinator.child.returncode in self.coordinator.expected

    def ends_of_logs(self):
        return "\n".join(f"--- {p.log}\n{tail(p.log)}" for p in self.processes() if p.lives)

    # ---- faults ----

    def newest_view(self):
        """The names of the replicas in the newest view."""
        views = [("0", ", ".join(w.name for w in self.workers[:-1]))]
        for log in self.folder.glob("coordinator.*.log"):
            views += re.findall(r"^view (\d+) begins with \d+ replicas: (.*)$", log.read_text(errors="replace"), re.M)
        return max(views, key=lambda numbered: int(numbered[0]))[1].split(", ")

    def can_do_without(self, worker):
        """Whether outer.min_replicas of the newest view remain, awake and with the state: otherwise the run would stop
        until an operator lowers this setting."""
        view = self.newest_view()
        remain = [w for w in self.workers if w is not worker and w.name in view and w.takes_part() and not w.stopped]
        return len(remain) >= MIN_REPLICAS

    def kill_worker(self, worker, pause):
        self.note(f"kill -9 {worker.name}; again in {pause:.1f} s")
        worker.kill()
        worker.leaving = True
        self.after(pause, lambda: self.start_again(worker))

    def start_again(self, process):
        self.note(f"{process.name} starts again")
        process.start()

    def suspend(self, process, pause):
        self.note(f"SIGSTOP {process.name} for {pause:.1f} s")
        process.suspend()
        life = process.lives
        self.after(pause, lambda: process.wake() if process.lives == life else None)

    def ask_to_leave(self, worker, pause):
        self.note(f"SIGTERM {worker.name}" + (f"; again {pause:.1f} s after its end" if pause else ""))
        worker.leaving = True
        worker.expected = {LEFT}
        worker.child.send_signal(signal.SIGTERM)
        if pause:
            self.when_ended(worker, pause)

    def when_ended(self, worker, pause):
        if worker.running():
            return self.after(0.1, lambda: self.when_ended(worker, pause))
        self.after(pause, lambda: self.start_again(worker))

    def kill_coordinator(self, pause):
        self.note(f"kill -9 coordinator; again in {pause:.1f} s")
        self.coordinator.kill()
        self.after(pause, lambda: self.start_again(self.coordinator))

    # ---- the course of a run ----

    def wait_for_begin(self):
        while not all(w.data_step for w in self.workers[:-1]):
            self.turn()

    def come_back(self):
        """Restarts absent processes now."""
        self.hurry = True
        self.later = [(0, action) for _, action in self.later]

    def let_end(self):
        while self.later or any(p.running() for p in self.processes()):
            for worker in self.workers:
                if worker.running() and worker.data_step is None:
                    worker.expected |= {REFUSED}
            self.turn()
            for worker in self.workers:
                if self.coordinator_is_done() and worker.running() and worker.data_step is None:
                    self.note(f"{worker.name} joined too late for this run")
                    worker.kill()
        for worker in self.workers:
            if worker.lives and worker.child.returncode == REFUSED and "nothing left to join" not in worker.log.read_text():
                raise Failure(f"{worker.name} was refused; the end of {worker.log}:\n{tail(worker.log)}")

    def run_to_stop(self):
        """Performs an agreed stop: Ctrl-C at the coordinator."""
        self.coordinator.expected = {130}
        self.coordinator.child.send_signal(signal.SIGINT)
        self.let_end()

    def wait_for(self, what, ready, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise Failure(f"{what} did not happen within {seconds} s\n" + self.ends_of_logs())
            self.turn()

    def global_hashes(self):
        """Global hashes of the workers that ended without an error, by name; checks that they are equal."""
        hashes, ended = {}, []
        for worker in self.workers:
            if not worker.lives or worker.child.returncode != 0:
                continue
            ended.append(worker.name)
            found = re.search(r"(?:done|stopped after step [0-9]+): global hash ([0-9a-f]{64})", worker.log.read_text())
            hashes[worker.name] = found[1] if found else "none"
        if len(ended) < 2:
            raise Failure(f"only {ended} reached the end; at least two are needed for a comparison")
        if len(set(hashes.values())) != 1 or "none" in hashes.values():
            raise Failure(f"global hashes at the end differ or are missing: {hashes}")
        return hashes

    def check(self):
        hashes = self.global_hashes()
        for log in self.folder.glob("*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if "differ" in line and not self.expects(line):
                    raise Failure(f"{log}: {line}")
        summary = json.loads((self.run_folder / "summary.json").read_text())
        if set(summary["global_hash"].values()) != set(hashes.values()):
            raise Failure(f"summary.json and the workers have different hashes: {summary['global_hash']}, {hashes}")
        if summary["steps"] != self.steps:
            raise Failure(f"the run ended at step {summary['steps']}, not {self.steps}")
        return summary

    def longest_gap_after_kills(self):
        """Longest time between two inner steps of an undisturbed worker, within 10 s after another was killed."""
        longest = 0.0
        for at, text in self.events:
            if not text.startswith("kill -9 w"):
                continue
            for worker in self.workers:
                if any(abs(t - at) < 10 and worker.name in what for t, what in self.events):
                    continue
                seen = [t for t, _ in worker.times if at - 2 < t < at + 10]
                longest = max([longest, *(b - a for a, b in zip(seen, seen[1:]))])
        return longest
