"""Runs of real processes: the build's coordinator and Python workers."""

import json
import os
import pathlib
import signal
import subprocess
import time

import pytest
from nursery import Nursery

LIMIT = 600  # seconds after which a process counts as hanging; long, since machines may be busy
HERE = pathlib.Path(__file__).parent


def pytest_addoption(parser):
    parser.addoption("--build", required=True, help="build folder with isthmus-coordinator")
    parser.addoption("--cpp", required=True, help="folder with table_worker")
    parser.addoption("--shard", default="1/1", help="I/N: the I-th of N equal parts")
    parser.addoption("--long", action="store_true", help="only the tests marked as long")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: runs only with --long; an example of several processes, or a variant of another test")


def pytest_collection_modifyitems(config, items):
    items[:] = [item for item in items if bool(item.get_closest_marker("long")) == config.getoption("--long")]
    # Consecutive tests, so that most modules are imported in one part only: imports take seconds.
    part, parts = map(int, config.getoption("--shard").split("/"))
    items[:] = items[len(items) * (part - 1) // parts : len(items) * part // parts]


class Run:
    """A run in a folder: config, coordinator and workers."""

    def __init__(self, folder, build, cpp, nursery):
        self.folder, self.nursery = folder, nursery
        self.build, self.cpp = pathlib.Path(build).resolve(), pathlib.Path(cpp).resolve()
        self.processes = {}
        self.config = folder / "experiment.yaml"
        self.address = None

    def write_config(self, **sections):
        sections = {"replicas": 2, **sections}
        sections["run"] = {"name": "test", "out": str(self.folder / "runs"), "steps": 24, **sections.get("run", {})}
        outer = {"num_fragments": 3, "sync_every": 6, "sync_delay": 2, "chunk_elements": 1024, "codec": "fp32",
                 "optimizer": {"momentum": 0.8, "average_first": 0.1}}  # runs this short would have none
        sections["outer"] = {**outer, **sections.get("outer", {})}
        network = {"heartbeat": "200ms", "detect_timeout": "30s", "join_timeout": "10min"}
        sections["network"] = {**network, **sections.get("network", {})}
        self.config.write_text(json.dumps(sections))  # JSON is YAML

    def start(self, name, command, **options):
        log = open(self.folder / f"{name}.log", "w")
        process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.folder, **options
        )
        log.close()
        self.processes[name] = process
        return process

    def start_coordinator(self, *arguments):
        reader, writer = os.pipe()
        command = [self.build / "isthmus-coordinator", "coordinator", "--config", self.config, "--listen", "127.0.0.1:0"]
        self.start("coordinator", [*command, "--announce-fd", writer, *arguments], pass_fds=[writer])
        os.close(writer)
        with os.fdopen(reader) as pipe:
            port = pipe.readline().strip()
        assert port, f"the coordinator does not listen: {self.log('coordinator')}"
        self.address = f"127.0.0.1:{port}"

    def start_worker(self, name, script, *arguments, modules=()):
        options = ["--config", self.config, "--coordinator", self.address or "127.0.0.1:1", "--name", name]
        self.processes[name] = self.nursery.start(
            [HERE / "workers" / script, *options, *arguments], self.folder, name, modules
        )
        return self.processes[name]

    def wait(self, name):
        """The exit status."""
        try:
            return self.processes[name].wait(LIMIT)
        except subprocess.TimeoutExpired:
            pytest.fail(f"{name} hangs; its output is:\n{self.log(name)}")

    def wait_first(self, *names):
        """The name of the first process that ends with an error."""
        for _ in range(LIMIT * 20):
            for name in names:
                if self.processes[name].poll() not in (None, 0):
                    return name
            time.sleep(0.05)
        pytest.fail("none of these has ended with an error: " + "".join(map(self.log, names)))

    def finish(self, *names):
        """Waits for these processes, or for all, and asserts that all succeed. Returns early if one fails."""
        names = names or list(self.processes)
        for _ in range(LIMIT * 20):
            states = {name: self.processes[name].poll() for name in names}
            bad = [name for name, status in states.items() if status not in (None, 0)]
            if bad or None not in states.values():
                break
            time.sleep(0.05)
        logs = "\n".join(f"== {name}\n{self.log(name)}" for name in self.processes)
        assert not bad, f"{', '.join(bad)} failed: {states}\n{logs}"
        assert None not in states.values(), f"a process hangs: {states}\n{logs}"

    def log(self, name):
        return (self.folder / f"{name}.log").read_text()

    def hash_of(self, name):
        """The global hash that a worker has printed."""
        (found,) = [line.split()[1] for line in self.log(name).splitlines() if line.startswith("hash ")]
        return found

    def wait_for(self, name, text):
        """Waits until the output of a process contains `text`."""
        for _ in range(LIMIT * 20):
            if text in self.log(name):
                return
            assert self.processes[name].poll() is None, f"{name} ended before '{text}':\n{self.log(name)}"
            time.sleep(0.05)
        pytest.fail(f"{name} does not print '{text}':\n{self.log(name)}")

    def report(self, name, run="test"):
        """The final report of a replica."""
        summary = json.loads((self.folder / "runs" / run / "summary.json").read_text())
        (report,) = [entry for entry in summary["members"] if entry["name"] == name]
        return report

    def interrupt(self, name):
        self.processes[name].send_signal(signal.SIGINT)

    def end(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


@pytest.fixture(scope="session")
def nursery():
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.fixture
def run(tmp_path, pytestconfig, nursery):
    run = Run(tmp_path, pytestconfig.getoption("--build"), pytestconfig.getoption("--cpp"), nursery)
    yield run
    run.end()
