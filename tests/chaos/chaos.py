#!/usr/bin/env python3
"""Chaos on real processes: a coordinator and four workers on loopback, to which things happen at random.

    tests/chaos/chaos.py build/release/isthmus [--minutes 10] [--seed N] [--goodput SECONDS] [--stopped SECONDS]

Workers are killed, suspended and asked to leave, and come back; a fifth one joins and leaves; the coordinator is
killed and started again: each once, and then whatever comes. Then the run is let end, and everything about it must be
right: exit statuses, equal global hashes, a summary, every step's data accounted for, and a loss like that of runs to
which nothing happened. Prints what it measured as JSON. The seed fixes what happens and after which pauses, not the
machine's timing.
"""

import argparse
import ctypes
import json
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

REPLICAS = 4
MIN_REPLICAS = 2
MOST_GROWTH = 16 << 20  # bytes of resident memory: what an allocator may come to by itself
STEPS_PER_MINUTE = 900  # the round trip below makes it at least so long, whatever the machine
PATIENCE = 90  # seconds without a step of anybody: a hang
KINDS = {"kill": 4, "suspend": 4, "leave": 2, "coordinator": 2, "fifth": 2}  # what happens, and how often
JOINED, LEFT = "joined", 128 + signal.SIGTERM

CONFIG = """\
run: {{name: chaos, out: {out}, steps: {steps}, eval_every: 100, eval_sequences: 64, sample_tokens: 0, trace_steps: 0}}
replicas: {replicas}
device: cpu
model: {{layers: 2, dim: 32, heads: 2}}
data: {{path: {corpus}, seq_len: 32}}
inner: {{batch: 4, lr: 3e-3, warmup_steps: 5, precision: fp32}}
trainer: {{threads: 1}}
outer: {{num_fragments: 3, sync_every: {sync_every}, sync_delay: 2, codec: int4, error_feedback: true, warmup_steps: 10,
        min_replicas: {min_replicas}, max_local_rounds: 1000}} # its rounds take a second; a suspended run must outlast what happens here
network: {{coordinator: "127.0.0.1:{port}", heartbeat: 300ms, detect_timeout: 3s, emulate: {{rtt: 400ms}}}}
"""


class Failure(Exception):
    pass


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def tail(file, lines=8):
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else "(none)"


def write_corpus(file):
    words = "stone river light small bridge carries the north water over under wind of and a".split()
    rng = random.Random(1)
    text = ""
    while len(text) < 200_000:
        text += "".join(rng.choice(words) + (".\n" if rng.random() < 0.125 else " ") for _ in range(1000))
    file.write_text(text)


class Process:
    """One program that may be started several times; each time is a life with a log of its own."""

    def __init__(self, name, command, folder):
        self.name, self.command, self.folder = name, command, folder
        self.lives = 0
        self.child = None
        self.expected = {0}  # exit statuses that are all right in this life
        self.stopped = False
        self.absent = False  # it ended, and the script knows why

    @property
    def log(self):
        return self.folder / f"{self.name}.{self.lives}.log"

    def start(self):
        self.lives += 1
        self.expected, self.stopped, self.absent = {0}, False, False
        self.started = time.monotonic()
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                          start_new_session=True, preexec_fn=die_with_parent)

    def running(self):
        return self.child is not None and self.child.poll() is None

    def kill(self):
        if self.running():
            self.child.kill()
            self.child.wait()
            self.absent = True

    def suspend(self):
        self.stopped = True
        self.child.send_signal(signal.SIGSTOP)

    def resident(self):
        """Bytes of memory."""
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    def wake(self):
        self.stopped = False
        if self.running():
            self.child.send_signal(signal.SIGCONT)


