#!/usr/bin/env python3
"""Chaos on real processes: random faults of a coordinator and four workers on loopback.

    tests/chaos/chaos.py build/release/isthmus [--minutes 10] [--seed N] [--goodput SECONDS] [--stopped SECONDS]

Workers are killed, suspended and asked to leave, and come back; a fifth one joins and leaves; the coordinator is killed
and restarted. Each kind of fault happens at least once. Then the run ends without faults, and the test checks exit
statuses, equal global hashes, the summary, the data of every step, and that the loss is similar to that of quiet runs.
Prints measurements as JSON. The seed fixes the faults and the pauses between them, but not the machine's timing.
"""

import argparse
import json
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time

from cluster import REPLICAS, Cluster
from processes import Failure, die_with_parent, tail

MOST_GROWTH = 16 << 20  # bytes of resident memory that an allocator alone may add
STEPS_PER_MINUTE = 900  # upper limit on any machine, because of the config's round trip
KINDS = {"kill": 4, "suspend": 4, "leave": 2, "coordinator": 2, "fifth": 2}  # kinds of faults and their weights


def median(values):
    values = sorted(values)
    return values[len(values) // 2] if values else None


class Chaos(Cluster):
    def something(self, rng, what, seconds):
        """Causes a fault of kind `what` if it is possible for any worker now. The random draws do not depend on what is
        possible, so that a seed is reproducible. `seconds` is the duration of the run."""
        workers = rng.sample(self.workers, len(self.workers))
        pause = rng.uniform(0.1, min(10, seconds / 5))
        nap = rng.choice([rng.uniform(0.1, 1), rng.uniform(1, min(8, seconds / 4))])
        return any(self.happens(what, worker, pause, nap) for worker in workers)

    def happens(self, what, worker, pause, nap):
        """Causes the fault. Returns False without any effect if it is not possible now."""
        free = worker.running() and not worker.leaving and not worker.stopped
        can_go = free and self.can_do_without(worker)
        if what == "kill" and can_go:
            self.kill_worker(worker, pause)
        elif what == "suspend" and free:
            self.suspend(worker, nap)
        elif what == "leave" and can_go and worker.takes_part() and worker is not self.fifth:
            self.ask_to_leave(worker, pause)
        elif what == "coordinator" and self.coordinator.running():
            self.kill_coordinator(pause)
        elif what == "fifth" and not self.fifth.lives:
            self.note("the fifth worker joins")
            self.fifth.start()
        elif what == "fifth" and self.fifth.takes_part() and not self.fifth.stopped and self.can_do_without(self.fifth):
            self.ask_to_leave(self.fifth, pause)
        else:
            return False
        return True

    def chaos(self, rng, seconds):
        self.wait_for_begin()
        end = time.monotonic() + seconds
        missing = rng.sample(list(KINDS), len(KINDS))
        # The last part of the run is left for returning workers, since an ending run admits no members.
        while self.step() < 0.85 * self.steps and (missing or time.monotonic() < end):
            pause = time.monotonic() + rng.uniform(min(1, seconds / 60), min(6, seconds / 12))
            while time.monotonic() < pause:
                self.turn()
            (by_chance,) = rng.choices(list(KINDS), list(KINDS.values()))
            if self.something(rng, missing[0] if missing else by_chance, seconds) and missing:
                missing.pop(0)
        self.note("no more faults; absent processes come back now")
        self.come_back()


def quiet_loss(binary, cluster, seed):
    """The final loss of the same run without faults and network delays; delays do not change any bit of it."""
    name = f"quiet-{seed}"
    command = [binary, "launch", str(cluster.config), "--set", f"run.name={name}", "--set", f"run.seed={seed}",
               "--set", "network.emulate.rtt=0", "--set", "network.detect_timeout=60s", "--set",
               "network.coordinator=127.0.0.1:0"]
    log = cluster.folder / f"{name}.log"
    with open(log, "wb") as out:
        status = subprocess.run(command, stdout=out, stderr=out, preexec_fn=die_with_parent).returncode
    if status != 0:
        raise Failure(f"the quiet run ended with status {status}; the end of {log}:\n{tail(log)}")
    return json.loads((cluster.folder / "runs" / name / "summary.json").read_text())["final_eval_loss"]


def check_loss(loss, quiet):
    """A run with absent replicas uses less data, so its loss may be higher by 2 % plus the variation between seeds."""
    limit = max(quiet) + 3 * (max(quiet) - min(quiet)) + 0.02 * max(quiet)
    if loss > limit:
        raise Failure(f"the final loss is {loss:.4f}, above {limit:.4f}; quiet runs end with {quiet}")


def steps_in(binary, folder, seconds, failure_every=None):
    """Inner steps of all workers, and agreed steps, within `seconds`. With `failure_every`, a worker is killed and
    restarted at this interval."""
    with Cluster(binary, folder, steps=1_000_000) as cluster:
        cluster.wait_for_begin()
        first, agreed, end = cluster.inner_steps(), cluster.step(), time.monotonic() + seconds
        if failure_every:
            for n in range(int(seconds / failure_every)):
                victim = cluster.workers[n % REPLICAS]
                cluster.after((n + 0.5) * failure_every, lambda w=victim: cluster.kill_worker(w, 0))
        while time.monotonic() < end:
            cluster.turn()
        return cluster.inner_steps() - first, cluster.step() - agreed, cluster


def state_transfer(binary, folder):
    """Bytes that the members send for one joining worker. The run has no rounds after its warm-up, so that only
    heartbeats must be subtracted."""
    with Cluster(binary, folder / "state", steps=1_000_000, sync_every=1_000_000) as cluster:
        members, newcomer = cluster.workers[:-1], cluster.fifth
        cluster.wait_for_begin()
        while cluster.step() < 20:
            cluster.turn()

        def sent_until(happened):
            begin, before = time.monotonic(), sum(w.bytes_sent for w in members)
            while not happened(time.monotonic() - begin):
                cluster.turn()
            return time.monotonic() - begin, sum(w.bytes_sent for w in members) - before

        quiet_seconds, quiet = sent_until(lambda seconds: seconds > 5)
        newcomer.start()
        seconds, sent = sent_until(lambda _: newcomer.joins)
        cluster.run_to_stop()
        # Parameters, momentum and the inner optimizer's two moments.
        state = 16 * json.loads((cluster.run_folder / "summary.json").read_text())["parameters"]
        sent -= quiet / quiet_seconds * seconds
        return {"state_bytes": state, "state_bytes_sent": round(sent), "sent_to_size": round(sent / state, 3)}


def stopped_peer(binary, folder, seconds):
    """Memory of the other workers while one of four is suspended. Rounds are so large and frequent that data kept for
    it would be noticed."""
    settings = ["outer.codec=fp32", "outer.sync_every=6", "model.dim=64", "network.emulate.rtt=0"]
    with Cluster(binary, folder / "stopped", steps=1_000_000, settings=settings) as cluster:
        stopped, *others = cluster.workers[:-1]
        cluster.wait_for_begin()
        cluster.suspend(stopped, 0)
        cluster.later.clear()

        def most_resident(length, sent):
            """The peak memory of each worker within `length` seconds, or longer until each has sent `sent` bytes, and
            the least that one of them has sent."""
            most, end, before = [0] * len(others), time.monotonic() + length, [w.bytes_sent for w in others]

            def sent_by_each():
                return min(w.bytes_sent - bytes_sent for w, bytes_sent in zip(others, before))

            while time.monotonic() < end or sent_by_each() < sent:
                cluster.turn()
                most = [max(least, w.resident()) for least, w in zip(most, others)]
            return most, sent_by_each()

        # After the first part the suspended worker is no longer in the view and holds nothing up.
        begun = time.monotonic()
        first, _ = most_resident(seconds / 4, MOST_GROWTH)
        last, sent = most_resident(seconds * 3 / 4, 4 * MOST_GROWTH)
        seconds = round(time.monotonic() - begun, 1)
        growth = max(after - before for before, after in zip(first, last))
        if growth > MOST_GROWTH:
            raise Failure(f"while a peer was suspended for {seconds:g} s, another's memory grew by {growth} bytes, "
                          f"above the limit of {MOST_GROWTH}")
        stopped.read()
        stopped.step = None
        stopped.wake()
        cluster.wait_for(f"the suspended {stopped.name}", lambda: (stopped.step or 0) + 100 > cluster.step())
        cluster.run_to_stop()
        if len(cluster.global_hashes()) != REPLICAS:
            raise Failure(f"workers are missing at the end: {cluster.global_hashes()}")
        return {"stopped_for_s": seconds, "sent_by_each_meanwhile": sent, "memory_growth": growth}


def goodput(binary, folder, seconds):
    quiet, agreed_quiet, _ = steps_in(binary, folder / "goodput-quiet", seconds)
    with_failures, agreed, cluster = steps_in(binary, folder / "goodput-failures", seconds, failure_every=15)
    return {"inner_steps_quiet": quiet, "inner_steps_with_a_failure_each_15_s": with_failures,
            "goodput": round(with_failures / quiet, 3),
            "agreed_steps_quiet": agreed_quiet, "agreed_steps_with_a_failure_each_15_s": agreed,
            "goodput_in_agreed_steps": round(agreed / agreed_quiet, 3),
            "longest_gap_of_survivors_s": round(cluster.longest_gap_after_kills(), 2),
            "start_to_taking_part_s": [round(s, 2) for w in cluster.workers for s, _ in w.joins]}


def happened(cluster):
    kinds = {"workers_killed": "kill -9 w", "coordinators_killed": "kill -9 c", "suspended": "SIGSTOP",
             "asked_to_leave": "SIGTERM", "joined": "the fifth"}
    counts = {kind: sum(text.startswith(start) for _, text in cluster.events) for kind, start in kinds.items()}
    if 0 in counts.values():
        raise Failure(f"not all kinds of failures happened: {counts}; use more --minutes")
    return counts


def run(arguments, folder):
    binary = str(arguments.binary.resolve())
    if arguments.stopped:
        return stopped_peer(binary, folder, arguments.stopped)
    with Chaos(binary, folder / "chaos", int(STEPS_PER_MINUTE * arguments.minutes)) as cluster:
        cluster.chaos(random.Random(arguments.seed), 60 * arguments.minutes)
        cluster.let_end()
        seconds = time.monotonic() - cluster.begin
        summary = cluster.check()
    loss = summary["final_eval_loss"]
    quiet = [quiet_loss(binary, cluster, seed) for seed in range(1, arguments.quiet_runs + 1)]
    joins = [join for worker in cluster.workers for join in worker.joins]
    result = {
        "seed": arguments.seed,
        "steps": cluster.steps,
        "seconds": round(seconds, 1),
        "happened": happened(cluster),
        "replicas_at_the_end": len(summary["global_hash"]),
        "global_hash": next(iter(summary["global_hash"].values())),
        "final_eval_loss": loss,
        "final_eval_loss_of_quiet_runs": quiet,
        "joins": len(joins),
        "start_to_taking_part_s": {"median": median([round(a, 2) for a, _ in joins]),
                                   "longest": round(max((a for a, _ in joins), default=0), 2)},
        "longest_gap_of_survivors_s": round(cluster.longest_gap_after_kills(), 2),
    }
    check_loss(loss, quiet)
    if arguments.goodput:
        result |= {"state_transfer": state_transfer(binary, folder),
                   "goodput": goodput(binary, folder, arguments.goodput)}
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary", type=pathlib.Path, help="the isthmus binary")
    parser.add_argument("--minutes", type=float, default=10, help="duration of the faults")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 31),
                        help="seed of the faults (default: a new one)")
    parser.add_argument("--quiet-runs", type=int, default=3, help="number of fault-free runs to compare the loss with")
    parser.add_argument("--goodput", type=float, default=0, metavar="SECONDS",
                        help="measure goodput with a failure each 15 s for this time, and the cost of a join")
    parser.add_argument("--stopped", type=float, default=0, metavar="SECONDS",
                        help="only suspend one worker for at least this time, and measure the others' memory")
    parser.add_argument("--keep", action="store_true", help="keep the folder of logs also after success")
    arguments = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-chaos-"))
    print(f"--seed {arguments.seed}", file=sys.stderr, flush=True)
    try:
        print(json.dumps(run(arguments, folder), indent=2))
    except Failure as failure:
        print(f"FAILED: {failure}\nAll logs are in {folder}; to see it again: {sys.argv[0]} {arguments.binary} "
              f"--minutes {arguments.minutes:g} --seed {arguments.seed} --stopped {arguments.stopped:g}", file=sys.stderr)
        return 1
    if not arguments.keep:
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
