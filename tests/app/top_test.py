#!/usr/bin/env python3
"""top_test.py BINARY: `isthmus top` in a real terminal of 80 x 24, on a real run.

The other end of the pty is a terminal with only the functions that `top` uses; any other output fails the test.
"""
import contextlib
import fcntl
import os
import pathlib
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time

PATIENCE_S = 120  # longer than any wait here takes on a busy machine
CONFIG = """
run: {name: shown, out: OUT, steps: 1000000, eval_every: 50, eval_sequences: 4, sample_tokens: 0, stop_grace: 60s}
replicas: 2
device: cpu
model: {layers: 1, dim: 16, heads: 2}
data: {path: OUT/corpus.txt, seq_len: 16}
inner: {batch: 2, precision: fp32, schedule: constant}
trainer: {threads: 1}
outer: {num_fragments: 3, sync_every: 60, sync_delay: 2, codec: int4, warmup_steps: 4}
network: {detect_timeout: 60s, heartbeat: 200ms}
"""
TOKEN = re.compile(rb"\x1b\[(\??[0-9;]*)([A-Za-z])|([\x20-\x7e]+)|(\r+\n)")


class Terminal:
    """The screen as a user sees it."""

    def __init__(self, words, columns=80, rows=24):
        self.master, self.slave = os.openpty()
        self.columns = self.rows = 0
        self.resize(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.other_screen, self.cursor, self.widest, self.drawn = False, True, 0, 0
        self.lines, self.row, self.rest = [""] * rows, 0, b""
        self.screen = list(self.lines)  # the last complete screen
        self.process = subprocess.Popen(words, stdin=self.slave, stdout=self.slave, stderr=subprocess.PIPE,
                                        start_new_session=True, env={**os.environ, "TERM": "xterm"},
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def resize(self, columns, rows):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.columns, self.rows = columns, rows

    def press(self, keys):
        os.write(self.master, keys)

    def read(self):
        if not select.select([self.master], [], [], 0.1)[0]:
            return
        text, at = self.rest + os.read(self.master, 65536), 0
        while at < len(text):
            token = TOKEN.match(text, at)
            if token is None:
                break
            if token.end() == len(text) and token.group(3) is not None:
                break  # the rest may still come
            self.take(token)
            at = token.end()
        self.rest = text[at:]
        # The rest is an incomplete sequence; this terminal must know all others.
        assert re.fullmatch(rb"(\x1b(\[\??[0-9;]*)?|\r+|[\x20-\x7e]*)", self.rest), f"unknown: {self.rest[:60]!r}"

    def take(self, token):
        argument, function, text, newline = token.groups()
        if newline:
            self.row += 1
            assert self.row < self.rows, f"a line below the last of {self.rows}"
            self.lines[self.row] = ""
        elif text:
            self.lines[self.row] += text.decode()
            self.widest = max(self.widest, len(self.lines[self.row]))
            assert len(self.lines[self.row]) <= self.columns, f"more than {self.columns} columns: {self.lines[self.row]!r}"
        elif (argument, function) == (b"", b"H"):
            self.row, self.lines = 0, (self.lines + [""] * self.rows)[:self.rows]
            self.lines[0] = ""
        elif (argument, function) == (b"", b"J"):
            self.lines[self.row + 1:] = [""] * (self.rows - self.row - 1)
            self.screen = list(self.lines)
            self.drawn += 1
        elif (argument, function) == (b"?1049", b"h"):
            self.other_screen = True
        elif (argument, function) == (b"?1049", b"l"):
            self.other_screen = False
        elif (argument, function) == (b"?25", b"l"):
            self.cursor = False
        elif (argument, function) == (b"?25", b"h"):
            self.cursor = True
        else:
            assert function in b"Km" and argument in (b"", b"7", b"0"), f"unknown: {token.group(0)!r}"

    def until(self, what, seen):
        """Reads until a complete screen fulfils the condition."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            drawn = self.drawn
            self.read()
            if drawn != self.drawn and seen():
                return
            assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.process.stderr.read()}"
        raise AssertionError(f"no {what} after {PATIENCE_S} s; the screen is\n" + self.text())

    def text(self):
        return "\n".join(self.screen)

    def expect_given_back(self, status):
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, f"top does not end; the screen is\n{self.text()}"
            self.read()
        self.read()
        assert self.process.returncode == status, f"status {self.process.returncode}: {self.process.stderr.read()}"
        assert self.cursor, "the cursor is still hidden"
        assert not self.other_screen, "the terminal's previous screen is not restored"
        now = termios.tcgetattr(self.slave)
        assert now[3] & termios.ECHO and now[3] & termios.ICANON and now[3] & termios.ISIG, "keys are not echoed"
        assert now == self.before, "the terminal's settings are not restored"

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stderr.close()
        os.close(self.slave)
        os.close(self.master)


def step_of(terminal):
    found = re.match(r"shown: \w+, step (\d+) of 1000000, 2 of 2 replicas in", terminal.screen[0])
    return int(found.group(1)) if found else -1


def rounds_of(terminal):
    """For each fragment: its newest round, how long that took and how late it was."""
    table = re.findall(r"^(\d+) +(\d+) +(\d+) +([\d.]+)s +([\d.]+)s +([+-][\d.]+)s", terminal.text(), re.M)
    return {int(row[0]): (int(row[1]), float(row[4]), float(row[5])) for row in table}


def follows_the_run(terminal):
    terminal.until("run", lambda: step_of(terminal) > 0)
    first = step_of(terminal)
    terminal.until("further step", lambda: step_of(terminal) > first)
    assert terminal.other_screen and not terminal.cursor
    for name in ("replica-0", "replica-1"):
        assert any(line.startswith(name) for line in terminal.screen), terminal.text()
    terminal.until("committed round of each fragment", lambda: len(rounds_of(terminal)) == 3)
    assert all(took >= 0 for _, took, _ in rounds_of(terminal).values()), terminal.text()
    before = rounds_of(terminal)
    terminal.until("further round", lambda: rounds_of(terminal).get(0, before[0])[0] > before[0][0])
    assert terminal.screen[-1] == "q quits", terminal.text()


def resizes(terminal):
    terminal.resize(60, 12)
    terminal.until("smaller screen", lambda: len(terminal.screen) == 12 and terminal.screen[11] == "q quits")
    terminal.resize(120, 40)
    terminal.until("larger screen", lambda: len(terminal.screen) == 40 and terminal.screen[39] == "q quits")
    assert terminal.widest > 80, "it does not use the whole width"


def check(binary, folder, launch, log):
    found = None
    end = time.monotonic() + PATIENCE_S
    while found is None:
        assert time.monotonic() < end and launch.poll() is None, log.read_text()
        found = re.search(r"listens at port (\d+)", log.read_text())
        time.sleep(0.1)
    address = f"127.0.0.1:{found.group(1)}"
    top = [binary, "top", "--coordinator", address, "--secret", folder / "shown" / "run.secret"]
    with contextlib.closing(Terminal(top)) as terminal:
        follows_the_run(terminal)
        resizes(terminal)
        terminal.press(b"q")
        terminal.expect_given_back(0)
    with contextlib.closing(Terminal(top)) as terminal:
        terminal.until("run", lambda: step_of(terminal) > 0)
        terminal.press(b"\x03")
        terminal.expect_given_back(0)
    with contextlib.closing(Terminal(top)) as terminal:
        terminal.until("run", lambda: step_of(terminal) > 0)
        terminal.process.send_signal(signal.SIGTERM)
        terminal.expect_given_back(128 + signal.SIGTERM)
    with contextlib.closing(Terminal(top)) as terminal:
        terminal.until("run", lambda: step_of(terminal) > 0)
        launch.send_signal(signal.SIGINT)
        assert launch.wait(PATIENCE_S) == 130, log.read_text()[-3000:]
        terminal.until("report that the coordinator is gone", lambda: terminal.screen[0].startswith("NO ANSWER for "))
        assert any(line.startswith("replica-0") for line in terminal.screen), "the last figures must stay on the screen"
        terminal.press(b"q")
        terminal.expect_given_back(0)
    # Without a coordinator it prints one error line and leaves the terminal alone.
    with contextlib.closing(Terminal(top)) as terminal:
        assert terminal.process.wait(PATIENCE_S) != 0
        assert address.encode() in terminal.process.stderr.read()
        assert not terminal.other_screen and termios.tcgetattr(terminal.slave) == terminal.before


def main(binary):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "corpus.txt").write_text("a river carries the light over a small stone bridge.\n" * 2000)
        config = folder / "shown.yaml"
        config.write_text(CONFIG.replace("OUT", name))
        log = folder / "launch.log"
        with log.open("w") as out:
            launch = subprocess.Popen([binary, "launch", str(config)], stdout=out, stderr=out)
        try:
            check(binary, folder, launch, log)
        except BaseException:
            print(log.read_text()[-3000:], file=sys.stderr)
            raise
        finally:
            if launch.poll() is None:
                launch.send_signal(signal.SIGTERM)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    launch.wait(PATIENCE_S)
            launch.kill()
            launch.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
