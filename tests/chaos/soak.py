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
import shutil
import sys
import tempfile
import time
import traceback

from flips import MOST_TRIES
from launched import LAUNCHED_KINDS, LAUNCHED_PATIENCE, Launched
from processes import Failure, tail
from soak_cluster import KINDS, Soak, Surroundings

BACK_WITHIN = 90  # seconds from the last fault until all workers make steps again
CALM_EVERY = 300  # seconds
PAUSE, SHORT_PAUSE = (0.3, 3.5), (0.2, 1.2)  # seconds between faults; the latter in runs of less than two minutes
LONG_RUN = 1800  # seconds; shorter runs need not have all kinds of faults
MIN_FAULTS_AN_HOUR = 1000  # reached if the machine is not too busy


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