class Worker(Process):
    """Reads along in metrics.jsonl; what the lines say is judged life by life."""

    def __init__(self, name, command, folder, metrics):
        super().__init__(name, command, folder)
        self.metrics = metrics
        self.offset, self.rest = 0, b""
        self.times = []  # when the line of a step was seen: (time, life)
        self.joins = []  # (seconds from start to taking part, seconds of those for the state)
        self.problems = []
        self.leaving = False

    def start(self):
        self.read()
        self.rest = b""  # half a line of one that was killed
        self.data_step = self.step = None
        self.begins_at = None
        self.leaving = False
        super().start()

    def takes_part(self):
        return self.running() and not self.leaving and self.data_step is not None

    def read(self):
        if not self.metrics.exists():
            return
        with open(self.metrics, "rb") as file:
            file.seek(self.offset)
            new = file.read()
        self.offset += len(new)
        *lines, self.rest = (self.rest + new).split(b"\n")
        for line in filter(None, lines):
            self.take(line)

    def take(self, line):
        try:
            record = json.loads(line)
        except ValueError:
            return self.problems.append(f"life {self.lives}: not a line of JSON: {line[:80]!r}")
        if record.get("event") == JOINED:
            if self.begins_at is None:  # else it only takes the state once more, after an absence
                self.joins.append((time.monotonic() - self.started, record["seconds"]))
                self.begins_at = record["step"]
            self.step = None  # it may have been ahead of the others
        if "data_step" not in record:
            return
        self.times.append((time.monotonic(), self.lives))
        expected = ((self.begins_at or 0) if self.data_step is None else self.data_step) + 1
        self.data_step, step, self.bytes_sent = record["data_step"], record["step"], record["bytes_sent"]
        if self.data_step != expected:
            self.problems.append(f"life {self.lives}: data_step is {self.data_step} at step {step}, not {expected}")
        if self.step is not None and step < self.step:
            self.problems.append(f"life {self.lives}: step {step} follows step {self.step}")
        self.step = step


