"""Tests of runs across NATs, relays, IPv6 and small packets:
reach_test.py LAB FORWARDER COORDINATOR [unittest's arguments]

Runs `bench outer` in network namespaces, with the real protocol, codec and connections; at the end it compares all
global hashes. Exits with 77 and the reason if this machine cannot have a lab.
"""

import importlib.machinery
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import unittest

LAB, FORWARDER, PROGRAM = sys.argv[1:4]
PATIENCE = 120  # seconds for runs that take a few
SETTINGS = ["--params", "200k", "--step-time", "10ms", "--steps", "60", "--replicas", "3", "--insecure"]
for setting in ("outer.sync_every=10", "outer.num_fragments=2", "outer.sync_delay=4", "network.lanes=2",
                "network.heartbeat=200ms", "network.detect_timeout=3s"):
    SETTINGS += ["--set", setting]

spec = importlib.util.spec_from_loader("lab", importlib.machinery.SourceFileLoader("lab", LAB))
lab_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab_module)


def lab(*words):
    return subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Reach(unittest.TestCase):
    count = 0

    def up(self, *options):
        Reach.count += 1
        self.name = f"reach-{os.getpid()}-{Reach.count}"
        self.addCleanup(lab, "down", "--name", self.name)
        made = lab("up", "--name", self.name, "--forwarder", FORWARDER, "--sites", "3", "--rtt", "10ms", *options)
        self.assertEqual(made.returncode, 0, made.stderr)
        self.sites = lab_module.status(lab_module.Lab(self.name))["sites"]

    def start(self, site, *words):
        process = subprocess.Popen([LAB, "run", "--name", self.name, site, PROGRAM, "bench", "outer", *SETTINGS, *words],
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(process.stdout.close)
        self.addCleanup(process.kill)
        return process

    def train(self, listen, family="ipv4"):
        """Runs the coordinator at site-1, replica r1 at site-1 and so on; `listen` has the replicas' --listen.
        Returns the output of all."""
        address = {site: self.sites[site][family] for site in self.sites}
        host = {site: f"[{text}]" if ":" in text else text for site, text in address.items()}
        with tempfile.TemporaryDirectory() as folder:
            report = os.path.join(folder, "report.json")
            processes = [self.start("site-1", "--role", "coordinator", "--listen", f"{host['site-1']}:7000",
                                    "--out", report)]
            for number, where in enumerate(listen, 1):
                site = f"site-{number}"
                port = f"{host[site]}:7001" if where == "port" else where
                processes.append(self.start(site, "--role", "replica", "--name", f"r{number}", "--listen", port,
                                            "--coordinator", f"{host['site-1']}:7000"))
            outputs = [process.communicate(timeout=PATIENCE)[0] for process in processes]
            for process, output in zip(processes, outputs):
                self.assertEqual(process.returncode, 0, "\n".join(outputs))
            with open(report) as file:
                self.assertTrue(json.load(file))
        return "\n".join(outputs)

    def test_one_behind_nat(self):
        self.up("--nat", "site-3")
        said = self.train(["port", "port", "none"])
        self.assertIn("r3 joined; it opens no port", said)
        self.assertNotIn("cannot reach each other", said)

    def test_an_address_that_nat_hides(self):
        """r3 announces an address that others cannot reach, so that r3 must connect to them."""
        self.up("--nat", "site-3")
        said = self.train(["port", "port", "port"])
        self.assertNotIn("cannot reach each other", said)
        self.assertNotIn("left out", said)

    def test_two_behind_nats_and_a_relay(self):
        self.up("--nat", "site-2,site-3")
        output = self.train(["port", "none", "none"])
        self.assertIn("r2 and r3 cannot reach each other; their chunks are relayed by r1", output)

    def test_two_that_nats_hide_and_a_relay(self):
        """Both announce addresses that cannot be reached; a relay is chosen once they have lost each other."""
        self.up("--nat", "site-2,site-3")
        output = self.train(["port", "port", "port"])
        self.assertIn("r2 and r3 cannot reach each other; their chunks are relayed by r1", output)

    def test_ipv6_only(self):
        self.up()
        for site in self.sites:
            flushed = lab("run", "--name", self.name, site, "ip", "-4", "addr", "flush", "dev", "wan0")
            self.assertEqual(flushed.returncode, 0, flushed.stderr)
        self.assertIn("joined from [", self.train(["port", "port", "port"], "ipv6"))

    def test_mtu_of_1280(self):
        self.up("--mtu", "1280")
        self.train(["port", "port", "port"])


if __name__ == "__main__":
    possible = lab("list")
    if possible.returncode == 77:
        print(possible.stderr)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
