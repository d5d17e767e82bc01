"""Tests of a lab from the user's view: wan_lab_test.py LAB FORWARDER [unittest's arguments]

Uses real namespaces, devices and sockets. A busy machine can only delay packets, so most tests check that nothing is
faster than the link; others use the best of many times. Exits with 77 and the reason if this machine cannot have a lab.
"""

import concurrent.futures
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from lab_case import FORWARDER, LAB, PATIENCE, TCP_HEADERS, LabCase, lab, lab_module, wait_until, what_is_left


class Lab(LabCase):
    def test_rtt(self):
        name = self.up("--rtt", "20ms")
        for family in (socket.AF_INET, socket.AF_INET6):
            ends = self.datagrams(name, family)
            self.assertGreaterEqual(min(self.round_trips(ends, 5)), 0.020)
            self.assertLess(self.round_trip_of_the_link(ends), 0.021)

    def test_set(self):
        name = self.up("--rtt", "10ms", "--link", "site-1", "site-2", "rtt=20ms", "rate=50Mbps")
        ends = self.datagrams(name)
        self.assertGreaterEqual(min(self.round_trips(ends, 3)), 0.020)
        self.tell(name, "set", "site-1", "site-2", "--rtt", "40ms", "--one-way")
        there, back = self.link(name), self.link(name, "site-2", "site-1")
        self.assertEqual((there["delay"], back["delay"]), (20_000_000, 10_000_000))
        self.assertEqual(there["rate"], 50_000_000, "other settings must not change")
        self.assertGreaterEqual(min(self.round_trips(ends, 3)), 0.030)
        self.assertLess(self.round_trip_of_the_link(ends), 0.031)
        for wrong in (("set", "site-1", "site-9", "--rtt", "1ms"), ("set", "site-1", "site-2")):
            self.assertEqual(lab(wrong[0], "--name", name, *wrong[1:]).returncode, 1)
        for wrong in (("--rtt", "5"), ("--loss", "2"), ("--rate", "0Mbps"), ("--queue", "-1ms")):
            self.assertEqual(lab("set", "--name", name, "site-1", "site-2", *wrong).returncode, 2, wrong)

    def test_jitter(self):
        name = self.up("--rtt", "2ms", "--jitter", "5ms")
        seconds = self.round_trips(self.datagrams(name), 60)
        self.assertGreaterEqual(min(seconds), 0.002)
        self.assertGreater(max(seconds) - min(seconds), 0.001)

    def test_rate(self):
        name = self.up("--rtt", "10ms", "--rate", "100Mbps")
        data = os.urandom(2_000_000)
        for family in (socket.AF_INET, socket.AF_INET6):
            before = self.link(name)
            seconds = self.transfer(*self.connection(name, family), data)
            headers = TCP_HEADERS[family]
            wire = len(data) * 1500 / (1500 - headers)
            self.assertGreaterEqual(seconds, wire * 8 / 100e6 + 0.005, "faster than the link")
            after = self.link(name)
            packets, size = (after[f"entered_{what}"] - before[f"entered_{what}"] for what in ("packets", "bytes"))
            self.assertGreaterEqual(packets, len(data) / (1500 - headers), "must count packets on the wire")
            self.assertGreaterEqual(size, wire)
            self.assertLess(size, wire * 1.05)
        ends = self.datagrams(name)
        start = time.monotonic()
        for _ in range(200):
            ends[0].send(bytes(1472))
        for _ in range(200):
            ends[1].recv(2000)
        self.assertGreaterEqual(time.monotonic() - start, 200 * 1500 * 8 / 100e6 + 0.005)

    def test_access_line(self):
        name = self.up("--sites", "3", "--rate", "1Gbps", "--access", "site-1=50Mbps")
        data = os.urandom(1_000_000)
        least = 2 * len(data) * 1500 / (1500 - TCP_HEADERS[socket.AF_INET]) * 8 / 50e6
        others = ("site-2", "site-3")
        for directions in ([("site-1", other) for other in others], [(other, "site-1") for other in others]):
            ends = [self.connection(name, client=client, server=server) for client, server in directions]
            start = time.monotonic()
            with concurrent.futures.ThreadPoolExecutor() as pool:
                list(pool.map(lambda pair: self.transfer(*pair, data), ends))
            self.assertGreaterEqual(time.monotonic() - start, least, f"faster than the line: {directions}")
        known = self.status(name)
        self.assertNotIn("site-2", known["access"])
        for line in ("out", "in"):
            self.assertEqual(known["access"]["site-1"][line]["rate"], 50_000_000)
            self.assertGreater(known["access"]["site-1"][line]["entered_bytes"], 2 * len(data))
        wait_until(lambda: self.status(name)["forwarder"]["in_flight"] == 0, "all delivered")
        before = known["access"]["site-1"]["in"]["entered_packets"]
        self.transfer(*self.connection(name, client="site-2", server="site-3"), data)
        self.assertLess(self.status(name)["access"]["site-1"]["in"]["entered_packets"], before + 100)
        self.assertEqual(lab("with", "--access", "site-9=1Mbps", "--", "true").returncode, 1)
        self.assertEqual(lab("with", "--access", "site-1", "--", "true").returncode, 2)

    def test_access_queue(self):
        """Bursts that lose packets in an access line are divided, on the way out and on the way in."""
        reno = "net.ipv4.tcp_congestion_control=reno"  # which sends more until packets are lost
        name = self.up("--rate", "10Gbps", "--queue", "5ms", "--access", "site-1=100Mbps", "--sysctl", reno)
        data = os.urandom(3_000_000)
        for client, server, line in (("site-1", "site-2", "out"), ("site-2", "site-1", "in")):
            self.transfer(*self.connection(name, client=client, server=server), data)
            known = self.status(name)["access"]["site-1"][line]
            self.assertGreater(known["queue_drops_packets"], 0, line)
            self.assertEqual(known["delivered_packets"], known["entered_packets"] - known["queue_drops_packets"])

    def test_queue(self):
        name = self.up("--rtt", "0ms", "--rate", "10Mbps", "--queue", "15000B")
        ends = self.datagrams(name)
        for _ in range(100):
            ends[0].send(bytes(1472))
        wait_until(lambda: self.link(name)["entered_packets"] == 100, "100 packets at the forwarder")
        wait_until(lambda: self.status(name)["forwarder"]["in_flight"] == 0, "all delivered")
        link = self.link(name)
        self.assertEqual(link["delivered_packets"] + link["queue_drops_packets"], 100)
        self.assertGreaterEqual(link["delivered_packets"], 11)  # one on the link and ten behind it
        for _ in range(link["delivered_packets"]):
            ends[1].recv(2000)

    def test_loss(self):
        name = self.up("--loss", "0.1", "--rate", "10Gbps", "--queue", "1s")
        ends, sent = self.datagrams(name), 20_000
        for _ in range(sent):
            ends[0].send(bytes(100))

        def arrived():
            known = self.status(name)
            at_device = known["sites"]["site-1"]["device_drops"]
            return known["links"]["site-1"]["site-2"]["entered_packets"] + at_device == sent

        wait_until(arrived, f"{sent} packets at the forwarder")
        wait_until(lambda: self.status(name)["forwarder"]["in_flight"] == 0, "all delivered")
        link = self.link(name)
        entered, lost = link["entered_packets"], link["losses_packets"]
        self.assertAlmostEqual(lost / entered, 0.1, delta=5 * (0.1 * 0.9 / entered) ** 0.5)
        self.assertEqual(link["delivered_packets"], entered - lost)
        for _ in range(entered - lost):
            ends[1].recv(200)
        ends[1].setblocking(False)
        with self.assertRaises(BlockingIOError):
            ends[1].recv(200)

    def test_streams_survive_loss_and_a_short_queue(self):
        """Bursts that lose packets are divided; TCP must still deliver the same data."""
        name = self.up("--rtt", "2ms", "--loss", "2e-3", "--rate", "500Mbps", "--queue", "200KB")
        data = os.urandom(6_000_000)
        for family in (socket.AF_INET, socket.AF_INET6):
            self.transfer(*self.connection(name, family), data)
        link = self.link(name)
        self.assertGreater(link["losses_packets"], 0)
        self.assertEqual([site["write_errors"] for site in self.status(name)["sites"].values()], [0, 0])

    def test_mtu(self):
        for mtu, families in ((1280, (socket.AF_INET, socket.AF_INET6)), (576, (socket.AF_INET,))):
            name = self.up("--rtt", "2ms", "--mtu", str(mtu))
            for family in families:
                near, far = self.connection(name, family)
                segment = near.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
                self.assertEqual(segment, mtu - TCP_HEADERS[family])
                before = self.link(name)["entered_packets"]
                self.transfer(near, far, os.urandom(1_000_000))
                self.assertGreaterEqual(self.link(name)["entered_packets"] - before, 1_000_000 / segment)

    def test_cut_and_heal(self):
        name = self.up("--rtt", "2ms")
        ends = self.datagrams(name)

        def passes(a, b):
            """Whether five datagrams pass. Uses the counters instead of waiting for datagrams that do not arrive."""
            names = [f"site-{a + 1}", f"site-{b + 1}"]
            before = self.link(name, *names)
            for _ in range(5):
                ends[a].send(b"x")
            wait_until(lambda: self.link(name, *names)["entered_packets"] == before["entered_packets"] + 5, "entered")
            cut = self.link(name, *names)["cut_drops_packets"] - before["cut_drops_packets"]
            self.assertIn(cut, (0, 5))
            for _ in range(5 - cut):
                ends[b].recv(10)
            return cut == 0

        self.assertTrue(passes(0, 1) and passes(1, 0))
        self.tell(name, "cut", "site-1", "site-2", "--one-way")
        self.assertFalse(passes(0, 1))
        self.assertTrue(passes(1, 0))
        self.tell(name, "cut", "site-1", "site-2")
        self.assertFalse(passes(0, 1) or passes(1, 0))
        self.tell(name, "heal", "site-1", "site-2", "--one-way")
        self.assertTrue(passes(0, 1))
        self.assertFalse(passes(1, 0))
        self.tell(name, "heal", "site-1", "site-2")
        self.assertTrue(passes(0, 1) and passes(1, 0))

    def test_nat(self):
        name = self.up("--rtt", "2ms", "--names", "site-1,site-2,site-3", "--nat", "site-2")
        for family in (socket.AF_INET, socket.AF_INET6):
            self.transfer(*self.connection(name, family, client="site-2", server="site-1"), os.urandom(100_000))
            listener = self.socket_at(name, "site-2", family)
            address = self.status(name)["sites"]["site-2"]["ipv4" if family == socket.AF_INET else "ipv6"]
            listener.bind((address, 0))
            listener.listen()
            before = self.link(name)["nat_drops_packets"]
            stranger = self.socket_at(name, "site-1", family)
            stranger.setblocking(False)
            stranger.connect_ex(listener.getsockname())
            wait_until(lambda: self.link(name)["nat_drops_packets"] > before, "the connection's first packet dropped")
            listener.setblocking(False)
            with self.assertRaises(BlockingIOError):
                listener.accept()

    def test_run(self):
        name = self.up("--names", "here,there")
        result = lab("run", "--name", name, "there", "sh", "-c", "ip -4 -o addr show wan0; echo woe >&2; exit 7")
        self.assertEqual(result.returncode, 7)
        self.assertIn(self.status(name)["sites"]["there"]["ipv4"] + "/24", result.stdout)
        self.assertEqual(result.stderr, "woe\n")
        self.assertEqual(lab("run", "--name", name, "there", "cat", input="through").stdout, "through")
        nowhere = lab("run", "--name", name, "nowhere", "true")
        self.assertEqual(nowhere.returncode, 1)
        self.assertIn("here, there", nowhere.stderr)

    def test_down(self):
        name = self.up("--sites", "3")
        sleeper = subprocess.Popen([LAB, "run", "--name", name, "site-2", "sh", "-c", "echo up; exec sleep 1000"],
                                   stdout=subprocess.PIPE)
        self.assertEqual(sleeper.stdout.readline(), b"up\n")
        self.tell(name, "down")
        self.assertEqual(what_is_left(name), [])
        self.assertEqual(sleeper.wait(PATIENCE), -signal.SIGTERM)
        sleeper.stdout.close()
        self.tell(name, "down")
        self.assertEqual(lab("status", "--name", name).returncode, 1)

    def test_two_labs(self):
        first = self.up("--rtt", "2ms")
        second = self.up("--rtt", "4ms", "--sites", "3")
        sites = [self.status(name)["sites"] for name in (first, second)]
        self.assertNotEqual(sites[0]["site-1"]["ipv4"], sites[1]["site-1"]["ipv4"])
        self.assertGreaterEqual(min(self.round_trips(self.datagrams(second), 3)), 0.004)
        again = lab("up", "--name", first, "--forwarder", FORWARDER)
        self.assertEqual(again.returncode, 1)
        self.assertIn("already", again.stderr)
        self.tell(second, "down")
        self.assertGreaterEqual(min(self.round_trips(self.datagrams(first), 3)), 0.002)
        self.assertIn(first, lab("list").stdout.split())
        self.assertEqual(json.loads(self.tell(first, "status", "--json"))["sites"], sites[0])
        self.assertIn("site-1 -> site-2: 1Gbps, rtt 2ms", self.tell(first, "status"))

    def test_crash(self):
        name = self.up()
        forwarder = self.status(name)["forwarder"]["pid"]
        os.kill(forwarder, signal.SIGKILL)
        wait_until(lambda: lab_module.started_at(forwarder) is None, "the forwarder gone")
        self.assertIn(f"lab down --name {name}", lab("status", "--name", name).stderr)
        self.tell(name, "down")
        self.assertEqual(what_is_left(name), [])

    def test_with(self):
        name = f"test-{os.getpid()}-with"
        words = [LAB, "with", "--name", name, "--forwarder", FORWARDER, "--", "sh", "-c"]
        result = subprocess.run([*words, f'{LAB} run --name "$0" site-2 ip -4 -o addr; exit 3', "{lab}"],
                                stdout=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 3)
        self.assertIn("wan0", result.stdout)
        self.assertEqual(what_is_left(name), [])
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([*words, "echo up; exec sleep 1000"], stdout=subprocess.PIPE,
                                       start_new_session=True)
            self.assertEqual(process.stdout.readline(), b"up\n")
            os.killpg(process.pid, number)  # like a terminal
            self.assertEqual(process.wait(PATIENCE), 128 + number)
            process.stdout.close()
            self.assertEqual(what_is_left(name), [])

    def test_interrupted(self):
        """After a failed or interrupted `up` nothing remains; `down` removes the remains of a killed `up`."""
        name = f"test-{os.getpid()}-half"
        self.addCleanup(lab, "down", "--name", name)
        self.assertEqual(lab("up", "--name", name, "--forwarder", "/bin/false").returncode, 1)
        self.assertEqual(what_is_left(name), [])
        with tempfile.TemporaryDirectory() as folder:
            started, stuck = os.path.join(folder, "started"), os.path.join(folder, "stuck")
            code = f"import signal\nopen('{started}', 'w')\nsignal.pause()\n"
            pathlib.Path(stuck).write_text(f"#!{sys.executable}\n{code}")
            os.chmod(stuck, 0o755)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
                process = subprocess.Popen([LAB, "up", "--name", name, "--forwarder", stuck])
                wait_until(lambda: os.path.exists(started), "a forwarder that never gets ready")
                os.unlink(started)
                process.send_signal(number)
                code = process.wait(PATIENCE)
                if number == signal.SIGKILL:
                    self.assertNotEqual(what_is_left(name), [])
                    self.tell(name, "down")
                else:
                    self.assertEqual(code, 128 + number)
                self.assertEqual(what_is_left(name), [])

    def test_touches_nothing_else(self):
        """`up` refuses and keeps an existing namespace that has the name of one of its own."""
        name = f"test-{os.getpid()}-other"
        theirs = f"wan-{name}-site-2"
        subprocess.check_call(["ip", "netns", "add", theirs])
        self.addCleanup(subprocess.call, ["ip", "netns", "delete", theirs])
        before = os.stat(f"/run/netns/{theirs}").st_ino
        refused = lab("up", "--name", name, "--forwarder", FORWARDER)
        self.assertEqual(refused.returncode, 1)
        self.assertIn(theirs, refused.stderr)
        self.tell(name, "down")
        self.assertEqual(os.stat(f"/run/netns/{theirs}").st_ino, before)
        self.assertEqual(what_is_left(name), [f"/run/netns/{theirs}"])

    def test_without_root(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            copy = shutil.copy(LAB, folder)
            result = subprocess.run(["/usr/bin/env", "python3", copy, "up"], user=65534, group=65534, extra_groups=[],
                                    stderr=subprocess.PIPE, text=True)
        self.assertEqual(result.returncode, 77)
        self.assertIn("root", result.stderr)


if __name__ == "__main__":
    possible = lab("list")
    if possible.returncode == 77:
        print(possible.stderr)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[3:]])
