"""The run of a soak that the test starts process by process, the faults that can be caused in it, and what surrounds its
processes: relays, disks, clocks."""

import json
import random
import re
import shutil
import subprocess
import sys

from cluster import MIN_REPLICAS, Cluster
from faults import Clock, Disks, Network
from flips import Flips
from launched import STEPS_OF_EACH
from processes import Failure, free_port

DISK = 256 << 20  # bytes
BLOCK = 1024  # sequences of a track without an owner that a trainer is dealt at a time
RESERVED = 16 * BLOCK  # sequences that a trainer reserves during a view change (docs/protocol.md)
DIGESTS_SINCE = 10  # the first protocol version in which members compare their global parameters
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
        if int(re.search(r"protocol\s+(\d+)", version)[1]) < DIGESTS_SINCE:
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
