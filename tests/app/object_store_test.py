#!/usr/bin/env python3
"""object_store_test.py ISTHMUS [CLASS]: runs that copy their checkpoints and logs to a real S3 server, moto's, and
runs whose members exchange data through it.

The server checks every signature (moto's authentication is on). A proxy in front of it plays outages. A run whose
machines have lost their disks must continue from the bucket to the same bits as a run that was never stopped.
"""
import contextlib
import json
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support"))
import case_results  # noqa: E402
from s3_server import BUCKET, PATIENCE_S, Proxy, Server, free_port, wait_for  # noqa: E402

CONFIG = """
run: {name: tiny, out: runs, steps: 40, eval_every: 20, eval_sequences: 4, sample_tokens: 0, checkpoint_every: 10}
replicas: 2
device: cpu
model: {layers: 1, dim: 16, heads: 2}
data: {path: corpus.txt, seq_len: 16}
inner: {batch: 2, precision: fp32}
trainer: {threads: 1}
outer: {num_fragments: 3, sync_every: 6, sync_delay: 1, codec: int4, log: log}
"""
PROGRAM = None


def waiting_connections(port):
    """The local ports of connections to this port of 127.0.0.1 that have no answer yet."""
    for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, state, *_ = line.split()
        if remote == f"0100007F:{port:04X}" and state == "02":
            yield local


class Bucket(unittest.TestCase):
    """A folder for each test, and a server for each class."""

    @classmethod
    def setUpClass(cls):
        cls.shared = tempfile.TemporaryDirectory()
        cls.server = Server(pathlib.Path(cls.shared.name))
        cls.expected = None

    @classmethod
    def tearDownClass(cls):
        cls.server.close()
        cls.shared.cleanup()

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.prefix = self._testMethodName.lower().replace("_", "-")
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.new_machine()

    def new_machine(self):
        """Everything but the config and the corpus is lost."""
        for left in ("runs", "log", "fetched"):
            shutil.rmtree(self.folder / left, ignore_errors=True)
        (self.folder / "tiny.yaml").write_text(CONFIG)
        (self.folder / "corpus.txt").write_text("".join(f"{n * n % 97} sheep jumped over {n} fences.\n" for n in range(2000)))

    def isthmus(self, *words, status=0, only_output=False):
        done = subprocess.run([PROGRAM, *map(str, words)], cwd=self.folder, capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, status, f"{words}\n{done.stdout}\n{done.stderr}\n{self.logs()}")
        return done.stdout if only_output else done.stdout + done.stderr

    def logs(self):
        return "".join(f"--- {log}\n{log.read_text()}" for log in sorted(self.folder.glob("runs/*/*/worker.log")))

    def of_store(self, endpoint=None):
        endpoint = endpoint or self.server.url
        pairs = {"endpoint": endpoint, "credentials": self.server.credentials}
        return [word for key, value in pairs.items() for word in ("--set", f"object_store.{key}={value}")]

    def launch(self, *more, endpoint=None, resume=False, status=0, store=True):
        words = ["--resume", "runs/tiny"] if resume else ["tiny.yaml"]
        if store:
            words += ["--set", f"object_store.url={self.url}", *self.of_store(endpoint)]
        return self.isthmus("launch", *words, *(word for item in more for word in ("--set", item)), status=status)

    def hash(self):
        hashes = set(json.loads((self.folder / "runs/tiny/summary.json").read_text())["global_hash"].values())
        self.assertEqual(len(hashes), 1)
        return hashes.pop()

    def undisturbed(self):
        """The hash of the run without a store."""
        if self.expected is None:
            self.launch(store=False)
            type(self).expected = self.hash()
            self.new_machine()
        return self.expected

    def stored(self, folder="checkpoints"):
        """Names below the prefix, by worker."""
        found = {}
        for key in self.server.keys():
            match = re.fullmatch(rf"{self.prefix}/tiny/([^/]+)/{folder}/(.+)", key)
            if match:
                found.setdefault(match[1], []).append(match[2])
        return found

    @staticmethod
    def names(*steps):
        return [f"step_{step:012}_replica_0.ckpt" for step in steps]


