"""Two sites behind NAT, as docs/how-to/behind-nat.md describes, with kills on the way:
by_hand_test.py LAB FORWARDER ISTHMUS [unittest's arguments]

Real programs in network namespaces: home runs the coordinator and a reducer; eu and us only receive answers. Exits
with 77 and the reason if this machine cannot have a lab.
"""

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

LAB, FORWARDER, ISTHMUS = sys.argv[1:4]
PATIENCE = 120  # seconds for what takes a few
STEPS = 100_000  # more than the run makes before it is stopped


def lab(*words):
    return subprocess.run([LAB, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


class ByHand(unittest.TestCase):
    def setUp(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="by-hand-"))
        self.addCleanup(shutil.rmtree, self.folder, True)
        self.lab = f"by-hand-{os.getpid()}"
        self.addCleanup(lab, "down", "--name", self.lab)
        made = lab("up", "--name", self.lab, "--forwarder", FORWARDER, "--names", "home,eu,us", "--nat", "eu,us",
                   "--rate", "100Mbps", "--rtt", "20ms")
        self.assertEqual(made.returncode, 0, made.stdout)
        status = json.loads(lab("status", "--name", self.lab, "--json").stdout)
        self.home = status["sites"]["home"]["ipv4"]
        for place in ("home", "eu", "us"):
            (self.folder / place).mkdir()
        (self.folder / "text").write_text("The sea is wide and deep. " * 4000)

    def command(self, place, *words):
        return [LAB, "run", "--name", self.lab, place, "sh", "-c", 'cd "$0" && exec "$@"', str(self.folder / place),
                ISTHMUS, *words]

    def run_at(self, place, *words):
        done = subprocess.run(self.command(place, *words), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=PATIENCE)
        self.assertEqual(done.returncode, 0, f"{place}: {words}\n{done.stdout}")
        return done.stdout

    def start(self, place, *words):
        log = open(self.folder / f"{place}-{words[0]}.log", "w")
        process = subprocess.Popen(self.command(place, *words), stdout=log, stderr=subprocess.STDOUT)
        log.close()
        self.addCleanup(self.end, process)
        return process

    @staticmethod
    def end(process):
        process.kill()
        process.wait()

    def processes(self, *words, place=""):
        """Ids of the isthmus processes of this test, or of one place, with all these words in their command lines."""
        folder, found = str(self.folder / place), []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                command = (entry / "cmdline").read_bytes().decode().split("\0")
                here = os.readlink(entry / "cwd")
            except OSError:
                continue
            # "in", since a chroot sees the folders of processes in the lab's mounts with their whole path.
            if command[0] == ISTHMUS and folder in here and all(word in command for word in words):
                found.append(int(entry.name))
        return found

    def kill(self, *words):
        found = self.processes(*words)
        self.assertTrue(found, f"no process to kill: {words}")
        self.kill_all(found)

    @staticmethod
    def kill_all(processes):
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)

    def lose_power(self, place):
        """Kills all processes there, and the ones started meanwhile."""
        self.assertTrue(self.processes(place=place), f"no process to kill: {place}")
        while found := self.processes(place=place):
            self.kill_all(found)
            time.sleep(0.05)

    def log(self):
        return (self.folder / "home/runs/two/launch.log").read_text()

    def wait(self, what, holds):
        until = time.monotonic() + PATIENCE
        while not holds():
            logs = [path.read_text()[-2000:] for path in self.folder.glob("*.log")]
            self.assertLess(time.monotonic(), until, f"{what}\n" + "\n".join(logs + [self.log()[-3000:]]))
            time.sleep(0.1)

    def status(self):
        done = subprocess.run(self.command("home", "ctl", "status", "two.yaml", "--json"), stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True, timeout=PATIENCE)
        return json.loads(done.stdout) if done.returncode == 0 else {"members": []}

    def wait_for_steps(self, count=2):
        """Waits until `count` trainers are in the view and have made 6 more steps."""
        def least():
            steps = [m["step"] for m in self.status()["members"] if m.get("kind", "trainer") == "trainer"
                     and m["state"] == "member"]
            return min(steps) if len(steps) == count else -1
        self.wait("two trainers are in", lambda: least() >= 0)
        begin = least()
        self.wait("they train on", lambda: least() >= begin + 6)

    def worker(self, site, *words):
        return self.start(site, "worker", "two.yaml", "--name", site, *words)

    def test_kills_a_stop_and_the_model(self):
        self.run_at("home", "init", "--recipe", "cpu-tiny", "--sites", "eu=by-hand,us=by-hand", "--data",
                    str(self.folder / "text"), "--coordinator", f"{self.home}:7000", "--name", "two", "--out", "two.yaml")
        file = self.folder / "home/two.yaml"
        text = file.read_text()
        for given, small in (("steps: 2200", f"steps: {STEPS}"), ("eval_every: 200", "eval_every: 0"),
                             ("layers: 4", "layers: 1"), ("dim: 128", "dim: 32"), ("seq_len: 128", "seq_len: 16"),
                             ("batch: 16", "batch: 2"), ("batch: 32", "batch: 2"), ("warmup_steps: 40", "warmup_steps: 4")):
            text = text.replace(given, small)
        file.write_text(text + "trainer.threads: 1\nnetwork.heartbeat: 500ms\nnetwork.detect_timeout: 3s\n")
        for site in ("eu", "us"):
            shutil.copy(file, self.folder / site)
            shutil.copytree(self.folder / f"home/certs/two/{site}", self.folder / f"{site}/certs/two/{site}")

        doctors = [self.start(site, "doctor", "two.yaml", "--name", site) for site in ("eu", "us")]
        found = self.run_at("home", "doctor", "two.yaml")
        self.assertIn("their traffic goes through reducer-0", found)
        self.assertEqual([doctor.wait(PATIENCE) for doctor in doctors], [0, 0])

        self.run_at("home", "launch", "--detach", "two.yaml")
        self.worker("eu")
        self.worker("us")
        self.wait_for_steps()

        self.kill("worker", "us")
        self.worker("us", "--resume")
        self.wait("us has copied the state", lambda: "us copies the state from 1 member, through reducer-0" in self.log())
        self.wait_for_steps()

        self.lose_power("home")
        self.run_at("home", "launch", "--detach", "--resume", "runs/two")
        self.wait_for_steps()

        exported = self.run_at("home", "export", "runs/two", "--out", "model")
        self.assertIn("which is live", exported)
        self.assertTrue((self.folder / "home/model/model.safetensors").exists())

        self.run_at("home", "ctl", "stop", "two.yaml")
        self.wait("all processes have ended", lambda: not self.processes())
        step = json.loads((self.folder / "home/runs/two/summary.json").read_text())["steps"]

        self.run_at("home", "launch", "--detach", "--resume", "runs/two")
        for site in ("eu", "us"):
            self.worker(site, "--resume")
        self.wait_for_steps()
        self.run_at("home", "ctl", "stop", "two.yaml")
        self.wait("all processes have ended again", lambda: not self.processes())
        summary = json.loads((self.folder / "home/runs/two/summary.json").read_text())
        self.assertEqual(summary["first_step"], step)
        self.assertGreater(summary["steps"], step)
        self.run_at("eu", "export", "runs/two", "--out", "model")


if __name__ == "__main__":
    possible = lab("list")
    if possible.returncode == 77:
        print(possible.stdout)
        sys.exit(77)
    unittest.main(argv=[sys.argv[0], *sys.argv[4:]])
