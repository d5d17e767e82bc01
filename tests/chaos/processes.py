"""Real processes of a run, each in one or several lives, and the files they write."""

import ctypes
import json
import os
import pathlib
import random
import re
import signal
import socket
import subprocess
import time

JOINED = "joined"


class Failure(Exception):
    pass


def die_with_parent():
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


def free_port():
    """A port for a process that is restarted, outside the range that the system uses for connections: otherwise a
    connection could have it by the restart."""
    lowest = int(pathlib.Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.SystemRandom().randrange(10_000, lowest) if lowest > 12_000 else 0
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return s.getsockname()[1]
            except OSError:
                pass


def tail(file, lines=8):
    return "\n".join(file.read_text(errors="replace").splitlines()[-lines:]) if file.exists() else "(none)"


class GrowingFile:
    """Reads complete lines that are appended to a file. At any time the file may be moved and another may replace it:
    both are read to their ends. An incomplete last line may be cut off again, so it is not returned."""

    def __init__(self, path):
        self.path, self.file, self.offset = path, None, 0

    def new_lines(self):
        lines = []
        while True:
            if self.file is not None:
                lines += self._more()
                if self._is_in_place():
                    return lines
                lines += self._more()  # lines written before the move
                self.file.close()
                self.file = None
            try:
                self.file, self.offset = open(self.path, "rb"), 0
            except FileNotFoundError:
                return lines

    def skip_half_line(self):
        """Skips the incomplete line of a killed process; the next process appends after it."""
        if self.file is not None:
            self.offset = os.fstat(self.file.fileno()).st_size

    def _more(self):
        self.file.seek(self.offset)
        new = self.file.read()
        end = new.rfind(b"\n") + 1
        self.offset += end
        return [line for line in new[:end].split(b"\n") if line]

    def _is_in_place(self):
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self.file.fileno()))
        except FileNotFoundError:
            return False


class Process:
    """A program that may be started several times; each start is a life with its own log."""

    def __init__(self, name, command, folder, environment=()):
        self.name, self.command, self.folder = name, command, folder
        self.environment = {**os.environ, **dict(environment)}
        self.lives = 0
        self.child = None
        self.expected = {0}  # valid exit statuses of this life
        self.stopped = False
        self.absent = False  # its end is expected

    @property
    def log(self):
        return self.folder / f"{self.name}.{self.lives}.log"

    def start(self):
        self.lives += 1
        self.expected, self.stopped, self.absent = {0}, False, False
        self.started = time.monotonic()
        with open(self.log, "wb") as log:
            self.child = subprocess.Popen(self.command, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                                          env=self.environment, start_new_session=True, preexec_fn=die_with_parent)

    def running(self):
        return self.child is not None and self.child.poll() is None

    def kill(self):
        if self.running():
            self.child.kill()
            self.child.wait()
            # If it ended by itself just before, this is checked like any end.
            self.absent = self.child.returncode == -signal.SIGKILL

    def suspend(self):
        self.stopped = True
        self.child.send_signal(signal.SIGSTOP)

    def resident(self):
        """Resident memory in bytes."""
        status = pathlib.Path(f"/proc/{self.child.pid}/status").read_text()
        return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])

    def wake(self):
        self.stopped = False
        if self.running():
            self.child.send_signal(signal.SIGCONT)


class Worker(Process):
    """Reads the worker's metrics.jsonl and checks its lines separately for each life."""

    def __init__(self, name, command, folder, metrics, environment=()):
        super().__init__(name, command, folder, environment)
        self.metrics = GrowingFile(metrics)
        self.times = []  # (time, life) at which the line of a step was read
        self.joins = []  # (seconds from start to taking part, seconds of these for the state)
        self.problems = []
        self.leaving = False
        self.lines_are_missing = False  # the disk was full
        self.resumes = False  # from a checkpoint with an unknown step
        self.data_step = self.step = self.begins_at = None

    def start(self):
        self.read()
        self.metrics.skip_half_line()
        self.data_step = self.step = None
        self.begins_at = None
        self.leaving = False
        self.lines_are_missing = False
        super().start()

    def takes_part(self):
        return self.running() and not self.leaving and self.data_step is not None

    def read(self):
        for line in self.metrics.new_lines():
            self.take(line)

    def take(self, line):
        try:
            record = json.loads(line)
        except ValueError:
            return self.problems.append(f"life {self.lives}: not a line of JSON: {line[:80]!r}")
        if record.get("event") == JOINED:
            if self.begins_at is None:  # otherwise it only copies the state again after an absence
                self.joins.append((time.monotonic() - self.started, record["seconds"]))
                self.begins_at = record["step"]
            self.step = None  # it may have been ahead of the others
        if "data_step" not in record:
            return
        self.times.append((time.monotonic(), self.lives))
        expected = ((self.begins_at or 0) if self.data_step is None else self.data_step) + 1
        self.data_step, step, self.bytes_sent = record["data_step"], record["step"], record["bytes_sent"]
        may_leap = self.lines_are_missing or (self.resumes and expected == 1)
        if self.data_step != expected and not (may_leap and self.data_step > expected):
            self.problems.append(f"life {self.lives}: data_step is {self.data_step} at step {step}, not {expected}")
        if self.step is not None and step < self.step:
            self.problems.append(f"life {self.lives}: step {step} follows step {self.step}")
        self.step = step
