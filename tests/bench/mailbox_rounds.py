#!/usr/bin/env python3
"""mailbox_rounds.py BUILD [--call 0.2] [--params 2M] [--steps 40]: rounds through a bucket, planned and measured.

Two replicas of `isthmus bench outer`, with steps of 1 s that only sleep, exchange fragments through moto's S3 server,
behind a proxy that delays each call. Meanwhile a third client measures how long calls take. Prints a table in Markdown
with the time from a fragment's first contribution to its result, and what `isthmus plan` predicts for links with the
rate and the round trip that docs/how-to/mailbox.md gives for a call that 90 % of these do not exceed. Needs the release build and
.venv with the packages of the tests.
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
from s3_server import BUCKET, Proxy, Server, free_port, wait_for  # noqa: E402

STEP_S = 1
PAUSE_S = 0.35  # between two looks into the bucket, five seconds after the last news, as here between two rounds
CONFIG = """
run: {name: rounds}
replicas: 2
outer: {num_fragments: 4, sync_every: 20, sync_delay: 8, codec: 4bit}
network: {certs: certs/rounds, detect_timeout: 30s, lanes: 8}
"""


class Calls:
    """Times a small call to the store twice a second until `end`."""

    def __init__(self, server, port):
        server.s3.put_object(Bucket=BUCKET, Key="probe", Body=b"probe")
        self.client, self.seconds, self.over = server.client("s3", port=port), [], threading.Event()
        self.thread = threading.Thread(target=self.measure, daemon=True)
        self.thread.start()

    def measure(self):
        while not self.over.wait(0.5):
            start = time.monotonic()
            self.client.head_object(Bucket=BUCKET, Key="probe")
            self.seconds.append(time.monotonic() - start)

    def end(self):
        self.over.set()
        self.thread.join()
        if len(self.seconds) < 10:
            sys.exit(f"only {len(self.seconds)} calls to the store were timed; run more steps")
        return statistics.median(self.seconds), statistics.quantiles(self.seconds, n=10)[-1]


def plan(program, folder, params, call):
    """Seconds from sending to the result, by `isthmus plan`."""
    piece = 1 << 20  # bytes that a lane carries in one call
    rate = 8 * 8 * piece / call  # bits per second, of 8 lanes
    links = folder / "links.yaml"
    # Each way at most: put two pieces, a look that has just missed them, its pause, another look, get both.
    round_trip = 2 * (6 * call + PAUSE_S)
    links.write_text(f"sites:\n  a: {{up: {rate / 1e6:.0f}Mbps, down: {rate / 1e6:.0f}Mbps}}\n"
                     f"  b: {{up: {rate / 1e6:.0f}Mbps, down: {rate / 1e6:.0f}Mbps}}\nother_rtt: {round_trip * 1000:.0f}ms\n")
    done = subprocess.run([program, "plan", "rounds.yaml", "--params", params, "--step-time", f"{STEP_S}s", "--links", links,
                           "--json"], cwd=folder, capture_output=True, text=True, check=True)
    return max(row["seconds"] for row in json.loads(done.stdout)["timetable"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--call", type=float, default=0.2)
    parser.add_argument("--params", default="2M")
    parser.add_argument("--steps", type=int, default=40)
    options = parser.parse_args()
    program = options.build.absolute() / "isthmus-coordinator"
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        server = Server(folder)
        proxy = Proxy(server.port, options.call)
        calls = Calls(server, proxy.port)
        (folder / "rounds.yaml").write_text(CONFIG)
        for words in (["init", "rounds"], *(["issue", "rounds", who] for who in ("coordinator", "replica-0", "replica-1"))):
            subprocess.run([program, "certs", *words, "--dir", "certs"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        settings = [f"object_store.url=s3://{BUCKET}/rounds", f"object_store.endpoint=http://127.0.0.1:{proxy.port}",
                    f"object_store.credentials={server.credentials}", "network.mailbox=true"]
        address = f"127.0.0.1:{free_port()}"
        common = [program, "bench", "outer", "rounds.yaml", "--params", options.params, "--step-time", f"{STEP_S}s",
                  "--steps", str(options.steps), *(word for item in settings for word in ("--set", item))]
        places = [["--role", "coordinator", "--listen", address, "--out", "figures.json"]]
        places += [["--role", "replica", "--name", f"replica-{n}", "--coordinator", address, "--listen", "none"] for n in range(2)]
        processes = []
        for n, place in enumerate(places):
            log = open(folder / f"{n}.log", "w")
            processes.append(subprocess.Popen([*common, *place], cwd=folder, stdout=log, stderr=log))
        try:
            if any([process.wait(options.steps * STEP_S + 300) for process in processes]):
                sys.exit("".join((folder / f"{n}.log").read_text() for n in range(3)))
        finally:
            for process in processes:
                process.kill()
            typical, long = calls.end()
            server.close()
        members = json.loads((folder / "figures.json").read_text())["members"]
        print("| a call takes (90 %) | planned | median | slowest | computing |\n| --- | --- | --- | --- | --- |")
        median = max(member["fragment_seconds_median"] for member in members)
        slowest = max(member["fragment_seconds_p99"] for member in members)
        computing = min(member["compute_seconds"] / member["measured_seconds"] for member in members)
        print(f"| {typical * 1000:.0f} ms ({long * 1000:.0f} ms) | {plan(program, folder, options.params, long):.2f} s "
              f"| {median:.2f} s | {slowest:.2f} s | {100 * computing:.1f} % |")


if __name__ == "__main__":
    main()
