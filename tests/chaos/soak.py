#!/usr/bin/env python3
"""A long run of real processes with faults of all kinds, one every few seconds.

    tests/chaos/soak.py build/release/isthmus [--minutes 60] [--seed N] [--keep]

It has two runs at once. In the first, the test starts each process with its own disk, clock and addresses; workers and
the coordinator are killed and suspended, connections are cut and held up, disks fill, clocks jump, and strangers
connect. `launch` starts the second run, with two sites over ssh; there the launcher is also killed and ssh connections
are cut. Every few minutes the faults pause, and all workers must soon be back and make steps. At the end both runs must
stop in order; then the first is resumed and runs to its end. The test checks exit statuses, equal hashes and the
ledger. Prints a table of faults, and measurements as JSON. The seed fixes the faults and the pauses between them, but
not the machine's timing.
"""

import argparse
import collections
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import traceback

from cluster import MIN_REPLICAS, Cluster, Failure, free_port, tail
from faults import Clock, Disks, Network
from flips import MOST_TRIES, Flips
from launched import LAUNCHED_KINDS, LAUNCHED_PATIENCE, STEPS_OF_EACH, Launched

BACK_WITHIN = 90  # seconds from the last fault until all workers make steps again
CALM_EVERY = 300  # seconds
DISK = 256 << 20  # bytes
BLOCK = 1024  # sequences of a track without an owner that a trainer is dealt at a time
RESERVED = 16 * BLOCK  # sequences that a trainer reserves during a view change (docs/protocol.md)
PAUSE, SHORT_PAUSE = (0.3, 3.5), (0.2, 1.2)  # seconds between faults; the latter in runs of less than two minutes
LONG_RUN = 1800  # seconds; shorter runs need not have all kinds of faults
MIN_FAULTS_AN_HOUR = 1000  # reached if the machine is not too busy
AUDITS_SINCE = 10  # the first protocol version in which members compare their global parameters
FULL = 3  # exit status of a process that cannot write

# Kinds of faults and their weights.
KINDS = {"kill a worker": 3, "kill the coordinator": 2, "suspend a worker": 4, "suspend the coordinator": 1,
         "leave and come back": 1, "the fifth comes or goes": 1, "cut lanes": 4, "hold lanes up": 2,
         "cut control": 3, "hold control up": 1, "fill a disk": 2, "set a clock": 3, "strangers": 3, "flip a bit": 1}


class Surroundings:
    """The environment of the processes: relays, disks and clocks. Reports and omits kinds of faults that this machine
    does not support."""

    def __init__(self, binary, folder):
        self.folder = folder
        self.missing = set()
        version = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
        if int(re.search(r"protocol\s+(\d+)", version)[1]) < AUDITS_SINCE:
            self.leave_out("flip a bit", "this build does not detect it")
        try:
            self.disks = Disks()  # before the first thread
        except OSError as error:
            self.leave_out("fill a disk", f"no mount namespace: {error}")
            self.disks = None
        try:
            self.clock_library = Clock.build(folder)
        except (OSError, subprocess.CalledProcessError) as error:
            self.leave_out("set a clock", f"no C compiler: {error}")
            self.clock_library = None
        self.network = Network()

    def leave_out(self, kind, why):
        print(f"not tested: {kind} ({why})", file=sys.stderr)
        self.missing.add(kind)

    def disk(self, folder):
        if self.disks:
            self.disks.mount(folder, DISK)

    def clock(self, name):
        return Clock(self.folder, name, self.clock_library) if self.clock_library else None


