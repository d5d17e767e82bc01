"""Faults that can be caused in the processes of a run: cut connections, full disks, wrong clocks, connections of
strangers, and an ssh that can be cut. They need only this machine and do not change it: mounts are in a namespace of
this process, and a clock is wrong only for the processes started with it.
"""

import asyncio
import ctypes
import json
import os
import pathlib
import shutil
import struct
import subprocess
import threading

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
MS_REMOUNT, MS_REC, MS_PRIVATE = 0x20, 0x4000, 0x40000
MNT_DETACH = 2
libc = ctypes.CDLL(None, use_errno=True)


class Network:
    """TCP relays between the processes of a run, with connections that can be cut or held up, and connections of
    strangers. It has its own thread; any thread may call its functions."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()

    def run(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result()

    def relay(self, port, target):
        """Relays connections from `port` to `target`, both on loopback."""
        relay = Relay(self, target)
        self.run(relay.listen(port))
        return relay

    def strangers(self, port, messages):
        """Opens a connection for each message, all at once, from a loopback address that no member uses. Each sends its
        message and closes."""
        async def call(message):
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
                writer.write(message)
                await asyncio.wait_for(reader.read(), 5)
                writer.transport.abort()
            except (OSError, asyncio.TimeoutError):
                pass

        async def all_call():
            for message in messages:
                self.loop.create_task(call(message))
        self.run(all_call())

    def close(self):
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()


class Relay:
    def __init__(self, network, target):
        self.network, self.target = network, target
        self.transports = {}  # maps the transport of each end to that of the other end
        self.flows = asyncio.Event()
        self.flows.set()

    async def listen(self, port):
        self.server = await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _serve(self, reader, writer):
        try:
            other_reader, other_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            return
        ends = {writer.transport: other_writer.transport, other_writer.transport: writer.transport}
        self.transports |= ends
        pumps = [asyncio.ensure_future(self._pump(reader, other_writer)),
                 asyncio.ensure_future(self._pump(other_reader, writer))]
        # An end that has closed its own direction may still receive, for example the coordinator's last message.
        await asyncio.wait(pumps)
        for transport in ends:
            del self.transports[transport]
            transport.abort()

    async def _pump(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
            writer.write_eof()
        except OSError:  # an end disconnected or was cut
            self._break(writer.transport)

    def _break(self, transport):
        for end in (transport, self.transports.get(transport)):
            if end:
                end.abort()

    def cut(self, share, rng):
        """Cuts this share of the ends of connections, but at least one if any exists. Returns the number."""
        async def abort():
            ends = sorted(self.transports, key=id)
            chosen = rng.sample(ends, min(len(ends), max(1, round(share * len(ends)))))
            for transport in chosen:
                self._break(transport)
            return len(chosen)
        return self.network.run(abort())

    def hold(self):
        """Stops all traffic without closing connections."""
        self.network.loop.call_soon_threadsafe(self.flows.clear)

    def release(self):
        self.network.loop.call_soon_threadsafe(self.flows.set)


class Disks:
    """Small file systems for this process and its children. Needs root or user namespaces."""

    def __init__(self):
        """Raises OSError if neither is available. Call before any thread is started."""
        self.mounted = []
        uid, gid = os.getuid(), os.getgid()
        flags = CLONE_NEWNS if uid == 0 else CLONE_NEWNS | CLONE_NEWUSER
        self._check(libc.unshare(flags))
        if uid != 0:
            pathlib.Path("/proc/self/setgroups").write_text("deny")
            pathlib.Path("/proc/self/uid_map").write_text(f"0 {uid} 1")
            pathlib.Path("/proc/self/gid_map").write_text(f"0 {gid} 1")
        self._check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))

    @staticmethod
    def _check(status):
        if status != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def mount(self, folder, size):
        folder.mkdir(parents=True)
        self._check(libc.mount(b"soak", str(folder).encode(), b"tmpfs", 0, f"size={size}".encode()))
        self.mounted.append(folder)

    def resize(self, folder, size):
        self._check(libc.mount(b"soak", str(folder).encode(), b"tmpfs", MS_REMOUNT, f"size={size}".encode()))

    def fill(self, folder):
        """Leaves no free block. Returns False if the disk's use grew too fast."""
        for _ in range(10):
            usage = os.statvfs(folder)
            try:
                self.resize(folder, (usage.f_blocks - usage.f_bfree) * usage.f_frsize)
                return True
            except OSError:
                pass
        return False

    def keep(self, to):
        """Copies the disks' contents, which would otherwise disappear with this process."""
        for folder in self.mounted:
            shutil.copytree(folder, to / f"disk-{folder.name}", dirs_exist_ok=True)