class Cluster:
    def __init__(self, binary, folder, steps, sync_every=30, settings=()):
        self.folder = folder
        folder.mkdir()
        write_corpus(folder / "corpus.txt")
        self.config = folder / "chaos.yaml"
        self.config.write_text(CONFIG.format(out=folder / "runs", corpus=folder / "corpus.txt", steps=steps,
                                             port=free_port(), replicas=REPLICAS,
                                             min_replicas=MIN_REPLICAS, sync_every=sync_every))
        self.steps = steps
        self.run_folder = folder / "runs" / "chaos"
        self.later = []  # (when, what)
        self.hurry = False
        self.events = []
        self.begin = time.monotonic()
        config = ["--config", str(self.config), *(word for setting in settings for word in ("--set", setting))]
        self.coordinator = Process("coordinator", [binary, "coordinator", *config], folder)
        self.workers = [
            Worker(name, [binary, "worker", "--quiet", "--name", name, *config], folder,
                   self.run_folder / name / "metrics.jsonl")
            for name in (f"w{m}" for m in range(REPLICAS + 1))]
        self.fifth = self.workers[-1]
        self.last_step = time.monotonic()

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
        """Once round the loop: what is due, what was written, who has ended, whether anything moves."""
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
        # The last rounds and evaluations are no steps, so this holds for the end too.
        if time.monotonic() - self.last_step > PATIENCE:
            raise Failure(f"a hang: nobody has made a step for {PATIENCE} s\n" + self.ends_of_logs())

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

    # ---- what happens ----

    def can_do_without(self, worker):
        """Whether outer.min_replicas of the newest view remain, with the state and awake: else the run stands still until
        an operator lowers it."""
        views = [("0", ", ".join(w.name for w in self.workers[:-1]))]
        for log in self.folder.glob("coordinator.*.log"):
            views += re.findall(r"^view (\d+) begins with \d+ replicas: (.*)$", log.read_text(errors="replace"), re.M)
        view = max(views, key=lambda numbered: int(numbered[0]))[1].split(", ")
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

    def suspend(self, worker, pause):
        self.note(f"SIGSTOP {worker.name} for {pause:.1f} s")
        worker.suspend()
        life = worker.lives
        self.after(pause, lambda: worker.wake() if worker.lives == life else None)

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

    def something(self, rng, what, seconds):
        """One thing of that kind, in a run of so many seconds, if it can happen to anybody now. The draws do not depend
        on what is possible, so that a seed means something."""
        workers = rng.sample(self.workers, len(self.workers))
        pause = rng.uniform(0.1, min(10, seconds / 5))
        nap = rng.choice([rng.uniform(0.1, 1), rng.uniform(1, min(8, seconds / 4))])
        return any(self.happens(what, worker, pause, nap) for worker in workers)

    def happens(self, what, worker, pause, nap):
        """False, and nothing, where it cannot happen now."""
        free = worker.running() and not worker.leaving and not worker.stopped
        can_go = free and self.can_do_without(worker)
        if what == "kill" and can_go:
            self.kill_worker(worker, pause)
        elif what == "suspend" and free:
            self.suspend(worker, nap)
        elif what == "leave" and can_go and worker.takes_part() and worker is not self.fifth:
            self.ask_to_leave(worker, pause)
        elif what == "coordinator" and self.coordinator.running():
            self.kill_coordinator(pause)
        elif what == "fifth" and not self.fifth.lives:
            self.note("the fifth worker joins")
            self.fifth.start()
        elif what == "fifth" and self.fifth.takes_part() and not self.fifth.stopped and self.can_do_without(self.fifth):
            self.ask_to_leave(self.fifth, pause)
        else:
            return False
        return True

    # ---- the course of a run ----

    def wait_for_begin(self):
        while not all(w.data_step for w in self.workers[:-1]):
            self.turn()

    def chaos(self, rng, seconds):
        self.wait_for_begin()
        end = time.monotonic() + seconds
        missing = rng.sample(list(KINDS), len(KINDS))
        # Its last part belongs to those who come back: a run that is ending takes nobody in.
        while self.step() < 0.85 * self.steps and (missing or time.monotonic() < end):
            pause = time.monotonic() + rng.uniform(min(1, seconds / 60), min(6, seconds / 12))
            while time.monotonic() < pause:
                self.turn()
            (by_chance,) = rng.choices(list(KINDS), list(KINDS.values()))
            if self.something(rng, missing[0] if missing else by_chance, seconds) and missing:
                missing.pop(0)
        self.note("nothing more happens from here on; who is away comes back now")
        self.hurry = True
        self.later = [(0, action) for _, action in self.later]

    def let_end(self):
        while self.later or any(p.running() for p in self.processes()):
            self.turn()
            for worker in self.workers:
                if self.coordinator_is_done() and worker.running() and worker.data_step is None:
                    self.note(f"{worker.name} has come too late for this run")
                    worker.kill()

    def run_to_stop(self):
        """The agreed stop: Ctrl-C at the coordinator."""
        self.coordinator.expected = {130}
        self.coordinator.child.send_signal(signal.SIGINT)
        self.let_end()

    def wait_for(self, what, ready, seconds=PATIENCE):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise Failure(f"{what} did not come in {seconds} s\n" + self.ends_of_logs())
            self.turn()

    def global_hashes(self):
        """Of those that have ended well, by name; checks that they are equal."""
        hashes, ended = {}, []
        for worker in self.workers:
            if not worker.lives or worker.child.returncode != 0:
                continue
            ended.append(worker.name)
            found = re.search(r"done: global hash ([0-9a-f]{64})", worker.log.read_text())
            hashes[worker.name] = found[1] if found else "none"
        if len(ended) < 2:
            raise Failure(f"only {ended} were there at the end; with nobody else there is nothing to compare")
        if len(set(hashes.values())) != 1 or "none" in hashes.values():
            raise Failure(f"global hashes at the end differ or are missing: {hashes}")
        return hashes

    def check(self):
        hashes = self.global_hashes()
        for log in self.folder.glob("*.log"):
            for line in log.read_text(errors="replace").splitlines():
                if "differ" in line:
                    raise Failure(f"{log}: {line}")
        summary = json.loads((self.run_folder / "summary.json").read_text())
        if set(summary["global_hash"].values()) != set(hashes.values()):
            raise Failure(f"summary.json has other hashes than the workers: {summary['global_hash']}, {hashes}")
        if summary["steps"] != self.steps:
            raise Failure(f"the run ended at step {summary['steps']}, not {self.steps}")
        return summary

    def longest_gap_after_kills(self):
        """Seconds between two inner steps of one that nothing happened to, in the 10 s after another was killed."""
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


def quiet_loss(binary, cluster, seed):
    """Of the same run without delays: what the network does changes no bit of it."""
    name = f"quiet-{seed}"
    command = [binary, "launch", str(cluster.config), "--set", f"run.name={name}", "--set", f"run.seed={seed}",
               "--set", "network.emulate.rtt=0", "--set", "network.detect_timeout=60s", "--set",
               "network.coordinator=127.0.0.1:0"]
    log = cluster.folder / f"{name}.log"
    with open(log, "wb") as out:
        status = subprocess.run(command, stdout=out, stderr=out, preexec_fn=die_with_parent).returncode
    if status != 0:
        raise Failure(f"the quiet run ended with status {status}; the end of {log}:\n{tail(log)}")
    return json.loads((cluster.folder / "runs" / name / "summary.json").read_text())["final_eval_loss"]


