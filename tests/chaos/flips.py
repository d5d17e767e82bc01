"""Flips bits in the memory of running workers, one at a time; the run must find each of them."""

import dataclasses
import random
import re
import struct
import subprocess
import time

from faults import flip_a_bit, tensors_of
from processes import Failure, Worker, die_with_parent

OBSERVE_WITHIN = 5  # seconds
VALUES = 16  # number of floats of a tensor to search for
MOST_TENSORS = 6  # to try while the worker is suspended
CHECKED_WITHIN = 600  # steps: each fragment is compared every 16 of its rounds, which are 30 steps apart
MOST_TRIES = 12  # a try can hit only old copies, which are not read again, if a round was faster
LOOK_EVERY = 0.5  # seconds


@dataclasses.dataclass
class Flip:
    worker: Worker
    at: float  # time.monotonic() of the last try
    step: int
    tries: int


class Flips:
    EVENT = re.compile(r"^(\w+) (?:(copies the state from \d)|must copy the state from others: its global parameters differ)", re.M)

    def __init__(self, cluster):
        self.cluster = cluster
        self.pending = None  # the Flip that the run has not yet found
        self.read = 0  # number of events read so far
        # Workers that copied the state while another worker had a flipped bit, or from such a worker: they may have
        # copied the bit, and a later comparison finds them, too. The value is the step at which they copied.
        self.exposed = {}
        self.unexplained = []  # workers that the coordinator named although their memory has no flip
        self.found_after = []  # seconds
        self.next_look = 0.0

    def flip(self, worker, rng):
        """Has an observer write the global parameters, suspends the worker, and flips a bit of some of them in its
        memory. Returns False if other faults are active, or if a round has changed the parameters meanwhile."""
        cluster = self.cluster
        others = [w for w in cluster.workers if w is not worker and w.takes_part() and not w.stopped
                  and w.name not in cluster.troubled]
        if len(others) < 3 or not worker.takes_part() or not cluster.coordinator.running() or cluster.coordinator.stopped:
            return False
        observed = cluster.folder / "now.safetensors"
        observed.unlink(missing_ok=True)
        observer = self._start_observer(observed)
        self._read_events()
        give_up = time.monotonic() + OBSERVE_WITHIN
        while not observed.exists() and observer.poll() is None and time.monotonic() < give_up:
            time.sleep(0.005)
        hit = None
        if observed.exists() and worker.running():
            worker.suspend()
            names = self._names_by_values(observed)
            hit = flip_a_bit(worker.child.pid, rng.sample(sorted(names), min(MOST_TENSORS, len(names))), rng)
            worker.wake()
        observer.kill()
        observer.wait()
        if hit:
            values, places = hit
            cluster.note(f"a bit of {names[values]} of {worker.name} is flipped, in {places} places")
            tries = self.pending.tries + 1 if self.pending else 1
            self.pending = Flip(worker, time.monotonic(), cluster.step(), tries)
        return bool(hit)

    def _start_observer(self, out):
        cluster = self.cluster
        settings = [*cluster.settings, f"run.out={cluster.folder / 'observer'}", "network.emulate.rtt=0",
                    f"network.secret={cluster.folder / 'run.secret'}"]
        return subprocess.Popen([cluster.binary, "observe", "--config", str(cluster.config), "--name", "watch", "--once",
                                 "--parameters", str(out), *(word for s in settings for word in ("--set", s))],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=die_with_parent)

    @staticmethod
    def _names_by_values(file):
        """Maps some bytes from the middle of each tensor to its name. Omits tensors with repeated values there, since
        their bytes could be those of other data."""
        names = {}
        for name, data in tensors_of(file).items():
            size = VALUES * struct.calcsize("f")
            begin = len(data) // 2 // size * size
            values = data[begin:begin + size]
            if len(set(struct.iter_unpack("<f", values))) == VALUES:
                names[values] = name
        return names

    def _events(self):
        """The coordinators' lines in order as (worker, differs): True if the worker is evicted because of its
        parameters, False if it copies the state from others."""
        logs = sorted(self.cluster.folder.glob("coordinator.*.log"), key=lambda log: int(log.name.split(".")[1]))
        return [(match[1], not match[2]) for log in logs for match in self.EVENT.finditer(log.read_text(errors="replace"))]

    def _read_events(self):
        events, step = self._events(), self.cluster.step()
        self.exposed = {name: at for name, at in self.exposed.items() if step <= at + 2 * CHECKED_WITHIN}
        for name, differs in events[self.read:]:
            flip = self.pending
            if not differs:
                if self.exposed or flip and name != flip.worker.name:
                    self.exposed[name] = step
            elif flip and name == flip.worker.name:
                self.found_after.append(time.monotonic() - flip.at)
                self.cluster.note(f"the flip was found after {self.found_after[-1]:.1f} s")
                self.pending = None
            elif self.exposed.pop(name, None) is not None:
                self.cluster.note(f"{name} had copied the flipped bit; this was also found")
            else:
                self.unexplained.append(name)
        self.read = len(events)

    def explain(self, difference):
        """Whether the line of a log is about a flip; False if the run has reported a worker without a flip."""
        self._read_events()
        return "global parameters differ from those of the majority" in difference and not self.unexplained

    def watch(self):
        """Called often. Notes when the run has found the flip, and flips again if the run had enough time to find
        it."""
        if time.monotonic() < self.next_look:
            return
        self.next_look = time.monotonic() + LOOK_EVERY
        self._read_events()
        flip = self.pending
        if flip and self.cluster.step() > flip.step + CHECKED_WITHIN:
            if flip.tries == MOST_TRIES:
                raise Failure(f"a bit of {flip.worker.name} was flipped {MOST_TRIES} times and never found")
            self.flip(flip.worker, random.Random(self.cluster.step()))