class Soak(Cluster):
    """The run that the test starts process by process."""

    WITH_A_DISK = ("coordinator", "w0", "w1")

    def __init__(self, binary, folder, around):
        self.around = around
        names = ["coordinator", *(f"w{m}" for m in range(5))]
        self.folder = folder
        self.listen = {name: free_port() for name in names[1:]}
        self.advertise = {name: free_port() for name in names[1:]}
        self.control = {name: free_port() for name in names[1:]}
        self.clocks = {name: around.clock(name) for name in names}
        for name in self.WITH_A_DISK:
            around.disk(self.out(name))
        self.resumes_to = None
        settings = ["inner.schedule=constant", "network.emulate.rtt=100ms", "outer.max_local_rounds=100000",
                    "network.detect_timeout=5s"]
        super().__init__(binary, folder, steps=1_000_000_000, settings=settings)
        self.lanes = {name: around.network.relay(self.advertise[name], self.listen[name]) for name in self.listen}
        self.ways = {name: around.network.relay(self.control[name], self.port) for name in self.listen}
        self.troubled = {}  # process name -> the fault that currently affects it
        self.restarts = 0
        self.flips = Flips(self)
        for process in self.processes():
            process.disk_was_full = False  # during this life

    def out(self, name):
        return self.folder.with_name(self.folder.name + "-out") / name

    def run_folder_of(self, name):
        return self.out(name) / "chaos"

    def settings_of(self, name):
        # Each process has its own run folder; all share one secret.
        settings = [f"run.out={self.out(name)}", f"network.secret={self.folder / 'run.secret'}"]
        if name != "coordinator":
            settings += [f"network.listen=127.0.0.1:{self.listen[name]}",
                         f"network.advertise=127.0.0.1:{self.advertise[name]}"]
        if self.resumes_to:
            settings.append(f"run.steps={self.resumes_to}")
        return settings

    def flags_of(self, name):
        flags = [] if name == "coordinator" else ["--coordinator", f"127.0.0.1:{self.control[name]}"]
        return [*flags, "--resume"] if self.resumes_to else flags

    def environment(self, name):
        return self.clocks[name].environment if self.clocks[name] else {}

    def start_again(self, process):
        self.restarts += 1
        super().start_again(process)
        process.disk_was_full = process.lines_are_missing = self.is_full(process.name)

    def is_full(self, name):
        return self.troubled.get(name) == "fill a disk"

    def check_end(self, process):
        """A process that cannot write to a full disk may end, and is restarted."""
        if process.child is None or process.running() or process.absent:
            return
        if process.child.returncode == FULL and process.disk_was_full:
            process.absent = True
            self.note(f"{process.name} ended because its disk is full")
            return self.after(1, lambda: self.start_again(process))
        super().check_end(process)

    def can_do_without(self, worker):
        if self.flips.pending:  # with only two left, the majority would be unknown
            return False
        awake = [w for w in self.workers if w.name not in self.troubled and w is not worker]
        return len(awake) > MIN_REPLICAS and super().can_do_without(worker)

    # ---- faults ----

    def happens(self, kind, rng):
        """Causes a fault of this kind if it is possible for any process now. The random draws do not depend on what is
        possible, so that a seed is reproducible."""
        workers = rng.sample(self.workers, len(self.workers))
        process = rng.choice(self.processes())
        short = rng.choice([rng.uniform(0.1, 1), rng.uniform(1, 6)])
        share = rng.choice([0.1, 0.5, 1])
        seconds = rng.choice([0, rng.randint(-2 * 86400, 2 * 86400), rng.randint(-90, 90)])
        own = random.Random(rng.randrange(1 << 32))
        if kind == "strangers":
            return self.call(own)
        if kind == "set a clock":
            return self.set_clock(process, seconds)
        if kind in ("kill the coordinator", "suspend the coordinator"):
            if not self.coordinator.running() or self.coordinator.stopped or self.flips.pending:
                return False
            if kind == "kill the coordinator":
                self.kill_coordinator(short)
            else:
                self.suspend(self.coordinator, short)
            return True
        if kind == "fill a disk" and self.flips.pending:
            return False
        if kind == "fill a disk":
            return self.fill(rng.choice(self.WITH_A_DISK), short)
        if kind == "flip a bit":  # only one worker, since trying several would hold the run up
            return self.happens_to(workers[0], kind, short, share, own)
        return any(self.happens_to(worker, kind, short, share, own) for worker in workers)

    def happens_to(self, worker, kind, pause, share, rng):
        free = worker.running() and not worker.leaving and not worker.stopped and worker.name not in self.troubled
        can_go = free and self.can_do_without(worker)
        if kind == "the fifth comes or goes":
            if worker is not self.fifth:
                return False
            if not self.fifth.running() and not self.fifth.leaving:
                self.note("the fifth worker joins")
                self.fifth.start()
                return True
            if can_go and worker.takes_part():
                self.ask_to_leave(worker, 0)
                self.when_ended_then(worker, lambda: setattr(worker, "leaving", False))
                return True
            return False
        if kind == "kill a worker" and can_go:
            self.kill_worker(worker, pause)
        elif kind == "leave and come back" and can_go and worker.takes_part() and worker is not self.fifth:
            self.ask_to_leave(worker, pause)
        elif kind == "suspend a worker" and can_go:
            self.suspend(worker, pause)
        elif kind == "flip a bit":
            return can_go and self.flips.flip(worker, rng)
        elif kind == "cut lanes" and free:
            ends = self.lanes[worker.name].cut(share, rng)
            if ends == 0:
                return False
            self.note(f"cut {ends} ends of lanes to {worker.name}")
        elif kind == "cut control" and free:
            self.ways[worker.name].cut(1, rng)
            self.note(f"cut {worker.name} from the coordinator")
        elif kind in ("hold lanes up", "hold control up") and can_go:
            relay = (self.lanes if kind == "hold lanes up" else self.ways)[worker.name]
            self.note(f"{kind} of {worker.name} for {pause:.1f} s")
            relay.hold()
            self.trouble(worker.name, kind, pause, relay.release)
        else:
            return False
        return True

    def trouble(self, name, kind, seconds, end):
        self.troubled[name] = kind

        def over():
            end()
            self.troubled.pop(name, None)
        self.after(seconds, over)

    def when_ended_then(self, worker, action):
        if worker.running():
            return self.after(0.1, lambda: self.when_ended_then(worker, action))
        action()

    def fill(self, name, seconds):
        process = next(p for p in self.processes() if p.name == name)
        if name in self.troubled or not self.around.disks.fill(self.out(name)):
            return False
        self.note(f"the disk of {name} is full for {seconds:.1f} s")
        process.disk_was_full = process.lines_are_missing = True
        self.trouble(name, "fill a disk", seconds, lambda: self.around.disks.resize(self.out(name), DISK))
        return True

    def expects(self, difference):
        return self.flips.explain(difference)

    def turn(self):
        super().turn()
        self.flips.watch()

    def set_clock(self, process, seconds):
        if seconds == self.clocks[process.name].seconds:
            seconds += 3600
        self.note(f"the clock of {process.name} is {seconds} s off, instead of {self.clocks[process.name].seconds} s")
        self.clocks[process.name].set(seconds)
        return True

    def call(self, rng):
        port = rng.choice([self.port, *self.listen.values()])
        count = rng.choice([1, 20, 100])

        def message():
            head = rng.choice([b"", b"ISTH", b"ISTH\x01\x00", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00"])
            return head + rng.randbytes(rng.choice([0, 3, 12, 100, 4096, 70_000]))
        self.note(f"{count} strangers connect to port {port}")
        self.around.network.strangers(port, [message() for _ in range(count)])
        return True

    # ---- its end ----

    def heal(self):
        """Ends all faults now."""
        self.come_back()
        for clock in filter(None, self.clocks.values()):
            clock.set(0)

    def everybody_is_back(self):
        """Returns a function: whether each of the four workers, and the fifth if it runs, has made steps since now and
        is in the newest view."""
        marks = {w.name: len(w.times) for w in self.workers}

        def back():
            if self.later or self.flips.pending:
                marks.update({w.name: len(w.times) for w in self.workers})
                return False
            here = [w for w in self.workers if w.running() or w is not self.fifth]
            made_steps = all(w.takes_part() and len(w.times) >= marks[w.name] + STEPS_OF_EACH for w in here)
            return made_steps and {w.name for w in here} == set(self.newest_view())
        return back

    def forget_old_folders(self):
        """Removes the old folders that returning workers have moved, which would fill the disks within an hour."""
        for worker in self.workers:
            for old in self.run_folder_of(worker.name).glob(f"{worker.name}.*"):
                shutil.rmtree(old, ignore_errors=True)

    def resume_to_the_end(self):
        """Resumes the run after the stop, so that the final rounds contain every step."""
        stopped_at = json.loads((self.run_folder / "summary.json").read_text())["steps"]
        self.steps = self.resumes_to = stopped_at + 60
        here = [w for w in self.workers if w.lives and w.child.returncode == 0]
        self.later.clear()
        self.hurry = False
        for process in [self.coordinator, *here]:
            process.command = self.command(process.name)
            process.resumes = True
            process.start()
        self.let_end()

    def check_ledger(self):
        """Checks the ledgers of all workers that reached the end; `data ledger` compares ledgers with the same
        rounds."""
        together = self.folder / "ledgers"
        together.mkdir()
        for worker in self.workers:
            if worker.lives and worker.child.returncode == 0:
                (together / worker.name).symlink_to(self.run_folder_of(worker.name) / worker.name)
        found = subprocess.run([self.binary, "data", "ledger", str(together), "--json"], capture_output=True, text=True)
        if found.returncode != 0:
            raise Failure(f"data ledger ended with status {found.returncode}: {found.stderr}")
        ledger = json.loads(found.stdout)
        most = RESERVED + BLOCK * len(self.workers)  # each may have begun a block
        for track in ledger["tracks"]:
            if track["gaps"] + track["not_whole"] > most:
                raise Failure(f"track {track['track']} lacks more sequences than can be in progress, {most}: {track}")
        return ledger


class Course:
    """Runs the whole test: both runs in one loop."""

    def __init__(self, arguments, folder):
        self.rng = random.Random(arguments.seed)
        self.seconds = 60 * arguments.minutes
        binary = str(arguments.binary.resolve())
        self.around = Surroundings(binary, folder)
        self.cluster = Soak(binary, folder / "chaos", self.around)
        self.launched = Launched(binary, folder / "launched", self.cluster)
        self.counts = collections.Counter()
        self.recoveries = []  # seconds until all workers were back
        weights = {**KINDS, **LAUNCHED_KINDS}
        self.weights = {kind: weight for kind, weight in weights.items() if kind not in self.around.missing}

    def turn(self):
        self.cluster.turn()
        self.launched.turn()

    def wait_for(self, what, ready, seconds=BACK_WITHIN):
        end = time.monotonic() + seconds
        while not ready():
            if time.monotonic() > end:
                raise Failure(f"{what} did not happen within {seconds} s\n{self.cluster.ends_of_logs()}\n"
                              f"--- {self.launched.log}\n{tail(self.launched.log)}")
            self.turn()

    def rate(self, seconds):
        """Inner steps per second of all workers of the first run, without faults."""
        begin, before = time.monotonic(), self.cluster.inner_steps()
        self.wait_for("the end of a pause", lambda: time.monotonic() > begin + seconds, 10 * seconds + 60)
        return (self.cluster.inner_steps() - before) / (time.monotonic() - begin)

    def calm(self):
        self.cluster.note("no faults until all workers are back")
        begin = time.monotonic()
        self.cluster.heal()
        self.launched.heal()
        self.wait_for("finding the flipped bit", lambda: not self.cluster.flips.pending, MOST_TRIES * BACK_WITHIN)
        back, launched_back = self.cluster.everybody_is_back(), self.launched.everybody_is_back()
        self.wait_for("the return of all workers", back)
        self.wait_for("the return of all workers to the launched run", launched_back, LAUNCHED_PATIENCE)
        self.recoveries.append(time.monotonic() - begin)
        self.cluster.hurry = False
        self.cluster.forget_old_folders()
        self.cluster.note(f"all workers are back after {self.recoveries[-1]:.1f} s")

    def run(self):
        self.launched.begin()
        self.cluster.wait_for_begin()
        self.wait_for("the beginning of the launched run", self.launched.everybody_is_back())
        quiet = self.rate(min(60, self.seconds / 10))
        begin, before = time.monotonic(), self.cluster.inner_steps()
        end, calm_at = begin + self.seconds, begin + CALM_EVERY
        missing = self.rng.sample(list(self.weights), len(self.weights))
        while time.monotonic() < end:
            pause = time.monotonic() + self.rng.uniform(*(PAUSE if self.seconds >= 120 else SHORT_PAUSE))
            while time.monotonic() < pause:
                self.turn()
            # Half of the faults are of a kind that has not happened yet, as soon as it is possible.
            (by_chance,) = self.rng.choices(list(self.weights), list(self.weights.values()))
            kind = missing[0] if missing and self.rng.random() < 0.5 else by_chance
            target = self.launched if kind in LAUNCHED_KINDS else self.cluster
            if target.happens(kind, self.rng):
                self.counts[kind] += 1
                missing = [other for other in missing if other != kind]
            elif missing and kind == missing[0]:
                missing.append(missing.pop(0))
            if time.monotonic() > calm_at:
                self.calm()
                calm_at = time.monotonic() + CALM_EVERY
        seconds, steps = time.monotonic() - begin, self.cluster.inner_steps() - before
        self.calm()
        ended = self.end()
        if seconds >= LONG_RUN:
            self.check_what_happened(seconds, missing)
        return ended | {"faults": sum(self.counts.values()), "seconds_of_faults": round(seconds, 1),
                        "inner_steps": steps, "inner_steps_per_second_quiet": round(quiet, 1),
                        "goodput": round(steps / seconds / quiet, 3)}

    def check_what_happened(self, seconds, missing):
        faults = sum(self.counts.values())
        if faults < MIN_FAULTS_AN_HOUR * seconds / 3600:
            raise Failure(f"only {faults} faults in {seconds:.0f} s, fewer than {MIN_FAULTS_AN_HOUR} an hour: "
                          "this machine is too busy for this test; end other programs and start again")
        if missing:
            raise Failure(f"within {seconds:.0f} s these never happened: {', '.join(missing)}")

    def end(self):
        cluster, launched = self.cluster, self.launched
        launched.stop()
        cluster.run_to_stop()
        while launched.launcher.poll() is None:
            self.turn()
        launched_hash = launched.check()
        cluster.global_hashes()
        cluster.resume_to_the_end()
        summary = cluster.check()
        ledger = cluster.check_ledger()
        return {"steps": summary["steps"], "replicas_at_the_end": len(summary["global_hash"]),
                "global_hash": next(iter(summary["global_hash"].values())), "final_eval_loss": summary["final_eval_loss"],
                "launched_hash": launched_hash, "launched_steps": sum(launched.steps.values()),
                "bits_found_after_s": [round(s, 1) for s in cluster.flips.found_after], "ledger": ledger,
                "back_within_s": [round(s, 1) for s in self.recoveries],
                "restarts": cluster.restarts + launched.restarts}

    def table(self):
        return "".join(f"{kind:<32}{self.counts[kind]:>6}\n" for kind in self.weights)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the isthmus binary")
    parser.add_argument("--minutes", type=float, default=60, help="duration of the faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31),
                        help="seed of the faults (default: a new one)")
    parser.add_argument("--keep", action="store_true", help="keep the folder of logs also after success")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-soak-"))
    print(f"--seed {arguments.seed}", file=sys.stderr, flush=True)
    course = Course(arguments, folder)
    failure = None
    try:
        with course.cluster:
            try:
                result = course.run()
            finally:
                course.launched.__exit__()
    except Failure as problem:
        failure = str(problem)
    except Exception:  # an error of this program; the logs are needed, too
        failure = traceback.format_exc()
    print(course.table(), file=sys.stderr)
    if failure is None:
        print(json.dumps({"seed": arguments.seed, **result}, indent=2))
    if (failure or arguments.keep) and course.around.disks:
        course.around.disks.keep(folder)
    if failure:
        print(f"FAILED: {failure}\nAll logs are in {folder}; to repeat: {sys.argv[0]} {arguments.binary} "
              f"--minutes {arguments.minutes:g} --seed {arguments.seed}", file=sys.stderr)
        return 1
    if not arguments.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