class Copies(Bucket):
    def test_a_run_whose_disks_are_lost_continues_from_the_bucket(self):
        expected = self.undisturbed()
        self.launch("run.stop_after=20")
        self.assertEqual(self.stored(), {name: self.names(10, 20) for name in ("replica-0", "replica-1")})
        self.new_machine()
        (self.folder / "runs/tiny").mkdir(parents=True)
        text = (self.folder / "tiny.yaml").read_text() + f"object_store: {{url: {self.url}, endpoint: {self.server.url}, " \
                                    f"credentials: {self.server.credentials}}}\n"
        (self.folder / "runs/tiny/config.yaml").write_text(text.replace("path: corpus.txt", f"path: {self.folder}/corpus.txt")
                                                            .replace("out: runs", f"out: {self.folder}/runs")
                                                            .replace("log: log", f"log: {self.folder}/log"))
        output = self.launch(resume=True, store=False)
        self.assertIn("resuming from the checkpoint of step 20", output)
        self.assertIn("fetching s3://", self.logs())
        self.assertEqual(self.hash(), expected)
        self.assertEqual(self.stored()["replica-0"][-1:], self.names(40))

    def test_the_model_and_the_log_are_fetched_by_url(self):
        self.launch()
        run = f"{self.url}/tiny"
        listed = self.isthmus("fetch", run, "--list", *self.of_store())
        self.assertRegex(listed, r"replica-0 +\d+\.\d +\d+\.\d +20 30 40\n")
        self.assertIn("replica-1", listed)
        shutil.rmtree(self.folder / "runs")
        shutil.rmtree(self.folder / "log")
        self.isthmus("export", run, "--out", "model", *self.of_store())
        self.assertTrue((self.folder / "model/model.safetensors").exists())
        replayed = json.loads(self.isthmus("replay", run, "--json", *self.of_store(), only_output=True))
        self.assertGreater(replayed["rounds"], 10)
        self.assertEqual(replayed["global_hash"], self.undisturbed())
        self.isthmus("fetch", run, "--step", 30, "--worker", "replica-1", "--out", "here", *self.of_store())
        self.assertTrue((self.folder / "here/replica-1/checkpoints" / self.names(30)[0]).exists())
        missing = self.isthmus("fetch", run, "--step", 31, *self.of_store(), status=3)
        self.assertIn("holds no checkpoint of step 31", missing)

    def test_a_second_run_of_the_name_does_not_touch_the_first(self):
        self.url = self.url.replace("s3://", "gs://")  # Google's store has the same interface
        self.launch("run.stop_after=10")
        self.assertEqual(self.stored(), {name: self.names(10) for name in ("replica-0", "replica-1")})
        before = self.server.keys()
        self.new_machine()
        output = self.launch(status=2)
        self.assertIn("expected --resume, or another run.name or object_store.url", output + self.logs())
        self.assertEqual(self.server.keys(), before)

    def test_a_history_that_the_run_abandons_is_marked(self):
        self.launch("run.stop_after=20")
        # replica-1 has lost step 20 everywhere, so the run returns to step 10.
        key = f"{self.prefix}/tiny/replica-1/checkpoints/{self.names(20)[0]}"
        self.server.s3.delete_object(Bucket=BUCKET, Key=key)
        (self.folder / "runs/tiny/replica-1/checkpoints" / self.names(20)[0]).unlink()
        self.launch("run.stop_after=15", resume=True)
        self.assertEqual(self.stored()["replica-0"], self.names(10, 15) + [self.names(20)[0], self.names(20)[0] + ".undone"])
        listed = self.isthmus("fetch", f"{self.url}/tiny", "--list", *self.of_store())
        self.assertRegex(listed, r"replica-0 .* 10 15\n")
        self.launch("run.stop_after=0", resume=True)
        self.assertNotIn(self.names(20)[0] + ".undone", self.stored()["replica-0"], "step 20 was made again")
        found = self.hash()
        self.new_machine()
        self.assertEqual(found, self.undisturbed())

    def test_a_large_checkpoint_is_copied_in_parts(self):
        self.launch("model.dim=192", "model.layers=3", "run.steps=2", 'outer.log=""', "run.eval_every=0")
        names = self.names(2)
        self.assertEqual(self.stored(), {"replica-0": names, "replica-1": names})
        file = self.folder / "runs/tiny/replica-0/checkpoints" / names[0]
        self.assertGreater(file.stat().st_size, 20_000_000)
        key = f"{self.prefix}/tiny/replica-0/checkpoints/{names[0]}"
        found = self.server.s3.get_object(Bucket=BUCKET, Key=key)
        self.assertRegex(found["ETag"], "-2\"$", "an upload of two parts")
        self.assertEqual(found["Body"].read(), file.read_bytes())
        self.assertEqual(self.server.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []), [])
        fetched = self.isthmus("fetch", f"{self.url}/tiny", "--worker", "replica-0", *self.of_store(), only_output=True)
        self.assertEqual((self.folder / fetched.strip()).read_bytes(), file.read_bytes())

