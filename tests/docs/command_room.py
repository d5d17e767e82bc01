"""A temporary folder in which the docs' commands run: configs, data, certificates, and copies of one tiny run."""

import array
import json
import pathlib
import re
import shutil
import socket
import subprocess

# Placeholders in the docs, for files and names of the reader, and their values here. Other words are unchanged: the
# folder has files and run folders of the names that the docs use.
STANDS_FOR = [
    (r"CONFIG|FILE|A|\.\.\.|my_run\.yaml|experiment\.yaml", "my.yaml"),
    (r"B", "configs/quickstart.yaml"),
    (r"RUN|FOLDER", "runs/my"),
    (r"DIR", "model"),
    (r"KEY|X", "outer.sync_every"),
    (r"my\.model", "bytes"),
    (r"runs/my/log/eu-1", "log/replica-0"),
    (r"s3://my-bucket/experiments/NAME", "bucket/NAME"),
    (r"fetched/NAME/log/eu-1", "fetched/NAME/log/replica-0"),
    (r"replicas=1000", "replicas=2"),  # the prediction for 1,000 takes half a minute
    (r"/data/(.*)|/dev/shm/(.*)", r"data/\1\2"),
    (r"v/lib/.*/configs/quickstart\.yaml", "configs/quickstart.yaml"),
]
RUNS = ("my", "NAME", "two-sites", "gpt2", "overlap", "single")
TINY = ["run.name=tiny", "run.steps=12", "inner.batch=2", "model.layers=1", "model.dim=32", "run.eval_sequences=4",
        "run.sample_tokens=0", "outer.log=log", "device=cpu", "network.emulate.rtt=1ms", "trainer.threads=1", "object_store.url=bucket"]
LINKS = "sites:\n  eu: {up: 100Mbps, step_time: 500ms}\n  us: {up: 100Mbps}\nother_rtt: 90ms\n"
MINE = """run: {name: my, steps: 400}
replicas: 2
data: {path: data/corpus, tokenizer: bytes, seq_len: 128}
outer: {num_fragments: 3, sync_every: 30, sync_delay: 1}
device: cpu
"""
SITES = """run: {name: NAME}
data: {path: data/corpus, seq_len: 128}
sites:
  eu: {replicas: 1, launch.ssh: me@eu.example, network.listen: "0.0.0.0:7001", network.advertise: "eu.example:7001"}
  us: {replicas: 1, launch.ssh: me@us.example, network.listen: "0.0.0.0:7001", network.advertise: "us.example:7001"}
network: {coordinator: "home.example:7000", certs: certs/NAME}
"""
CLUSTER = """run: {name: cluster}
data: {path: data/corpus, seq_len: 128}
sites:
  eu: {launch: {slurm: [--partition=gpu]}, replicas: 2}
  us: {launch: {image: "registry.example/isthmus:1", namespace: train, volume: corpus}}
network: {coordinator: "home.example:7000", certs: certs/cluster}
"""


class Room:
    def __init__(self, folder, root, program):
        self.folder, self.program = pathlib.Path(folder), program
        for name in ("configs", "examples"):
            shutil.copytree(root / name, self.folder / name)
        corpus = self.folder / ".venv" / "corpus"  # data.path of the shipped configs
        corpus.mkdir(parents=True)
        text = "\n".join(page.read_text(encoding="utf-8") for page in sorted((root / "docs").glob("*.md")))
        (corpus / "docs.txt").write_text(text, encoding="utf-8")
        data = self.folder / "data"
        for name in ("corpus", "text", "owt"):
            (data / name).mkdir(parents=True)
        for name in ("corpus/a.txt", "text/a.txt", "text.txt", "other.txt"):
            (data / name).write_text(text[:200000], encoding="utf-8")
        for name in ("owt/train.bin", "owt/val.bin", "train.bin"):
            (data / name).write_bytes(array.array("H", list(text[:30000].encode("ascii", "replace"))).tobytes())
        (self.folder / "more.jsonl").write_text(json.dumps({"text": text[:5000]}) + "\n", encoding="utf-8")
        for name, content in {"my.yaml": MINE, "links.yaml": LINKS,
                              "two_sites.yaml": SITES.replace("NAME", "two-sites"),
                              "gpt2.yaml": SITES.replace("NAME", "gpt2"), "large.yaml": MINE, "tiny.yaml": MINE,
                              "cluster.yaml": CLUSTER,
                              "theirs.csv": "tokens,loss\n0,5.5\n30000000,3.5\n"}.items():
            (self.folder / name).write_text(content, encoding="utf-8")

    def train(self):
        """Makes the tiny run, and gives the folders of runs that the docs name."""
        settings = [word for setting in TINY for word in ("--set", setting)]
        done = self.call(["launch", "configs/quickstart.yaml", *settings])
        if done.returncode:
            raise SystemExit(f"the tiny run, from which the docs' commands run, failed:\n{done.stdout}{done.stderr}")
        for name in RUNS:
            shutil.copytree(self.folder / "runs" / "tiny", self.folder / "runs" / name)
        shutil.copytree(self.folder / "bucket" / "tiny", self.folder / "bucket" / "NAME")

    def diagnose(self):
        """Makes doctors.json, which `plan` reads, by doctors for the two workers of two_sites.yaml on loopback."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = f"127.0.0.1:{free.getsockname()[1]}"
        common = [self.program, "doctor", "my.yaml", "--set", "replicas=2", "--wait", "60"]
        with open(self.folder / "doctors.json", "w", encoding="utf-8") as output:
            doctors = [subprocess.Popen([*common, "--listen", address, "--json"], cwd=self.folder, stdout=output,
                                        stderr=subprocess.DEVNULL)]
            doctors += [subprocess.Popen([*common, "--name", f"replica-{index}", "--coordinator", address],
                                         cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                        for index in range(2)]
            try:
                statuses = [doctor.wait(120) for doctor in doctors]
            finally:
                for doctor in doctors:
                    doctor.kill()
                    doctor.wait()
        if any(statuses):
            raise SystemExit(f"the doctors, before `plan` reads their report, ended with {statuses}; expected 0")

    def call(self, words, program=None, stdin=None):
        words = [program or self.program, *words]
        try:
            return subprocess.run(words, cwd=self.folder, capture_output=True, timeout=240, check=False,
                                  input=stdin or "", encoding="utf-8", errors="replace")
        except subprocess.TimeoutExpired as late:
            return subprocess.CompletedProcess(words, 124, "", f"no end within {late.timeout:.0f} s")

    def mapped(self, word):
        for pattern, real in STANDS_FOR:
            if found := re.fullmatch(pattern, word):
                return found.expand(real)
        return word

    def text(self, path):
        file = self.folder / path
        return file.read_text(encoding="utf-8", errors="replace") if file.exists() else ""

    def remove(self, path):
        path = self.folder / path
        if path.is_dir():
            shutil.rmtree(path)
        elif path.exists():
            path.unlink()
