"""Weights & Biases: what reaches the package wandb, here mostly a stand-in, and that a run does not depend on it."""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys

import pytest

from isthmus._wandb import Figures, Tail

HERE = pathlib.Path(__file__).parent
PROGRAM = HERE.parents[1] / "python/isthmus/_wandb.py"


@pytest.fixture
def stand_in(run, monkeypatch):
    """Puts the stand-in on the path of programs that the test starts. Returns the file with its calls."""
    calls = run.folder / "calls.jsonl"
    monkeypatch.setenv("PATH", os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ["PATH"]]))
    monkeypatch.setenv("PYTHONPATH", str(HERE / "stand_in"))
    monkeypatch.setenv("WANDB_CALLS", str(calls))
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    return calls


def calls_in(file, name):
    return [call for call in map(json.loads, file.read_text().splitlines()) if call["call"] == name]


def train(run, **settings):
    run.write_config(run={"wandb": "online", "eval_every": 6, **settings})
    run.start_coordinator()
    for name in ("eu", "us"):
        run.start_worker(name, "train.py")
    run.finish()
    return run.log("coordinator")


def lines_of(run, name):
    return list(map(json.loads, (run.folder / "runs/test" / name / "metrics.jsonl").read_text().splitlines()))


def curve(rows, key):
    return {row["step"]: row[key] for row in rows if key in row}


def test_all_figures_of_a_run_reach_wandb(run, stand_in):
    said = train(run)
    assert "logging to https://wandb.test/run" in said
    (init,) = calls_in(stand_in, "init")
    assert (init["name"], init["project"], init["mode"], init["resume"]) == ("test", "isthmus", "online", "allow")
    assert init["config"]["run.steps"] == 24 and init["config"]["outer.codec"] == "fp32"
    assert str(run.folder) not in json.dumps(init["config"]), "a path of this machine is nobody else's business"
    assert {"call": "define_metric", "name": "*", "step_metric": "step"} in calls_in(stand_in, "define_metric")
    rows = [call["row"] for call in calls_in(stand_in, "log")]
    for name in ("eu", "us"):
        steps = [line for line in lines_of(run, name) if "loss" in line]
        assert curve(rows, f"train/loss/{name}") == {line["step"]: line["loss"] for line in steps}
    losses = [curve(rows, f"train/loss/{name}")[24] for name in ("eu", "us")]
    assert curve(rows, "train/loss")[24] == pytest.approx(sum(losses) / 2)
    assert 0 < curve(rows, "train/utilization")[24] <= 1
    evaluations = [line for line in lines_of(run, ".") if "eval_loss" in line]
    assert curve(rows, "eval/loss") == {line["step"]: line["eval_loss"] for line in evaluations}
    assert curve(rows, "outer/gradient_norm/eu")
    assert [call["exit_code"] for call in calls_in(stand_in, "finish")] == [0]


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("missing", "the Python package wandb is missing (No module named 'wandb'); training continues without W&B"),
        ("refuse", "cannot begin a run at W&B (RuntimeError: No API key configured); training continues without W&B"),
        ("crash", "isthmus-wandb ended with status 7"),
        ("hang", "isthmus-wandb had not sent all to W&B after 1 s and was ended"),
    ],
)
def test_a_run_does_not_depend_on_wandb(run, stand_in, monkeypatch, trouble, said):
    monkeypatch.setenv("WANDB_TROUBLE", trouble)
    output = train(run, stop_grace="2s" if trouble == "hang" else "60s")
    assert output.count(said) == 1, output
    assert (run.folder / "runs/test/summary.json").exists()


def test_without_the_program_the_run_says_so_and_goes_on(run, monkeypatch):
    alone = run.folder / "bin"
    alone.mkdir()
    shutil.copy2(run.build / "isthmus-coordinator", alone)  # the program is searched for next to it
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    run.build = alone
    assert train(run).count("isthmus-wandb was not found") == 1