class Clock:
    """Shifts CLOCK_REALTIME of the processes that are started with its environment. Changes take effect at once. Other
    clocks are not shifted."""

    SHIM = """\
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
static volatile int64_t none, *offset = &none;
static int (*real)(clockid_t, struct timespec*);
__attribute__((constructor)) static void begin(void) {
  real = (int (*)(clockid_t, struct timespec*))dlsym(RTLD_NEXT, "clock_gettime");
  const char* path = getenv("SOAK_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void* at = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
  if (at != MAP_FAILED) offset = at;
  close(file);
}
int clock_gettime(clockid_t clock, struct timespec* out) {
  int status = real ? real(clock, out) : (int)syscall(SYS_clock_gettime, clock, out);
  if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) out->tv_sec += *offset;
  return status;
}
int gettimeofday(struct timeval* restrict out, void* restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  out->tv_sec = now.tv_sec;
  out->tv_usec = now.tv_nsec / 1000;
  return 0;
}
time_t time(time_t* out) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (out) *out = now.tv_sec;
  return now.tv_sec;
}
"""

    def __init__(self, folder, name, library):
        self.file = folder / f"{name}.clock"
        self.file.write_bytes(struct.pack("<q", 0))
        self.seconds = 0
        self.environment = {"LD_PRELOAD": str(library), "SOAK_CLOCK": str(self.file)}

    def set(self, seconds):
        self.seconds = seconds
        with open(self.file, "r+b") as file:  # in place, since the file is mapped
            file.write(struct.pack("<q", seconds))

    @classmethod
    def build(cls, folder):
        """Builds the library. Raises OSError or CalledProcessError without a compiler."""
        source, library = folder / "clock.c", folder / "clock.so"
        source.write_text(cls.SHIM)
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(source)], check=True,
                       capture_output=True)
        return library


FAKE_SSH = """\
#!{python}
# Runs its last argument locally, like ssh on the remote machine: if it is killed, the pipes of the other end close.
import os, subprocess, sys, threading
child = subprocess.Popen(["/bin/sh", "-c", sys.argv[-1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                         start_new_session=True)
def pump(source, sink):
    try:
        while data := os.read(source, 65536):
            while data:
                data = data[os.write(sink, data):]
    except OSError:
        pass
def feed():
    pump(0, child.stdin.fileno())
    child.stdin.close()
threading.Thread(target=feed, daemon=True).start()
pump(child.stdout.fileno(), 1)
sys.stdout.close()
os._exit(child.wait() % 256)
"""


def write_fake_ssh(folder, python):
    """Writes the fake ssh to a folder, which must be put first in PATH."""
    folder.mkdir()
    (folder / "ssh").write_text(FAKE_SSH.format(python=python))
    (folder / "ssh").chmod(0o755)
    return folder


def processes_with(*words):
    """Ids and command lines of the processes with all these words in their command line."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if all(word in command for word in words):
            found[int(entry.name)] = command
    return found


def tensors_of(file):
    """The bytes of each tensor of a safetensors file, by name."""
    data = file.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    begin = 8 + length
    header = json.loads(data[8:begin])
    return {name: data[begin + about["data_offsets"][0]:begin + about["data_offsets"][1]]
            for name, about in header.items() if name != "__metadata__"}


def flip_a_bit(pid, candidates, rng):
    """Flips a bit in the memory of a suspended process, in each place with the first candidate that is found. A
    candidate is the bytes of some floats; the bit is one of the seven highest of the first mantissa, since the next
    round may round lower bits away. Returns the candidate and the number of places, or None."""
    bit = rng.randrange(16, 23)
    maps = pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines()
    regions = []
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            fields = line.split()
            begin, end = (int(word, 16) for word in fields[0].split("-"))
            if not fields[1].startswith("rw") or fields[4] != "0" or end - begin > 256 << 20:
                continue
            try:
                memory.seek(begin)
                regions.append((begin, memory.read(end - begin)))
            except OSError:
                continue
        for candidate in candidates:
            found = 0
            for begin, region in regions:
                at = region.find(candidate)
                while at >= 0:
                    found += 1
                    memory.seek(begin + at + bit // 8)
                    memory.write(bytes([region[at + bit // 8] ^ 1 << bit % 8]))
                    at = region.find(candidate, at + 1)
            if found:
                return candidate, found
    return None
