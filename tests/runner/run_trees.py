#!/usr/bin/env python3
"""Runs the tests of all build trees at the same time with ctest, and counts single tests instead of ctest's entries.

    run_trees.py [--long] [--jobs N] [--build PROGRAM] [--check NAME COMMAND] [--failed NAME ...] TREE ...

An entry whose command names a results file (--gtest_output=xml:FILE, --junitxml=FILE) counts as the cases in that file;
any other entry is one test. Prints failures, reasons for skips, and at the end `N passed, N failed, N skipped`.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import xml.etree.ElementTree as ElementTree

SLOW_S = 60
LONG = "long"  # the label of entries that only --long runs
RESULTS_OPTION = re.compile(r"--(?:gtest_output=xml:|junitxml=)(.+)")
# GoogleTest's output, the only record of a process that died before it wrote its file.
PROGRESS = re.compile(r"^\[( RUN      |       OK |  FAILED  |  SKIPPED )\] (\S+?)(?:,| \(|$)", re.MULTILINE)
# The end of ctest's line about a failed test; its report does not distinguish crashes and time-outs.
VERDICT = re.compile(r" Test +#\d+: (\S+) \.*\*\*\*(.+?) +[0-9.]+ sec")


@dataclasses.dataclass
class Outcome:
    name: str
    state: str  # passed, failed or skipped
    detail: str = ""
    seconds: float = 0


def of_case(entry, case):
    """The outcome of a <testcase> in a file of GoogleTest or pytest; None for a disabled test."""
    if case.get("status") == "notrun":
        return None
    name = f"{entry} {case.get('classname')}.{case.get('name')}"
    seconds = float(case.get("time") or 0)
    problems = case.findall("failure") + case.findall("error")
    if problems:
        text = "\n".join((problem.text or problem.get("message") or "").strip() for problem in problems)
        return Outcome(name, "failed", text, seconds)
    skipped = case.find("skipped")
    if skipped is None and case.get("result") != "skipped":
        return Outcome(name, "passed", "", seconds)
    return Outcome(name, "skipped", reason_of(skipped), seconds)


def reason_of(skipped):
    """The reason of a skip. GoogleTest writes `file:line` on a line before it."""
    text = "" if skipped is None else (skipped.get("message") or skipped.text or "").strip()
    first, _, rest = text.partition("\n")
    return " ".join((rest if rest and re.search(r":\d+$", first) else text).split()) or "no reason given"


def of_broken_process(entry, how, output):
    """The outcomes of a process that ended without results: the tests that GoogleTest had finished, and one failure."""
    outcomes, running = [], None
    for mark, name in PROGRESS.findall(output):
        if mark == " RUN      ":
            running = name
        elif name == running:
            state = {"O": "passed", "F": "failed", "S": "skipped"}[mark.strip()[0]]
            outcomes.append(Outcome(f"{entry} {name}", state, "before the process died" if state != "passed" else ""))
            running = None
    where = f"{entry} {running}" if running else entry
    outcomes.append(Outcome(where, "failed", f"{how} without writing its results; the end of its output:\n{tail(output)}"))
    return outcomes


def tail(text, lines=60):
    return "\n".join(text.rstrip().splitlines()[-lines:])


def of_entry(entry, results, state, how, output, seconds):
    """The outcomes of one ctest entry. `state` is ctest's verdict, `how` its words for a failure."""
    if results is None:
        detail = {"passed": "", "failed": f"{how}; the end of its output:\n{tail(output)}",
                  "skipped": (output.strip().splitlines() or ["no reason given"])[-1]}[state]
        return [Outcome(entry, state, detail, seconds)]
    try:
        cases = list(ElementTree.parse(results).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return of_broken_process(entry, how or "exited with status 0", output)
    outcomes = [outcome for case in cases if (outcome := of_case(entry, case))]
    if not outcomes:
        return [Outcome(entry, "failed", f"no test ran in {results}")]
    if state == "failed" and not any(outcome.state == "failed" for outcome in outcomes):
        text = f"{how} although no test of it failed; the end of its output:\n{tail(output)}"
        outcomes.append(Outcome(f"{entry} (exit)", "failed", text))
    return outcomes


def plainly():
    """The prefix that disables address randomisation; newer kernels randomise too many bits for g++ 12's
    ThreadSanitizer."""
    setarch = [shutil.which("setarch") or "setarch", "-R"]
    try:
        works = subprocess.run([*setarch, "true"], stderr=subprocess.DEVNULL).returncode == 0
    except OSError:
        works = False
    return setarch if works else []


STOPPED = threading.Event()  # by Ctrl-C, which running processes receive, too: nothing new may start


def run_meanwhile(name, command):
    """Runs a command while tests run, and prints its output with `name` before each line. Returns whether it succeeded.
    It has a low priority, so that it does not delay the tests, which mostly wait."""
    if STOPPED.is_set():
        return False
    command = ["nice", "-n", "5", *command]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
        for line in process.stdout:
            print(f"{name}: {line}", end="", flush=True)
    if process.returncode in (-signal.SIGINT, 128 + signal.SIGINT):
        STOPPED.set()
    return process.returncode == 0


def of_command(name, succeeded):
    """No outcome if the command succeeded, or one failure. `succeeded` is a future."""
    try:
        return [] if succeeded.result() else [Outcome(name, "failed", "see above")]
    except OSError as error:
        return [Outcome(name, "failed", str(error))]


def run_tree(tree, jobs, run_long, built=None):
    """Runs a tree, after the future `built` if given, and returns the outcomes of all its entries."""
    if built and (failure := of_command(f"build of {tree.name}", built)):
        return failure
    listing = subprocess.run(["ctest", "--test-dir", str(tree), "--show-only=json-v1"], stdout=subprocess.PIPE, text=True)
    if listing.returncode != 0:
        return [Outcome(f"tests of {tree.name}", "failed", f"ctest cannot list the tests of {tree}")]
    entries, files = json.loads(listing.stdout)["tests"], {}
    for entry in entries:
        for word in entry.get("command", []):
            if match := RESULTS_OPTION.fullmatch(word):
                files[entry["name"]] = file = pathlib.Path(match[1])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.unlink(missing_ok=True)
    junit = tree / "Testing" / "run_trees.xml"
    junit.parent.mkdir(exist_ok=True)
    junit.unlink(missing_ok=True)
    size = str(16 << 20)
    command = [*plainly(), "ctest", "--test-dir", str(tree), "--parallel", str(jobs), "--no-tests=error",
               "--test-output-size-passed", size, "--test-output-size-failed", size,
               "--output-junit", str(junit.resolve()), *([] if run_long else ["--label-exclude", f"^{LONG}$"])]
    if STOPPED.is_set():
        return [Outcome(f"tests of {tree.name}", "failed", "stopped")]
    verdicts, ctest = {}, subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace")
    for line in ctest.stdout:
        print(f"{tree.name}: {line}", end="", flush=True)
        if match := VERDICT.search(line):
            verdicts[match[1]] = match[2]
    _, status, used = os.wait4(ctest.pid, 0)
    ctest.returncode = os.waitstatus_to_exitcode(status)
    print(f"{tree.name}: {used.ru_utime + used.ru_stime:.0f} CPU-seconds", flush=True)
    try:
        cases = list(ElementTree.parse(junit).getroot().iter("testcase"))
    except (OSError, ElementTree.ParseError) as error:
        return [Outcome(f"tests of {tree.name}", "failed", f"ctest ended with status {ctest.returncode} without a report: {error}")]
    outcomes = []
    for case in cases:
        name, output, seconds = case.get("name"), case.findtext("system-out") or "", float(case.get("time") or 0)
        skipped = case.find("skipped")
        state = "passed" if case.get("status") == "run" else "failed"
        if skipped is not None and "SKIP_" in skipped.get("message", ""):
            state = "skipped"
        results = files.get(name) if state != "skipped" else None
        how = verdicts.get(name, case.get("status")) if state == "failed" else ""
        outcomes += of_entry(f"{tree.name}: {name}", results, state, how, output, seconds)
    return outcomes or [Outcome(f"tests of {tree.name}", "failed", "none ran")]


def report(outcomes):
    """Prints the report and returns the exit status."""
    for outcome in outcomes:
        if outcome.state == "failed":
            print(f"\nFAILED {outcome.name}\n{outcome.detail}")
    slow = sorted((o for o in outcomes if o.seconds > SLOW_S), key=lambda o: -o.seconds)
    if slow:
        print(f"\nOver {SLOW_S} s:")
        for outcome in slow:
            print(f"  {outcome.seconds:6.1f} s  {outcome.name}")
    reasons = {}
    for outcome in outcomes:
        if outcome.state == "skipped":
            reasons.setdefault(outcome.detail, []).append(outcome.name)
    if reasons:
        print("\nSkipped:")
        for reason, names in reasons.items():
            print(f"  {reason}: {len(names)} {'test' if len(names) == 1 else 'tests'}, {names[0]}"
                  f"{' ...' if len(names) > 1 else ''}")
    counts = {state: sum(o.state == state for o in outcomes) for state in ("passed", "failed", "skipped")}
    if counts["failed"]:
        print("\nFailed (TREE/Testing/Temporary/LastTest.log has the whole output):")
        for outcome in outcomes:
            if outcome.state == "failed":
                print(f"  {outcome.name}")
    print(", ".join(f"{count} {state}" for state, count in counts.items()), flush=True)
    return 0 if counts["passed"] and not counts["failed"] else 1


def take(tree):
    """Locks the first tree, for the tests of all trees of this run. Only this process holds the lock, while the file is
    open."""
    if not tree.is_dir():
        return contextlib.nullcontext()
    lock = open(tree / "run_trees.lock", "w")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print(f"waiting for another tests/run.sh, which runs the tests of {tree}", flush=True)
        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", metavar="TREE", nargs="*", type=pathlib.Path, help="a build folder")
    parser.add_argument("--long", action="store_true", help=f"also run entries with the label {LONG}")
    parser.add_argument("--jobs", type=int, default=2 * os.cpu_count() + 3,
                        help="concurrent entries of a tree; entries that compute count as two (property PROCESSORS)")
    parser.add_argument("--build", metavar="PROGRAM",
                        help="build all trees but the first with `PROGRAM --tests PRESET`, in order, while tests run; "
                             "the preset is the folder's name")
    parser.add_argument("--check", nargs=2, action="append", default=[], metavar=("NAME", "COMMAND"),
                        help="after the builds, also run this command while tests run; a status above 0 is a failure")
    parser.add_argument("--failed", action="append", default=[], metavar="NAME", help="also count this as a failure")
    arguments = parser.parse_args()
    # A shell without job control starts background processes with SIGINT ignored. Tests would inherit this, but some of
    # them send SIGINT to their own processes.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes = [Outcome(name, "failed", "see above") for name in arguments.failed]
    others = arguments.trees[1:]
    lock = take(arguments.trees[0]) if arguments.trees else contextlib.nullcontext()
    with lock, concurrent.futures.ThreadPoolExecutor(1) as builder, concurrent.futures.ThreadPoolExecutor() as runner:
        built = {tree: builder.submit(run_meanwhile, tree.name, [arguments.build, "--tests", tree.name])
                 for tree in others if arguments.build}
        checks = [(name, builder.submit(run_meanwhile, name, shlex.split(command))) for name, command in arguments.check]
        runs = [runner.submit(run_tree, tree, arguments.jobs, arguments.long, built.get(tree)) for tree in arguments.trees]
        try:
            for run in runs:
                outcomes += run.result()
            for name, succeeded in checks:
                outcomes += of_command(name, succeeded)
        except BaseException:
            STOPPED.set()
            builder.shutdown(wait=False, cancel_futures=True)
            runner.shutdown(wait=False, cancel_futures=True)
            raise
    return report(outcomes)


if __name__ == "__main__":
    sys.exit(main())