def check_loss(loss, quiet):
    """Less data went into a run with fewer replicas, so its loss may be a little higher: 2 %, and what seeds
    differ by."""
    limit = max(quiet) + 3 * (max(quiet) - min(quiet)) + 0.02 * max(quiet)
    if loss > limit:
        raise Failure(f"the final loss is {loss:.4f}, above {limit:.4f}; quiet runs end with {quiet}")


def steps_in(binary, folder, seconds, failure_every=None):
    """Inner steps of all in a time, with a worker killed and started again as often."""
    with Cluster(binary, folder, steps=1_000_000) as cluster:
        cluster.wait_for_begin()
        first, end = cluster.inner_steps(), time.monotonic() + seconds
        if failure_every:
            for n in range(int(seconds / failure_every)):
                victim = cluster.workers[n % REPLICAS]
                cluster.after((n + 0.5) * failure_every, lambda w=victim: cluster.kill_worker(w, 0))
        while time.monotonic() < end:
            cluster.turn()
        return cluster.inner_steps() - first, cluster


def state_transfer(binary, folder):
    """Bytes that the members sent for one newcomer, in a run that has no rounds after its warm-up, so that nothing
    but heartbeats is to be taken off."""
    with Cluster(binary, folder / "state", steps=1_000_000, sync_every=1_000_000) as cluster:
        members, newcomer = cluster.workers[:-1], cluster.fifth
        cluster.wait_for_begin()
        while cluster.step() < 20:
            cluster.turn()

        def sent_until(happened):
            begin, before = time.monotonic(), sum(w.bytes_sent for w in members)
            while not happened(time.monotonic() - begin):
                cluster.turn()
            return time.monotonic() - begin, sum(w.bytes_sent for w in members) - before

        quiet_seconds, quiet = sent_until(lambda seconds: seconds > 5)
        newcomer.start()
        seconds, sent = sent_until(lambda _: newcomer.joins)
        cluster.run_to_stop()
        # Parameters, momentum and the inner optimizer's two moments.
        state = 16 * json.loads((cluster.run_folder / "summary.json").read_text())["parameters"]
        sent -= quiet / quiet_seconds * seconds
        return {"state_bytes": state, "state_bytes_sent": round(sent), "sent_to_size": round(sent / state, 3)}


def stopped_peer(binary, folder, seconds):
    """Memory of the others while one of four stands still, with rounds so large and frequent that whatever is kept for
    it would show."""
    settings = ["outer.codec=fp32", "outer.sync_every=6", "model.dim=64", "network.emulate.rtt=0"]
    with Cluster(binary, folder / "stopped", steps=1_000_000, settings=settings) as cluster:
        stopped, *others = cluster.workers[:-1]
        cluster.wait_for_begin()
        cluster.suspend(stopped, 0)
        cluster.later.clear()

        def most_resident(length, sent):
            """In so many seconds, and in more where each has sent less than that meanwhile; and what each has sent."""
            most, end, before = [0] * len(others), time.monotonic() + length, [w.bytes_sent for w in others]

            def sent_by_each():
                return min(w.bytes_sent - bytes_sent for w, bytes_sent in zip(others, before))

            while time.monotonic() < end or sent_by_each() < sent:
                cluster.turn()
                most = [max(least, w.resident()) for least, w in zip(most, others)]
            return most, sent_by_each()

        # After the first part nothing is held up any more: the one that stands still is out of the view.
        begun = time.monotonic()
        first, _ = most_resident(seconds / 4, 2 * MOST_GROWTH)
        last, sent = most_resident(seconds * 3 / 4, 8 * MOST_GROWTH)
        seconds = round(time.monotonic() - begun, 1)
        growth = max(after - before for before, after in zip(first, last))
        if growth > MOST_GROWTH:
            raise Failure(f"while a peer stood still for {seconds:g} s another's memory grew by {growth} bytes; at most "
                          f"{MOST_GROWTH} can be by chance")
        stopped.read()
        stopped.step = None
        stopped.wake()
        cluster.wait_for(f"{stopped.name}, which stood still,", lambda: (stopped.step or 0) + 100 > cluster.step())
        cluster.run_to_stop()
        if len(cluster.global_hashes()) != REPLICAS:
            raise Failure(f"not all were there at the end: {cluster.global_hashes()}")
        return {"stopped_for_s": seconds, "sent_by_each_meanwhile": sent, "memory_growth": growth}


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if values else None


