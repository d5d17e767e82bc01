"""Three sites, two of which have a slow path between them: the coordinator deals the chunks so that nothing passes there.
slow_path_test.py LAB FORWARDER ISTHMUS [unittest's arguments]

Real programs in network namespaces. Exits with 77 and the reason if this machine cannot have a lab.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

LAB, FORWARDER, ISTHMUS = sys.argv[1:4]
PATIENCE = 150  # seconds for what takes twenty
CONFIG = """
run: {name: slow, steps: 1000000, eval_every: 0, stop_grace: 60s}
replicas: 3
device: cpu
model: {layers: 2, dim: 192, heads: 2}
data: {path: text, seq_len: 16, tokenizer: bytes}
inner: {batch: 2, lr: 1e-3, schedule: constant}
trainer: {threads: 1}
outer: {num_fragments: 2, sync_every: 10, sync_delay: 4, codec: 4bit}
network: {insecure: true, heartbeat: 200ms, detect_timeout: 20s, coordinator: "HOME:7000"}
"""


def lab(*words):
    return subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class SlowPath(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="slow-path-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.processes = []
        self.lab = f"slow-path-{os.getpid()}"
        self.addCleanup(lab, "down", "--name", self.lab)
        made = lab("up", "--name", self.lab, "--forwarder", FORWARDER, "--names", "eu,home,us", "--rate", "30Mbps",
                   "--rtt", "20ms", "--link", "eu", "us", "rate=1Mbps", "rtt=60ms")
        self.assertEqual(made.returncode, 0, made.stdout)
        self.sites = json.loads(lab("status", "--name", self.lab, "--json").stdout)["sites"]
        (self.folder / "text").write_text("The sea is wide and deep. " * 4000)
        (self.folder / "slow.yaml").write_text(CONFIG.replace("HOME", self.sites["home"]["ipv4"]))

    def start(self, site, *words):
        command = [LAB, "run", "--name", self.lab, site, "sh", "-c", 'cd "$0" && exec "$@"', str(self.folder), ISTHMUS,
                   *words]
        log = open(self.folder / f"{site}-{words[0]}.log", "w")
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.addCleanup(self.end, process)
        self.processes.append(process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()

    def log(self):
        return (self.folder / "home-coordinator.log").read_text()

    def wait(self, words):
        until = time.monotonic() + PATIENCE
        while words not in self.log():
            logs = "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))
            ended = [process.args for process in self.processes if process.poll() is not None]
            self.assertFalse(ended, f"waiting for: {words}\n{logs}")
            self.assertLess(time.monotonic(), until, f"waiting for: {words}\n{logs}")
            time.sleep(0.1)

    def ctl(self, *words):
        done = subprocess.run([LAB, "run", "--name", self.lab, "home", ISTHMUS, "ctl", *words, "--coordinator",
                               f"{self.sites['home']['ipv4']}:7000", "--insecure"], stdout=subprocess.PIPE, text=True)
        self.assertEqual(done.returncode, 0, done.stdout)
        return done.stdout

    def steps_per_second(self, seconds):
        before = json.loads(self.ctl("status", "--json"))["step"]
        began = time.monotonic()
        time.sleep(seconds)
        return (json.loads(self.ctl("status", "--json"))["step"] - before) / (time.monotonic() - began)

    def test_the_slow_path_is_avoided(self):
        coordinator = self.start("home", "coordinator", "slow.yaml")
        self.wait("listens at port 7000")
        for site, address in self.sites.items():
            self.start(site, "worker", "slow.yaml", "--name", site, "--listen", f"{address['ipv4']}:7100", "--quiet")
        self.wait("view 1 begins with 3 replicas")
        self.wait("slow path, not a slow machine")
        before = self.steps_per_second(4)
        self.wait("links have changed: an exchange takes")
        self.wait(": eu, home, us")  # the next view
        self.wait(" per exchange (mesh ")  # weighted, or home as the hub: not the mesh
        time.sleep(2)
        after = self.steps_per_second(8)
        print(f"{before:.1f} steps a second before, {after:.1f} after")
        self.assertGreater(after, 0)
        self.ctl("stop")
        self.assertIn(coordinator.wait(PATIENCE), (0, 130))
        self.assertIn("equal on all replicas", self.log())


if __name__ == "__main__":
    possible = lab("list")
    if possible.returncode == 77:
        print(possible.stdout)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