class Trouble(Bucket):
    def test_an_outage_disturbs_no_step_and_the_copies_catch_up(self):
        expected = self.undisturbed()
        proxy = Proxy(self.server.port)
        proxy.on = False
        timer = threading.Thread(target=self.switch_on_after_some_tries, args=(proxy,), daemon=True)
        timer.start()
        self.launch(endpoint=f"http://127.0.0.1:{proxy.port}")
        timer.join()
        self.assertIn("NOT COPIED to the object store", self.logs())
        self.assertEqual(self.hash(), expected)
        for name, steps in self.stored().items():
            self.assertEqual(steps[-1:], self.names(40), name)
        self.assertEqual(set(self.stored("log")), {"replica-0", "replica-1"})

    def switch_on_after_some_tries(self, proxy):
        wait_for(lambda: proxy.resets >= 8, "eight tries")
        proxy.on = True

    def test_a_renewed_key_is_taken_up(self):
        """The key in use is revoked in mid-run, and the file then gets another one."""
        key = self.server.add_key()
        file = self.folder / "renewed"
        self.server.write_credentials(file, key)
        words = ["tiny.yaml", "--set", f"object_store.url={self.url}", *self.of_store(), "--set",
                 f"object_store.credentials={file}", "--set", "run.steps=4000", "--set", "run.checkpoint_every=100"]
        with open(self.folder / "launch.log", "w") as log:
            launch = subprocess.Popen([PROGRAM, "launch", *words], cwd=self.folder, stdout=log, stderr=log)
        self.addCleanup(launch.kill)
        wait_for(self.stored, "the first checkpoint")
        self.server.remove_key(key)
        wait_for(lambda: "NOT COPIED" in self.logs(), "the refusal")
        self.server.write_credentials(file, self.server.key)
        self.assertEqual(launch.wait(PATIENCE_S), 0, (self.folder / "launch.log").read_text())
        self.assertEqual({name: steps[-1] for name, steps in self.stored().items()},
                         {name: self.names(4000)[0] for name in ("replica-0", "replica-1")})

    def test_a_server_with_tls_must_show_a_trusted_certificate(self):
        server = Server(self.folder, tls=True)
        self.addCleanup(server.close)
        settings = [f"object_store.endpoint={server.url}", f"object_store.credentials={server.credentials}", "outer.log=\"\""]
        run = f"{self.url}/tiny"
        refused = self.isthmus("fetch", run, "--list", *(word for item in settings[:2] for word in ("--set", item)), status=4)
        self.assertIn("its certificate is not trusted; name a file with the right authority in object_store.ca", refused)
        self.launch(*settings, f"object_store.ca={server.ca}", "run.stop_after=10")
        self.assertIn(f"{self.prefix}/tiny/replica-0/checkpoints/{self.names(10)[0]}", server.keys())

    def test_a_server_that_never_answers_is_tried_once(self):
        """The kernel repeats the connection attempt for ten seconds. More tries would keep a run from starting."""
        full = socket.create_server(("127.0.0.1", 0), backlog=0)  # Linux drops attempts while the backlog is full
        self.addCleanup(full.close)
        port = full.getsockname()[1]
        for _ in range(4):
            client = socket.socket()
            self.addCleanup(client.close)
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        others, ports, ended = set(waiting_connections(port)), set(), threading.Event()

        def watch():
            while not ended.wait(0.1):
                ports.update(waiting_connections(port))

        watcher = threading.Thread(target=watch)
        watcher.start()
        output = self.isthmus("fetch", f"{self.url}/tiny", "--list", *self.of_store(f"http://127.0.0.1:{port}"), status=4)
        ended.set()
        watcher.join()
        self.assertIn(f"failed at http://127.0.0.1:{port}: cannot connect", output)
        self.assertEqual(len(ports - others), 1)

    def test_wrong_access_is_an_error_before_training(self):
        wrong = self.folder / "wrong"
        wrong.write_text(f"[default]\naws_access_key_id = {self.server.key[0]}\naws_secret_access_key = wrong\n")
        output = self.launch(f"object_store.credentials={wrong}", status=2)
        self.assertRegex(output + self.logs(), r"refuses GET s3://\S+ with status 403: SignatureDoesNotMatch")
        output = self.launch(f"object_store.url=s3://no-such-bucket/{self.prefix}", status=2)
        self.assertIn("NoSuchBucket", output + self.logs())
        output = self.launch("object_store.url=https://example.com/x", status=2)
        self.assertIn("object_store.url is 'https://example.com/x'; expected s3://BUCKET/PREFIX", output)


