#!/usr/bin/env python3
"""Compares the predictions of `isthmus plan` with the measurements of `isthmus bench outer`.

tests/bench/plan_against_bench.py PROGRAM [--only NAME] [--out FILE]: for each case below it runs the outer loop over an
emulated link, with steps that only sleep, and plans the same settings. Prints a line for each case, in Markdown: the
fraction of time spent computing, planned and measured, and the duration of a fragment. Exits with status 1 if the two
differ by more than three points in any case. A busy machine wakes sleepers late; a column of its own has that time,
which the measured fraction counts as computing.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

# Steps of 0.5 s and 2 M parameters: 1.06 MB in 4 bits, so that other load on the machine hardly matters.
BASE = {
    "replicas": 2,
    "outer.sync_every": 10,
    "outer.num_fragments": 5,
    "outer.sync_delay": 1,
    "outer.codec": "4bit",
    "outer.chunk_elements": 16384,
    "network.detect_timeout": "60s",
    "network.emulate.rtt": "100ms",
}
CASES = {
    "room": {"network.emulate.rate": "8Mbps", "outer.sync_delay": 2},
    "just in time": {"network.emulate.rate": "4Mbps"},
    "late": {"network.emulate.rate": "2Mbps"},
    "full": {"network.emulate.rate": "1Mbps", "outer.sync_delay": 2},
    "no delay": {"network.emulate.rate": "4Mbps", "outer.sync_delay": 0},
    "diloco": {"network.emulate.rate": "4Mbps", "outer.method": "diloco"},
    "far": {"network.emulate.rate": "8Mbps", "network.emulate.rtt": "800ms"},
    "far, no delay": {"network.emulate.rate": "8Mbps", "network.emulate.rtt": "800ms", "outer.sync_delay": 0},
    "fp32": {"network.emulate.rate": "8Mbps", "outer.codec": "fp32"},
    "two bits": {"network.emulate.rate": "1Mbps", "outer.codec": "2bit", "outer.error_feedback": "true"},
    "topk": {"network.emulate.rate": "200kbps", "outer.codec": "topk"},
    "three": {"replicas": 3, "network.emulate.rate": "1Mbps"},
    "four": {"replicas": 4, "network.emulate.rate": "500kbps", "outer.sync_delay": 2},
    "two fragments": {"network.emulate.rate": "2Mbps", "outer.num_fragments": 2, "outer.sync_delay": 3},
    "whole line": {"network.rate": "2Mbps", "outer.sync_delay": 1},
}


def flags(case):
    settings = BASE | CASES[case]
    replicas = settings.pop("replicas")
    words = ["--params", "2M", "--step-time", "500ms", "--set", f"replicas={replicas}"]
    for key, value in settings.items():
        words += ["--set", f"{key}={value}"]
    return words


def measure(program, case, folder):
    report = pathlib.Path(folder) / "report.json"
    subprocess.run([program, "bench", "outer", *flags(case), "--out", report], check=True, stdout=subprocess.DEVNULL)
    return json.loads(report.read_text())


def plan(program, case):
    done = subprocess.run([program, "plan", *flags(case), "--json"], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("--only", choices=CASES, action="append")
    parser.add_argument("--out", type=pathlib.Path)
    options = parser.parse_args()
    print("| case | planned | measured | apart | woken late | fragment, planned | measured |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    rows, worst = [], 0.0
    with tempfile.TemporaryDirectory() as folder:
        for case in options.only or CASES:
            planned, measured = plan(options.program, case), measure(options.program, case, folder)
            ours, theirs = 100 * planned["configured"]["utilization"], 100 * measured["compute_utilization"]
            seconds = max((row["seconds"] for row in planned["timetable"]), default=0)
            worst = max(worst, abs(ours - theirs))
            rows.append({"case": case, "settings": BASE | CASES[case], "planned": planned["configured"], "measured": measured})
            print(
                f"| {case} | {ours:.1f} % | {theirs:.1f} % | {ours - theirs:+.1f} | {100 * measured['lost']['late_wake']:.1f} % "
                f"| {seconds:.2f} s | {measured['fragment_seconds']['median']:.2f} s |",
                flush=True,
            )
    if options.out:
        options.out.write_text(json.dumps(rows, indent=1))
    print(f"\nlargest difference: {worst:.1f} points")
    return 0 if worst <= 3 else 1


if __name__ == "__main__":
    sys.exit(main())
