"""Labs for tests, with sockets in the sites. The first two arguments are the lab script and the forwarder."""

import contextlib
import ctypes
import hashlib
import importlib.machinery
import importlib.util
import os
import pathlib
import socket
import struct
import subprocess
import sys
import threading
import time
import unittest

LAB, FORWARDER = sys.argv[1:3]
PATIENCE = 60  # seconds for events that take milliseconds
CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE, SO_TIMESTAMPNS = 33, 35
TCP_HEADERS = {socket.AF_INET: 52, socket.AF_INET6: 72}  # including IP's and timestamps
libc = ctypes.CDLL(None, use_errno=True)


# The script as a module, for reading counters: starting a process for each reading would be slow on a busy machine.
spec = importlib.util.spec_from_loader("lab", importlib.machinery.SourceFileLoader("lab", LAB))
lab_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lab_module)


def lab(*words, **options):
    return subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


@contextlib.contextmanager
def inside(namespace):
    """Moves this thread into a namespace for the duration of the block."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as there:
        if libc.setns(there.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"entering {namespace}")
        try:
            yield
        finally:
            libc.setns(home.fileno(), CLONE_NEWNET)


def what_is_left(name):
    """The namespaces, files and processes that exist for a lab (devices end with their process)."""
    left = [str(path) for path in pathlib.Path("/run/netns").glob(f"wan-{name}-*")]
    left += [str(path) for path in pathlib.Path("/run/isthmus-wan-lab").glob(f"{name}/**/*")]
    for file in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            command = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"/{name}/" in command or f"wan-{name}-" in command:
                left.append(command)
    return left


def wait_until(condition, what):
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {PATIENCE} s: {what}")
        time.sleep(0.002)


class LabCase(unittest.TestCase):
    count = 0

    def up(self, *options):
        LabCase.count += 1
        name = f"test-{os.getpid()}-{LabCase.count}"
        self.addCleanup(lab, "down", "--name", name)
        made = lab("up", "--name", name, "--forwarder", FORWARDER, *options)
        self.assertEqual(made.returncode, 0, made.stderr)
        return name

    def tell(self, name, verb, *words):
        result = lab(verb, "--name", name, *words)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stdout

    def status(self, name):
        return lab_module.status(lab_module.Lab(name))

    def link(self, name, a="site-1", b="site-2"):
        return self.status(name)["links"][a][b]

    def socket_at(self, name, site, family=socket.AF_INET, kind=socket.SOCK_STREAM):
        """A socket of this process at a site; it stays in the namespace where it was made."""
        with inside(f"wan-{name}-{site}"):
            s = socket.socket(family, kind)
        self.addCleanup(s.close)
        s.settimeout(PATIENCE)
        return s

    def datagrams(self, name, family=socket.AF_INET):
        """Two connected UDP sockets, at site-1 and site-2, with buffers for all datagrams of a test."""
        sites = self.status(name)["sites"]
        address = "ipv4" if family == socket.AF_INET else "ipv6"
        ends = [self.socket_at(name, site, family, socket.SOCK_DGRAM) for site in ("site-1", "site-2")]
        for end, site in zip(ends, ("site-1", "site-2")):
            end.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 64 << 20)
            end.bind((sites[site][address], 0))
        ends[0].connect(ends[1].getsockname())
        ends[1].connect(ends[0].getsockname())
        return ends

    def connection(self, name, family=socket.AF_INET, client="site-1", server="site-2"):
        address = self.status(name)["sites"][server]["ipv4" if family == socket.AF_INET else "ipv6"]
        listener = self.socket_at(name, server, family)
        listener.bind((address, 0))
        listener.listen()
        near = self.socket_at(name, client, family)
        near.connect(listener.getsockname())
        far, _ = listener.accept()
        self.addCleanup(far.close)
        far.settimeout(PATIENCE)
        return near, far

    def transfer(self, near, far, data):
        """Sends data and checks it at the other end. Returns the seconds from the first write to the last byte."""
        start = time.monotonic()
        sender = threading.Thread(target=lambda: (near.sendall(data), near.shutdown(socket.SHUT_WR)))
        sender.start()
        received, digest = 0, hashlib.sha256()
        while part := far.recv(1 << 20):
            received += len(part)
            digest.update(part)
        seconds = time.monotonic() - start
        sender.join()
        self.assertEqual(received, len(data))
        self.assertEqual(digest.digest(), hashlib.sha256(data).digest(), "the received data differs")
        return seconds

    def round_trip_of_the_link(self, ends):
        """The best of 20 each way, from before a datagram is sent until the other end's kernel has it, so that
        the wake-up of a process does not count."""
        return sum(min(self.one_way(a, b) for _ in range(20)) for a, b in (ends, ends[::-1]))

    def one_way(self, sender, receiver):
        receiver.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        start = time.clock_gettime_ns(time.CLOCK_REALTIME)
        sender.send(b"x")
        _, [(_, _, stamp)], _, _ = receiver.recvmsg(100, 100)
        seconds, nanoseconds = struct.unpack("qq", stamp)
        return (seconds * 1_000_000_000 + nanoseconds - start) / 1e9

    def round_trips(self, ends, times):
        seconds = []
        for _ in range(times):
            start = time.monotonic()
            ends[0].send(b"x")
            ends[1].send(ends[1].recv(100))
            ends[0].recv(100)
            seconds.append(time.monotonic() - start)
        return seconds