class Mailbox(Bucket):
    def start_by_hand(self, endpoint=None, verb=None, url=None, coordinator=None, with_port=(), settings=()):
        """A coordinator and two workers that open no port and reach each other only through the mailbox; or doctors.
        Workers in `with_port` open a port. The coordinator is reached at its port or through the mailbox."""
        names = ("replica-0", "replica-1", *with_port)
        for words in (["init", "tiny"], *(["issue", "tiny", name] for name in ("coordinator", "operator", *names))):
            self.isthmus("certs", *words, "--dir", "certs")
        settings = ["network.certs=certs/tiny", "network.mailbox=true", f"object_store.url={url or self.url}",
                    "object_store.copies=false", "network.detect_timeout=30s", f"replicas={len(names)}", *settings]
        common = [*(word for item in settings for word in ("--set", item)), *([] if url else self.of_store(endpoint))]
        places = {"coordinator": [verb or "coordinator", "tiny.yaml", "--listen", coordinator or "127.0.0.1:0"]}
        if verb:
            common += ["--wait", "100"]
            places["coordinator"].append("--json")
        for name in names:
            listen = "127.0.0.1:0" if name in with_port else "none"
            places[name] = [verb or "worker", "tiny.yaml", "--name", name, "--coordinator",
                            coordinator or "coordinator.mailbox:1", "--listen", listen]
        processes = {}
        for name, words in places.items():
            log = open(self.folder / f"{name}.log", "w")
            self.addCleanup(log.close)
            processes[name] = subprocess.Popen([PROGRAM, *words, *common], cwd=self.folder, stdout=log, stderr=log)
            self.addCleanup(processes[name].kill)
        return processes

    def said(self, name):
        return (self.folder / f"{name}.log").read_text()

    def wait_by_hand(self, processes):
        logs = lambda: "".join(f"--- {name}\n{self.said(name)}" for name in processes)  # noqa: E731
        for name, process in processes.items():
            try:
                status = process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                self.fail(f"{name} does not end\n{logs()}")
            self.assertEqual(status, 0, f"{name}\n{logs()}")
        return logs()

    def test_sites_that_open_no_port_train_through_the_bucket(self):
        expected = self.undisturbed()
        self.wait_by_hand(self.start_by_hand())
        self.assertEqual(self.hash(), expected)
        left = [key for key in self.server.keys() if key.startswith(f"{self.prefix}/")]
        self.assertLess(len(left), 200, "almost all objects are removed once they are read")

    def test_changed_and_repeated_pieces_in_a_shared_folder_change_no_bit(self):
        expected = self.undisturbed()
        folder = self.folder / "shared"
        folder.mkdir()
        processes = self.start_by_hand(url=folder)
        changed, repeated, known = 0, 0, set()
        while min(changed, repeated) < 6 and all(process.poll() is None for process in processes.values()):
            time.sleep(0.005)
            for file in sorted(folder.glob("tiny/mail/replica-*/replica-*/*-[da]/" + 12 * "[0-9]")):
                following = file.with_name(f"{int(file.name) + 1:012}")
                with contextlib.suppress(OSError):
                    body = file.read_bytes()
                    if file in known or len(body) < 100:
                        continue
                    if repeated <= changed and not following.exists():
                        following.write_bytes(body)
                        repeated += 1
                    else:
                        file.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
                        changed += 1
                    known |= {file, following}
        self.wait_by_hand(processes)
        self.assertGreaterEqual(min(changed, repeated), 6)
        self.assertEqual(self.hash(), expected)

    @case_results.long
    def test_a_run_waits_for_a_bucket_that_was_away(self):
        expected = self.undisturbed()
        proxy = Proxy(self.server.port)
        processes = self.start_by_hand(f"http://127.0.0.1:{proxy.port}", settings=["network.detect_timeout=60s"])
        wait_for(lambda: " loss " in self.said("replica-0"), "the first line of progress")
        proxy.on = False
        lost = "the mailbox is not reachable"
        wait_for(lambda: all(lost in self.said(name) for name in processes), "the outage")
        proxy.on = True
        self.wait_by_hand(processes)
        for name in processes:
            self.assertIn("the mailbox is reachable again", self.said(name))
        self.assertEqual(self.hash(), expected)

    def test_a_relay_is_preferred_and_the_mailbox_takes_over_from_it(self):
        address = f"127.0.0.1:{free_port()}"
        folder = self.folder / "shared"
        folder.mkdir()
        processes = self.start_by_hand(url=folder, coordinator=address, with_port=["replica-2"],
                                       settings=["run.steps=100000", "network.detect_timeout=8s", "outer.min_replicas=2"])
        at = ["--coordinator", address, "--certs", "certs/tiny"]
        mail = lambda: [str(file) for file in folder.glob("tiny/mail/*/*/*/*")]  # noqa: E731
        relayed = "replica-0 and replica-1 cannot reach each other; their chunks are relayed by replica-2"
        wait_for(lambda: relayed in self.said("coordinator"), "the relay")
        looks = []
        def is_quiet():
            looks.append(mail())
            return len(looks) > 30 and not any(looks[-30:])  # for 3 s
        wait_for(is_quiet, "a mailbox that stays empty")
        begin, pieces = self.steps(), set()
        wait_for(lambda: pieces.update(mail()) or self.steps() > begin + 200, "more steps")
        self.assertEqual(pieces, set())
        status = self.isthmus("ctl", "status", "tiny.yaml", "--json", *at, only_output=True)
        self.assertEqual(json.loads(status)["relays"], [{"between": ["replica-0", "replica-1"], "by": "replica-2"}])
        processes["replica-2"].kill()
        wait_for(mail, "pieces in the mailbox")
        begin = self.steps()
        wait_for(lambda: self.steps() > begin + 30, "steps through the mailbox")
        self.isthmus("ctl", "stop", "tiny.yaml", *at)
        for name, status in (("coordinator", 130), ("replica-0", 0), ("replica-1", 0)):
            self.assertEqual(processes[name].wait(PATIENCE_S), status, self.said(name))
        one, other = (re.findall(r"global hash ([0-9a-f]{64})", self.said(name)) for name in ("replica-0", "replica-1"))
        self.assertTrue(one)
        self.assertEqual(one, other)

    def steps(self):
        """The newest step that the coordinator has reported."""
        return max(map(int, re.findall(r"step (\d+): eval", self.said("coordinator"))), default=0)

    def test_doctor_measures_the_way_through_the_bucket(self):
        self.wait_by_hand(self.start_by_hand(verb="doctor"))
        text = (self.folder / "coordinator.log").read_text()
        found, _ = json.JSONDecoder().raw_decode(text, re.search(r"^\{$", text, re.MULTILINE).start())
        self.assertEqual({(path["from"], path["to"]): path["address"] for path in found["paths"]},
                         {("replica-0", "replica-1"): "replica-1.mailbox:1", ("replica-1", "replica-0"): "replica-0.mailbox:1"})
        for path in found["paths"]:
            self.assertEqual(path["problem"], "")
            self.assertGreater(path["bytes_per_second"], 0)

    def test_the_bucket_sees_only_ciphertext(self):
        processes = self.start_by_hand(settings=["run.steps=400"])
        bodies = []
        def seen():
            for key in self.server.keys():
                if key.startswith(f"{self.prefix}/tiny/mail/"):
                    with contextlib.suppress(self.server.s3.exceptions.NoSuchKey):
                        bodies.append(self.server.s3.get_object(Bucket=BUCKET, Key=key)["Body"].read())
            return len(bodies) > 20
        wait_for(seen, "some objects")
        for process in processes.values():
            process.kill()
            process.wait()
        records = [body for body in bodies if body]
        for body in records:
            self.assertNotIn(b"replicas", body)
            self.assertNotIn(b"checkpoint", body)
        # Pieces begin with a record of TLS, if not in the middle of one: handshake or application data.
        self.assertTrue(any(body.startswith((b"\x16\x03", b"\x17\x03\x03")) for body in records), records[0][:20])


if __name__ == "__main__":
    PROGRAM = pathlib.Path(sys.argv.pop(1)).absolute()
    case_results.main()
