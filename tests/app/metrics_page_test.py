#!/usr/bin/env python3
"""metrics_page_test.py BINARY: asks the processes of a real run for their metrics over HTTP.

The pages must follow Prometheus' text format, also according to its Python client, contain the documented metrics, and
show the run's state. An attack on a page must neither make its process grow nor keep a normal reader out.
"""
import collections
import contextlib
import http.client
import json
import math
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

try:
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    sys.exit(f"{error}: scripts/setup.sh --tests installs what this needs")

PATIENCE_S = 120  # longer than any wait here takes on a busy machine
NAME = r"[a-zA-Z_][a-zA-Z0-9_]*"
SAMPLE = re.compile(rf'({NAME})(?:\{{((?:{NAME}="(?:[^"\\\n]|\\[\\n"])*",?)*)\}})? (\S+)$')
LABEL = re.compile(rf'({NAME})="((?:[^"\\\n]|\\[\\n"])*)"')
CONFIG = """
run: {name: seen, out: OUT, steps: 1000000, eval_every: 5, eval_sequences: 4, sample_tokens: 0}
replicas: 2
reducers: 1
device: cpu
model: {layers: 1, dim: 16, heads: 2}
data: {path: OUT/corpus.txt, seq_len: 16}
inner: {batch: 2, precision: fp32}
trainer: {threads: 1}
outer: {num_fragments: 3, sync_every: 6, sync_delay: 1, codec: int4, warmup_steps: 4}
network: {detect_timeout: 60s, heartbeat: 100ms}
metrics: {listen: 0}
"""


class Page:
    """One answer, parsed strictly."""

    def __init__(self, text):
        assert text.endswith("\n"), f"the page ends in mid-line: {text[-80:]!r}"
        self.kinds, self.samples = {}, {}
        helped = set()
        current = None
        for line in text.splitlines():
            if line.startswith("# HELP "):
                current = line.split()[2]
                assert current not in helped, f"two groups of {current}"
                helped.add(current)
            elif line.startswith("# TYPE "):
                _, _, name, kind = line.split()
                assert name == current and name not in self.kinds, line
                self.kinds[name] = kind
            else:
                self.add(line, current)
        read = {(s.name, tuple(sorted(s.labels.items()))) for f in text_string_to_metric_families(text) for s in f.samples}
        assert read == self.samples.keys(), f"only one reader finds {read ^ self.samples.keys()}"

    def add(self, line, current):
        match = SAMPLE.match(line)
        assert match, f"not a sample: {line!r}"
        name, labels, value = match.groups()
        suffix = r"(_bucket|_sum|_count)?" if self.kinds[current] in ("histogram", "summary") else ""
        assert re.fullmatch(current + suffix, name), f"{name} is among the samples of {current}"
        key = (name, tuple(sorted(LABEL.findall(labels or ""))))
        assert key not in self.samples, f"twice: {line}"
        self.samples[key] = float(value)

    def value(self, name, **labels):
        found = [value for (n, own), value in self.samples.items() if n == name and labels.items() <= dict(own).items()]
        assert len(found) == 1, f"{name} {labels}: expected one value, found {found}"
        return found[0]

    def check_conventions(self, documented):
        for name, kind in self.kinds.items():
            if not name.startswith("isthmus_"):
                assert name.startswith("exposer_"), f"unknown metric {name}"  # the HTTP library's own metrics
                continue
            assert name in documented, f"{name} is not in docs/metrics.md"
            assert documented[name] == kind, f"{name} is a {kind} and documented as a {documented[name]}"
            assert (kind == "counter") == name.endswith("_total"), f"{name} is a {kind}"
        for (name, labels), value in self.samples.items():
            if name.startswith("isthmus_"):
                assert {"run", "process"} <= dict(labels).keys(), f"{name} {labels}"
                assert not math.isnan(value), f"{name} {labels} is {value}"
        self.check_histograms()

    def check_histograms(self):
        for base in (name for name, kind in self.kinds.items() if kind == "histogram"):
            buckets = collections.defaultdict(list)
            for (name, labels), value in self.samples.items():
                if name == base + "_bucket":
                    buckets[tuple(l for l in labels if l[0] != "le")].append((float(dict(labels)["le"]), value))
            assert buckets, f"{base} has no buckets"
            for labels, pairs in buckets.items():
                counts = [count for _, count in sorted(pairs)]
                assert counts == sorted(counts), f"{base} {labels} falls: {counts}"
                assert max(pairs)[0] == math.inf
                assert counts[-1] == self.samples[(base + "_count", labels)]