class Folder:
    """The files of a run, and the program that follows them."""

    def __init__(self, path):
        self.path = path

    def add(self, name, *lines):
        file = self.path / name / "metrics.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("a") as out:
            out.writelines(json.dumps(line) + "\n" for line in lines)

    def log(self, replicas=("eu",), end="finished", **run):
        first = {"run": "r", "mode": "online", "fresh": False, "old": [], "config": {}, **run}
        commands = [first, *({"follow": name} for name in replicas), {"finish": end}]
        text = "".join(json.dumps(command) + "\n" for command in commands)
        done = subprocess.run([sys.executable, "-B", PROGRAM, self.path], input=text, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture
def folder(tmp_path, stand_in):
    path = tmp_path / "files"
    path.mkdir()
    return Folder(path)


def steps(*numbers, loss=1.0):
    return [{"step": n, "inner_steps": n, "loss": loss, "tokens": 10} for n in numbers]


def test_a_resumed_run_continues_the_same_one_where_it_had_been(folder, stand_in):
    folder.add("eu", *steps(*range(1, 13)))
    folder.add(".", {"step": 10, "eval_loss": 3.0})
    folder.log(fresh=True)
    folder.add("eu", *steps(*range(9, 16), loss=2.0))  # from the checkpoint of step 8
    folder.add(".", {"step": 10, "eval_loss": 3.5}, {"step": 15, "eval_loss": 2.5})
    folder.log(end="failed")
    first, second = (call["id"] for call in calls_in(stand_in, "init"))
    assert first == second
    rows = [call["row"] for call in calls_in(stand_in, "log")]
    seen = [row["step"] for row in rows if "train/loss/eu" in row]
    assert seen == list(range(1, 16))
    assert [row["eval/loss"] for row in rows if "eval/loss" in row] == [3.0, 2.5]
    assert curve(rows, "train/tokens")[15] == 150
    assert [call["exit_code"] for call in calls_in(stand_in, "finish")] == [0, 1]
    folder.log(fresh=True)
    assert calls_in(stand_in, "init")[2]["id"] != first, "a new run"


def test_files_of_an_older_run_are_not_logged(folder, stand_in):
    folder.add("eu", *steps(1, 2, 3))
    file = folder.path / "eu/metrics.jsonl"
    folder.log(fresh=True, old=[file.stat().st_ino])
    assert calls_in(stand_in, "log") == []
    file.rename(folder.path / "eu/metrics.jsonl.1")
    folder.add("eu", *steps(1))
    folder.log(fresh=True, old=[(folder.path / "eu/metrics.jsonl.1").stat().st_ino])
    assert [call["row"]["step"] for call in calls_in(stand_in, "log")] == [1]


def test_a_file_is_followed_while_it_grows_and_when_it_is_replaced(tmp_path):
    file = tmp_path / "metrics.jsonl"
    tail = Tail(file)
    assert tail.lines() == []
    file.write_text('{"step": 1}\n{"st')
    assert tail.lines() == [{"step": 1}]
    with file.open("a") as out:
        out.write('ep": 2}\nnot json\n[3]\n')
    assert tail.lines() == [{"step": 2}]
    with file.open("a") as out:
        out.write('{"step": 3}\n')
    file.rename(tmp_path / "metrics.jsonl.1")
    file.write_text('{"step": 4}\n')
    assert tail.lines() == [{"step": 3}, {"step": 4}]


def test_figures_from_elsewhere_may_be_anything():
    figures = Figures({})
    for line in ({"inner_steps": 1, "loss": [], "outer_steps": [3, {"gain": "x"}], "tokens": None, "lr": "nan"}, {}):
        figures.add_of_replica("eu", 1, line)
        figures.add_of_run({**line, "step": "x", "fragment": 0, "round": {}, "outer_gradient_norm": 3})
    (row,) = figures.take_rows()
    assert set(row) == {"step", "train/lr/eu", "train/tokens"}


def records(data):
    """The records of a .wandb file: blocks of 32 KiB as in LevelDB's log."""
    from wandb.proto import wandb_internal_pb2

    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield wandb_internal_pb2.Record.FromString(whole)
            whole = b""


def test_the_real_package_keeps_the_figures_offline(folder, monkeypatch):
    pytest.importorskip("wandb", reason="scripts/setup.sh --tests installs it")
    monkeypatch.delenv("PYTHONPATH")
    folder.add("eu", *steps(*range(1, 41)))
    folder.add(".", {"step": 40, "eval_loss": 3.25})
    said = folder.log(mode="offline", fresh=True)
    (file,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    assert f"wandb sync {file.parent}" in said
    rows = []
    for record in records(file.read_bytes()):
        if record.HasField("history"):
            items = record.history.item
            rows.append({item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items})
    assert curve(rows, "train/loss/eu") == dict.fromkeys(range(1, 41), 1.0)
    assert curve(rows, "eval/loss") == {40: 3.25}
