#!/usr/bin/env python3
"""Compares constants of outer.auto (ReplanTuning) in real runs, over links of a lab that change during the run.

tests/bench/replan_on_links.py --tuned NAME=VALUE ... [--hand-set NAME=VALUE ...] [--case NAME ...] [--rounds 2]
    [--steps 480] [--together 4] [--build build/release] [--out FILE]

Needs root and the release build (tests/wan_lab). CASES has the links. Each case runs with both sets of constants at the
same time, in two labs of two sites; several cases run at the same time too. The processes are those of `bench outer`,
with steps that sleep, over TCP and TLS. Prints a table in Markdown, means over the rounds: the time computing (of the
replica that computed least, from the first interval on), the mean learning cost of the steps (H + 4 tau), and the number
of changes.
"""

import argparse
import concurrent.futures
import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parents[2]
LAB = ROOT / "tests/wan_lab/lab"
SITES = ("site-1", "site-2")
MODEL = ["--params", "1M", "--step-time", "500ms"]
EVERY, DELAY = 20, 1  # a fragment of 0.14 MB must arrive within a step
OUTER = {"sync_every": EVERY, "num_fragments": 4, "sync_delay": DELAY, "codec": "4bit", "chunk_elements": 16384,
         "auto": {"utilization": 0.95, "at_start": False, "min_interval": "30s"}}
CONFIG = {"run": {"name": "links"}, "replicas": 2, "outer": OUTER, "network": {"detect_timeout": "60s"}}
WIDE, THIN = {"rate": "5Mbps"}, {"rate": "600kbps"}
USUAL = {"rate": "5Mbps", "rtt": "60ms"}
# Changes of the link between the sites, with their seconds.
CASES = {
    "steady": [],
    "long drop": [(50, THIN), (180, WIDE)],
    "short drops": [(begin + shift, link) for begin in (40, 100, 160, 220) for shift, link in ((0, THIN), (15, WIDE))],
    "flapping": [(40 + 40 * turn, THIN if turn % 2 == 0 else WIDE) for turn in range(6)],
    "long round trips": [(50, {"rtt": "1200ms"}), (180, {"rtt": "60ms"})],
}


