#!/usr/bin/env python3
"""terminal_test.py BINARY: what commands print in a terminal of 80 x 24, with the longest possible names.

No table, progress line, help or sentence may be wider than the terminal: only paths, URLs, commands to copy and hashes
may. A terminal that can only print (TERM=dumb) gets no escape sequences, NO_COLOR turns colours off, and a pipe gets
neither; each mark is a word as well.
"""
import contextlib
import fcntl
import os
import pathlib
import re
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from columns import COLOUR, COLUMNS, ERASE, too_wide  # noqa: E402

PATIENCE_S = 120
RUN = "run-" + "r" * 60                      # 64 characters
SITES = ["eu-" + "e" * 45, "us-" + "u" * 45]  # 48 characters
CONFIG = """
run: {name: NAME, out: runs, steps: 12, eval_every: 6, eval_sequences: 4, sample_tokens: 0, trace_steps: 8}
device: cpu
model: {layers: 1, dim: 16, heads: 2}
data: {path: corpus.txt, seq_len: 16}
inner: {batch: 2, precision: fp32, schedule: constant}
trainer: {threads: 1}
outer: {num_fragments: 3, sync_every: 6, sync_delay: 1, codec: int4, log: log}
"""


def run(words, folder, term="xterm", more=None):
    """The command's output in the terminal, and its exit status. Standard error is the terminal, too."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key != "NO_COLOR"}
    process = subprocess.Popen(words, cwd=folder, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                               env={**environment, "TERM": term, "COLUMNS": str(COLUMNS), **(more or {})})
    os.close(slave)
    timer = threading.Timer(PATIENCE_S, process.kill)
    timer.start()
    output = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while piece := os.read(master, 65536):
            output += piece
    os.close(master)
    status = process.wait()
    timer.cancel()
    return output.decode("utf-8").replace("\r\n", "\n"), status


class Checker:
    def __init__(self, binary, folder):
        self.binary, self.folder, self.wrong = binary, folder, []

    def expect(self, condition, words, what):
        if not condition:
            self.wrong.append(f"isthmus {' '.join(map(str, words))}: {what}")

    def check(self, *words, status=0, term="xterm", more=None):
        output, ended = run([self.binary, *words], self.folder, term, more)
        self.expect(ended == status, words, f"exit status {ended}, expected {status}:\n{output[-2000:]}")
        for line in too_wide(output):
            self.expect(False, words, f"{len(line)} columns: {line}")
        unknown = re.search(r"\x1b(?!\[[0-9;]*m)|[^\x1b\n\t\x20-\x7e\u00a0-\uffff]", output.replace(ERASE, ""))
        self.expect(not unknown, words, f"an unexpected control character: {unknown and output[unknown.start():][:40]!r}")
        return output

    def check_plain(self, *words, term="dumb", more=None, status=0):
        output = self.check(*words, term=term, more=more, status=status)
        self.expect("\x1b" not in output and "\r" not in output, words, f"escape sequences with TERM={term}, {more}")
        return output


def free_address():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def write_files(folder):
    (folder / "corpus.txt").write_text("a river carries the light over a small stone bridge.\n" * 2000)
    sites = "sites:\n" + "".join(f"  {site}: {{replicas: 1}}\n" for site in SITES)
    config = CONFIG.replace("NAME", RUN)
    (folder / "one.yaml").write_text(config + "replicas: 2\n")
    (folder / "sites.yaml").write_text(config + sites + f'network: {{coordinator: "{free_address()}"}}\n')
    (folder / "live.yaml").write_text(config.replace("steps: 12", "steps: 1000000").replace(RUN, RUN[:-1] + "v") + sites +
                                      f'network: {{coordinator: "{free_address()}"}}\n')
    (folder / "links.yaml").write_text("sites:\n" + "".join(f"  {site}: {{up: 100Mbps, step_time: 500ms}}\n" for site in SITES)
                                       + "other_rtt: 90ms\n")
    (folder / "curves.yaml").write_text("arms:\n" + "".join(f"  {'arm' + 'a' * 58 + end}: {{curve: {end}.csv}}\n" for end in "12"))
    for end in "12":
        (folder / f"{end}.csv").write_text(f"tokens,loss,seconds,bytes\n0,5.5,0,0\n30000000,{end}.5,100000,9e12\n")


def check_settings(checker):
    listed = checker.check("help")
    checker.expect("\n  launch " in listed and "\n  top " in listed, ["help"], "does not list the verbs")
    checker.check("help", "--check")
    for verb in re.findall(r"^  ([a-z]+)  ", listed, re.M):
        checker.check("help", verb)
    reference = checker.check("config")
    checker.expect("run.steps\n\n  meaning" in reference, ["config"], "prints no explanations in a terminal")
    checker.check("config", "sites.yaml")
    checker.check("config", "sites.yaml", "--diff", "one.yaml")
    checker.check("config", "--explain", "outer.sync_every")
    checker.check("plan", "sites.yaml", "--links", "links.yaml", "--step-time", "500ms")
    checker.check("plan", "one.yaml", "--step-time", "500ms")
    checker.check("certs", "init", RUN)
    checker.check("certs", "issue", RUN, SITES[0])
    checker.check("certs", "invite", RUN, SITES[1], "--coordinator", "coordinator.example:7000")
    checker.check("certs", "revoke", RUN, SITES[0])
    checker.check("compare", "curves.yaml")
    checker.check("data", "tokenize", "corpus.txt", "--tokenizer", "bytes", "--out", "store")
    checker.check("data", "show", "store", "--verify")
    checker.check("data", "tune", "corpus.txt", "--tokenizer", "bytes", "--sample", "1")
    checker.check("bench", "loader", "one.yaml", "--seconds", "0.1", "--step-time", "1ms")


def check_run(checker):
    output = checker.check("launch", "sites.yaml")
    checker.expect(ERASE in output, ["launch"], "shows no progress in a terminal")
    folder = f"runs/{RUN}"
    checker.check("eval", folder)
    checker.check("export", folder, "--to", "model")
    checker.check("replay", f"log/{SITES[0]}")
    checker.check("trace", f"{folder}/{SITES[0]}/trace.json")
    checker.check("data", "ledger", folder)
    plain = checker.check_plain("launch", "sites.yaml", "--set", f"run.name={RUN[:-1]}d", "--set", "outer.log=\"\"")
    checker.expect("12/12" in plain, ["launch"], "shows no progress with TERM=dumb")


def check_live(checker):
    words = [checker.binary, "launch", "live.yaml", "--set", "outer.log=\"\""]
    launch = subprocess.Popen(words, cwd=checker.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    timer = threading.Timer(PATIENCE_S, launch.kill)
    timer.start()
    lines = []
    for line in launch.stdout:
        lines.append(line)
        if line.startswith("view 1 begins"):
            break
    rest = threading.Thread(target=lambda: lines.extend(launch.stdout))
    rest.start()
    try:
        observed, ended = run([checker.binary, "observe", "live.yaml", "--name", "watch", "--once"], checker.folder)
        checker.expect(ended == 0, ["observe"], f"exit status {ended}:\n{observed}")  # log lines, which may be wide
        status = checker.check("ctl", "status", "live.yaml")
        once = checker.check("top", "live.yaml", "--once")
        dumb = checker.check_plain("top", "live.yaml")
        for site in SITES:
            for text in (status, once, dumb):
                checker.expect(f"\n{site[:4]}" in text and f"~{site[-4:]}" in text, ["ctl or top"], f"does not name {site}:\n{text}")
        checker.check("ctl", "set", "live.yaml", "outer.sync_every=9")
        checker.check("ctl", "status", "live.yaml")
    finally:
        launch.send_signal(signal.SIGINT)
        ended = launch.wait()
        rest.join()
        timer.cancel()
    output = "".join(lines)
    checker.expect(ended == 130, words[1:], f"exit status {ended}:\n{output[-2000:]}")
    checker.expect(not too_wide(output) and "\x1b" not in output, words[1:], f"into a pipe: {too_wide(output)}")


def check_doctor(checker):
    words = ["doctor", "one.yaml", "--wait", "20", "--set", "data.path=missing"]
    coloured = checker.check(*words, status=3)
    for output in (checker.check_plain(*words, term="xterm", more={"NO_COLOR": "1"}, status=3), checker.check_plain(*words, status=3)):
        checker.expect("FAIL" in output and COLOUR.search(coloured), words, f"the word must stand without its colour:\n{output}")


def main(binary):
    with tempfile.TemporaryDirectory() as name:
        checker = Checker(str(pathlib.Path(binary).resolve()), pathlib.Path(name))
        write_files(checker.folder)
        for part in (check_settings, check_doctor, check_run, check_live):
            part(checker)
        if checker.wrong:
            sys.exit("\n".join(checker.wrong))


if __name__ == "__main__":
    main(*sys.argv[1:])