def ask(url):
    with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
        assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain"), answer.headers
        return answer.read().decode("utf-8", errors="strict")


def until(what, get):
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = get()
        if found:
            return found
        time.sleep(0.1)
    raise AssertionError(f"there is no {what} after {PATIENCE_S} s")


def url_in(log):
    def look():
        found = re.search(r"^(?:\S+: )?metrics at (http://127\.0\.0\.1:\d+/metrics)$",
                          log.read_text() if log.exists() else "", re.M)
        return found and found.group(1)

    return until(f"line 'metrics at ...' in {log}", look)


def pages_of(urls):
    return {name: Page(ask(url)) for name, url in urls.items()}


def is_under_way(urls):
    """Whether all have begun, rounds were judged and checked, and an evaluation has arrived."""
    page = Page(ask(urls["coordinator"]))
    names = {name for name, _ in page.samples}
    checked = ("isthmus_spread_at_apply", "0") in {
        (name, dict(labels).get("fragment")) for name, labels in Page(ask(urls["replica-0"])).samples}
    return checked and {"isthmus_member_outer_gradient_cosine", "isthmus_path_round_trip_seconds",
            "isthmus_evaluation_loss_nats"} <= names and page.value("isthmus_run_step") > 30


def check(binary, folder, log):
    table = subprocess.run([binary, "help", "--metrics"], check=True, capture_output=True, text=True).stdout
    documented = dict(re.findall(r"^\| `(isthmus_\w+)` \| (\w+) \|", table, re.M))
    workers = ["replica-0", "replica-1", "reducer-0"]
    urls = {"coordinator": url_in(log)}
    for name in workers:
        urls[name] = url_in(folder / "seen" / name / "worker.log")
    assert len(set(urls.values())) == 4, urls
    until("run that is under way", lambda: is_under_way(urls))
    first = pages_of(urls)
    until("further step", lambda: pages_of(urls)["replica-0"].value("isthmus_steps_total") >
          first["replica-0"].value("isthmus_steps_total"))
    second = pages_of(urls)
    for name, page in second.items():
        page.check_conventions(documented)
        assert page.value("isthmus_build_info", run="seen", process=name) == 1
        for (metric, labels), value in first[name].samples.items():
            if metric.endswith("_total") and (metric, labels) in page.samples:
                assert page.samples[(metric, labels)] >= value, f"{metric} of {name} has fallen"
    judge_values(second)
    served = {name for page in second.values() for name in page.kinds}
    # On loopback no link's rate is measured.
    missing = documented.keys() - served - {"isthmus_member_uplink_bytes_per_second", "isthmus_path_bytes_per_second"}
    assert not missing, f"documented but not served by any process: {sorted(missing)}"
    print(f"{len(documented)} metrics, {sum(len(p.samples) for p in second.values())} samples of {len(urls)} processes")


def judge_values(pages):
    coordinator, replica, reducer = pages["coordinator"], pages["replica-0"], pages["reducer-0"]
    assert coordinator.value("isthmus_replicas") == 2
    assert coordinator.value("isthmus_run_steps") == 1000000
    assert replica.value("isthmus_agreed_step") >= coordinator.value("isthmus_run_step") > 0
    assert coordinator.value("isthmus_member_lag_steps", member="replica-1") >= 0
    assert 0 < replica.value("isthmus_utilization_ratio") <= 1
    # A byte has 256 values, and the text uses few of them.
    assert 0 < replica.value("isthmus_loss_nats") < math.log(256) + 1
    assert 0 < coordinator.value("isthmus_evaluation_loss_nats") < math.log(256) + 1
    assert replica.value("isthmus_wire_sent_bytes_total") > replica.value("isthmus_wire_payload_bytes_total") > 0
    assert reducer.value("isthmus_wire_sent_bytes_total") > 0
    assert replica.value("isthmus_tokens_total") == 2 * 16 * replica.value("isthmus_steps_total")
    assert replica.value("isthmus_step_duration_seconds_count") == replica.value("isthmus_steps_total")
    rounds = [replica.value("isthmus_round_applied", fragment=str(p)) for p in range(3)]
    assert min(rounds) > 0 and sum(rounds) == replica.value("isthmus_rounds_applied_total"), rounds
    assert replica.value("isthmus_outer_gradient_norm", fragment="0") > 0
    assert -1 <= replica.value("isthmus_outer_gradient_correlation", fragment="0") <= 1
    assert abs(replica.value("isthmus_last_step_timestamp_seconds") - time.time()) < PATIENCE_S


def pid_of_coordinator(config):
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if "coordinator" in words and str(config) in words:
                return int(folder.name)
    raise AssertionError(f"no coordinator of {config} runs")