class Run:
    """One run in a lab of its own."""

    def __init__(self, stack, options, case, label, constants, folder):
        build, self.steps = options.build.resolve(), options.steps
        self.label, self.folder, self.name = label, folder, f"replan-{list(CASES).index(case)}-{label}"
        self.programs = {name: build / name for name in ("isthmus-coordinator", "bench/replan_coordinator")}
        folder.mkdir()
        stack.callback(lambda: subprocess.run([LAB, "down", "--name", self.name], stdout=subprocess.DEVNULL))
        link = [word for key, value in USUAL.items() for word in (f"--{key}", value)]
        made = subprocess.run([LAB, "up", "--name", self.name, "--sites", "2", *link], stdout=subprocess.DEVNULL)
        if made.returncode != 0:
            sys.exit(made.returncode)  # 77: no lab on this machine, as it has said
        certs, config = folder / "certs", folder / "config.yaml"
        config.write_text(json.dumps(CONFIG))  # JSON is YAML
        program = self.programs["isthmus-coordinator"]
        subprocess.run([program, "certs", "init", "links", "--dir", certs], check=True, stdout=subprocess.DEVNULL)
        for name in ("coordinator", *SITES):
            subprocess.run([program, "certs", "issue", "links", name, "--dir", certs], check=True, stdout=subprocess.DEVNULL)
        coordinator = f"{self.address('site-1')}:7000"
        shared = [config, *MODEL, "--steps", self.steps, "--certs", certs / "links"]
        tuning = [word for constant in constants for word in ("--tuning", constant)]
        self.out = folder / "coordinator.jsonl"
        self.processes = [self.start("site-1", self.out, self.programs["bench/replan_coordinator"], *shared,
                                     "--listen", coordinator, *tuning)]
        for site in SITES:
            place = ["--role", "replica", "--name", site, "--coordinator", coordinator, "--listen", f"{self.address(site)}:7001"]
            self.processes.append(self.start(site, folder / f"{site}.log", program, "bench", "outer", *shared, *place))
        stack.callback(self.end)

    def address(self, site):
        command = [LAB, "run", "--name", self.name, site, "ip", "-j", "-4", "addr", "show", "wan0"]
        found = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        return json.loads(found)[0]["addr_info"][0]["local"]

    def start(self, site, out, *words):
        with open(out, "w") as output, open(f"{out}.err", "w") as errors:
            return subprocess.Popen([LAB, "run", "--name", self.name, site, *map(str, words)], stdout=output, stderr=errors,
                                    stdin=subprocess.DEVNULL)

    def set_link(self, link):
        words = [word for key, value in link.items() for word in (f"--{key}", value)]
        subprocess.run([LAB, "set", "--name", self.name, *SITES, *words], check=True, stdout=subprocess.DEVNULL)

    def wait(self, seconds):
        for process in self.processes:
            if process.wait(timeout=seconds) != 0:
                errors = "".join(file.read_text() for file in self.folder.glob("*.err"))
                raise SystemExit(f"{self.label}: a process has failed:\n{errors}")

    def end(self):
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    def figures(self):
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        changes = [line["replanned"] for line in lines if "replanned" in line]
        members = lines[-1]["members"]
        cost, last = 0, 0
        settings = {"sync_every": EVERY, "sync_delay": DELAY}
        for change in [*changes, {"after_step": self.steps}]:
            cost += (settings["sync_every"] + 4 * settings["sync_delay"]) * (change["after_step"] - last)
            last, settings = change["after_step"], change
        return {
            "utilization": min(member["compute_seconds"] / member["measured_seconds"] for member in members),
            "woken_late": max(member["late_wake_seconds"] / member["measured_seconds"] for member in members),
            "cost": cost / self.steps,
            "changes": [[change["after_step"], change["sync_every"], change["sync_delay"]] for change in changes],
        }


def measure(options, case, sets, folder):
    with contextlib.ExitStack() as stack:
        runs = [Run(stack, options, case, label, constants, folder / f"{case} {label}") for label, constants in sets.items()]
        begin = time.monotonic()
        for second, link in CASES[case]:
            time.sleep(max(0, begin + second - time.monotonic()))
            for run in runs:
                run.set_link(link)
        for run in runs:
            run.wait(600)
        return {run.label: run.figures() for run in runs}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tuned", nargs="+", default=[], metavar="NAME=VALUE", help="constants that differ from the program's")
    parser.add_argument("--hand-set", nargs="+", default=[], metavar="NAME=VALUE", help="the same for the other set")
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--together", type=int, default=4, help="cases at the same time")
    parser.add_argument("--steps", type=int, default=480, help="of half a second")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/release")
    parser.add_argument("--out", type=pathlib.Path, help="a line of JSON for each run")
    options = parser.parse_args()
    sets = {"hand-set": options.hand_set, "tuned": options.tuned}
    found = {(case, label): [] for case in options.case for label in sets}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.together) as pool:
            runs = [pool.submit(measure, options, case, sets, pathlib.Path(folder)) for case in options.case]
            for case, run in zip(options.case, runs):
                for label, figures in run.result().items():
                    found[case, label].append(figures)
                    line = json.dumps({"case": case, "round": number, "constants": label, **figures})
                    print(line, file=sys.stderr, flush=True)
                    if options.out:
                        with open(options.out, "a") as out:
                            print(line, file=out)
    print("| links | constants | utilisation | learning cost | changes | woken late |\n| --- | --- | --- | --- | --- | --- |")
    for (case, label), runs in found.items():
        mean = {key: sum(run[key] for run in runs) / len(runs) for key in ("utilization", "cost", "woken_late")}
        changes = ", ".join(str(len(run["changes"])) for run in runs)
        print(f"| {case} | {label} | {100 * mean['utilization']:.2f} % | {mean['cost']:.1f} | {changes} | "
              f"{100 * mean['woken_late']:.2f} % |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
