#!/usr/bin/env python3
"""Cuts and heals the link between two sites: cut_sites.py LAB FORWARDER ISTHMUS

Four workers and a coordinator run in network namespaces, with two workers at each of two sites, 40 ms apart. The site
with the coordinator continues alone; the other one trains locally and comes back when the link is healed. Then all stop
with equal hashes. Exits with 77 and the reason if this machine cannot have a lab.
"""

import importlib.machinery
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cluster import Cluster
from processes import Failure

LAB, FORWARDER, BINARY = sys.argv[1:4]
STEPS = 60  # number of steps that proves that a worker continues
SITE = {"coordinator": "site-1", "w0": "site-1", "w1": "site-1", "w2": "site-2", "w3": "site-2", "w4": "site-2"}

spec = importlib.util.spec_from_loader("lab", importlib.machinery.SourceFileLoader("lab", LAB))
lab_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab_module)


def lab(*words):
    done = subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise Failure(f"lab {' '.join(words)}: {done.stdout}")


class Sites(Cluster):
    def __init__(self, name, folder):
        self.name = name
        status = lab_module.status(lab_module.Lab(name))["sites"]
        self.address = {site: status[site]["ipv4"] for site in status}
        settings = ["network.emulate.rtt=0", "outer.max_local_rounds=1000000", "outer.sync_delay=4", "run.eval_every=0"]
        super().__init__(BINARY, folder, steps=1_000_000_000, settings=settings)

    def command(self, name):
        return [LAB, "run", "--name", self.name, SITE[name], *super().command(name)]

    def flags_of(self, name):
        here = self.address[SITE[name]]
        if name == "coordinator":
            return ["--insecure", "--listen", f"{here}:7000"]
        return ["--insecure", "--listen", f"{here}:0", "--coordinator", f"{self.address['site-1']}:7000"]

    def go_on(self, workers):
        """Waits until these workers have made STEPS more steps."""
        marks = {w: len(w.times) for w in workers}
        self.wait_for(f"steps of {', '.join(w.name for w in workers)}",
                      lambda: all(len(w.times) >= marks[w] + STEPS for w in workers))

    def says(self, process, words):
        self.wait_for(f"'{words}' of {process.name}", lambda: words in process.log.read_text(errors="replace"))

    def run(self):
        here, there = self.workers[:2], self.workers[2:4]
        self.wait_for_begin()
        self.go_on([*here, *there])
        lab("cut", "--name", self.name, "site-1", "site-2")
        self.note("the link is cut")
        self.says(self.coordinator, "begins with 2 replicas: w0, w1")
        self.go_on(here)
        for worker in there:
            self.says(worker, "ROUNDS DO NOT COMMIT")
        self.go_on(there)  # locally
        lab("heal", "--name", self.name, "site-1", "site-2")
        self.note("the link is healed")
        self.says(self.coordinator, "begins with 4 replicas: w0, w1, w2, w3")
        self.go_on([*here, *there])
        self.run_to_stop()
        hashes = self.global_hashes()
        if len(hashes) != 4:
            raise Failure(f"workers are missing at the end: {hashes}")


def main():
    possible = subprocess.run([LAB, "list"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if possible.returncode == lab_module.NO_LAB_HERE:
        print(possible.stdout)
        return lab_module.NO_LAB_HERE
    name = f"cut-{os.getpid()}"
    folder = pathlib.Path(tempfile.mkdtemp(prefix="isthmus-cut-"))
    try:
        lab("up", "--name", name, "--forwarder", FORWARDER, "--sites", "2", "--rtt", "40ms")
        with Sites(name, folder / "run") as sites:
            sites.run()
    except Failure as failure:
        print(f"FAILED: {failure}\nAll logs are in {folder}", file=sys.stderr)
        return 1
    finally:
        subprocess.run([LAB, "down", "--name", name], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