def memory_of(pid):
    return 1024 * int(re.search(r"^VmRSS:\s+(\d+) kB", pathlib.Path(f"/proc/{pid}/status").read_text(), re.M).group(1))


def descriptors_of(pid):
    return len(list(pathlib.Path(f"/proc/{pid}/fd").iterdir()))


MOST_SENT = 300 << 20
MOST_GROWTH = 64 << 20
MOST_DESCRIPTORS = 48  # for readers of the page, and for files that the run opens meanwhile


def send_until_closed(connection, piece):
    """Sends until the other side closes; returns the bytes sent."""
    sent = 0
    try:
        while sent < MOST_SENT:
            sent += connection.send(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass
    return sent


def is_closed_by_the_other_side(connection):
    connection.setblocking(False)
    try:
        return connection.recv(1 << 16) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def attack(url, pid):
    """Memory and descriptors must stay bounded, and a normal reader must be served during and after the attack."""
    host, port = re.match(r"http://(.*):(\d+)/", url).groups()
    memory, descriptors = memory_of(pid), descriptors_of(pid)

    def connect():
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def check_bounds(what):
        assert memory_of(pid) < memory + MOST_GROWTH, f"{what}: {memory >> 20} MB grew to {memory_of(pid) >> 20} MB"
        assert descriptors_of(pid) < descriptors + MOST_DESCRIPTORS, f"{what}: {descriptors_of(pid)} descriptors"
        Page(ask(url))

    chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
    for what, begin, piece in (
            ("a body without end", b"POST /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", chunk),
            ("a body of a GET", b"GET /metrics HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n", chunk),
            ("header lines without end", b"GET /metrics HTTP/1.1\r\n", b"Some: header\r\n" * 4096),
            ("one line without end", b"GET /", b"x" * 0x10000)):
        with connect() as connection:
            connection.sendall(begin)
            sent = send_until_closed(connection, piece)
        assert sent < MOST_SENT, f"{what}: all {sent} bytes were accepted"
        check_bounds(what)
    with contextlib.ExitStack() as idle:
        for _ in range(300):
            idle.enter_context(connect())
        check_bounds("300 idle connections")
    with contextlib.ExitStack() as slow:
        waiting = [slow.enter_context(connect()) for _ in range(100)]
        end = time.monotonic() + PATIENCE_S
        while waiting and time.monotonic() < end:
            for connection in waiting:
                with contextlib.suppress(OSError):
                    connection.send(b"G")
            check_bounds("one byte now and then")
            waiting = [connection for connection in waiting if not is_closed_by_the_other_side(connection)]
            time.sleep(0.1)
        assert not waiting, f"{len(waiting)} readers that send one byte now and then are still connected"
    until("end of the attackers' descriptors", lambda: descriptors_of(pid) < descriptors + 8)
    check_methods(host, int(port))
    Page(ask(url))


def check_methods(host, port):
    for method, path, status in (("GET", "/metrics", 200), ("HEAD", "/metrics?a=b", 200), ("GET", "/", 404),
                                 ("POST", "/metrics", 405), ("DELETE", "/metrics", 405)):
        connection = http.client.HTTPConnection(host, port, timeout=PATIENCE_S)
        connection.request(method, path)
        answer = connection.getresponse()
        text = answer.read()
        assert answer.status == status, f"{method} {path}: {answer.status}, expected {status}"
        assert (method == "HEAD") == (text == b""), f"{method} {path}: {text[:80]!r}"
        connection.close()
    with socket.create_connection((host, port), timeout=PATIENCE_S) as connection:
        connection.sendall(b"\x16\x03\x01 no HTTP\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")


def main(binary):
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "corpus.txt").write_text("a river carries the light over a small stone bridge.\n" * 2000)
        config = folder / "seen.yaml"
        config.write_text(CONFIG.replace("OUT", name))
        log = folder / "launch.log"
        with log.open("w") as out:
            launch = subprocess.Popen([binary, "launch", str(config)], stdout=out, stderr=out)
        try:
            check(binary, folder, log)
            attack(url_in(log), pid_of_coordinator(folder / "seen" / "config.yaml"))
            launch.send_signal(signal.SIGINT)
            status = launch.wait(PATIENCE_S)
            assert status == 130, f"status {status} after Ctrl-C"
        except BaseException:
            print(json.dumps({"log": log.read_text()[-3000:]}, indent=1), file=sys.stderr)
            raise
        finally:
            launch.kill()
            launch.wait()


if __name__ == "__main__":
    main(*sys.argv[1:])