def goodput(binary, folder, seconds):
    quiet, _ = steps_in(binary, folder / "goodput-quiet", seconds)
    with_failures, cluster = steps_in(binary, folder / "goodput-failures", seconds, failure_every=15)
    return {"inner_steps_quiet": quiet, "inner_steps_with_a_failure_each_15_s": with_failures,
            "goodput": round(with_failures / quiet, 3),
            "longest_gap_of_survivors_s": round(cluster.longest_gap_after_kills(), 2),
            "start_to_taking_part_s": [round(s, 2) for w in cluster.workers for s, _ in w.joins]}


def happened(cluster):
    kinds = {"workers_killed": "kill -9 w", "coordinators_killed": "kill -9 c", "suspended": "SIGSTOP",
             "asked_to_leave": "SIGTERM", "joined": "the fifth"}
    counts = {kind: sum(text.startswith(start) for _, text in cluster.events) for kind, start in kinds.items()}
    if 0 in counts.values():
        raise Failure(f"this proves little, not all kinds of failures happened: {counts}; use more --minutes")
    return counts


def run(arguments, folder):
    binary = str(arguments.binary.resolve())
    if arguments.stopped:
        return stopped_peer(binary, folder, arguments.stopped)
    with Cluster(binary, folder / "chaos", int(STEPS_PER_MINUTE * arguments.minutes)) as cluster:
        cluster.chaos(random.Random(arguments.seed), 60 * arguments.minutes)
        cluster.let_end()
        seconds = time.monotonic() - cluster.begin
        summary = cluster.check()
    loss = summary["final_eval_loss"]
    quiet = [quiet_loss(binary, cluster, seed) for seed in range(1, arguments.quiet_runs + 1)]
    joins = [join for worker in cluster.workers for join in worker.joins]
    result = {
        "seed": arguments.seed,
        "steps": cluster.steps,
        "seconds": round(seconds, 1),
        "happened": happened(cluster),
        "replicas_at_the_end": len(summary["global_hash"]),
        "global_hash": next(iter(summary["global_hash"].values())),
        "final_eval_loss": loss,
        "final_eval_loss_of_quiet_runs": quiet,
        "joins": len(joins),
        "start_to_taking_part_s": {"median": median([round(a, 2) for a, _ in joins]),
                                   "longest": round(max((a for a, _ in joins), default=0), 2)},
        "longest_gap_of_survivors_s": round(cluster.longest_gap_after_kills(), 2),
    }
    check_loss(loss, quiet)
    if arguments.goodput:
        result |= {"state_transfer": state_transfer(binary, folder),
                   "goodput": goodput(binary, folder, arguments.goodput)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the isthmus binary")
    parser.add_argument("--minutes", type=float, default=10, help="how long things happen")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31),
                        help="of what happens; a fresh one if not given")
    parser.add_argument("--quiet-runs", type=int, default=3, help="seeds of the runs to compare the loss with")
    parser.add_argument("--goodput", type=float, default=0, metavar="SECONDS",
                        help="measure goodput with a failure each 15 s for so long, and what a newcomer costs; 0 neither")
    parser.add_argument("--stopped", type=float, default=0, metavar="SECONDS",
                        help="only hold one worker still for at least so long, and measure the others' memory")
    parser.add_argument("--keep", action="store_true", help="keep the folder of logs of a run that was all right too")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-chaos-"))
    print(f"--seed {arguments.seed}", file=sys.stderr, flush=True)
    try:
        print(json.dumps(run(arguments, folder), indent=2))
    except Failure as failure:
        print(f"FAILED: {failure}\nAll logs are in {folder}; to see it again: {sys.argv[0]} {arguments.binary} "
              f"--minutes {arguments.minutes:g} --seed {arguments.seed} --stopped {arguments.stopped:g}", file=sys.stderr)
        return 1
    if not arguments.keep:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
