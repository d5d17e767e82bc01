#!/usr/bin/env python3
"""`isthmus-wandb FOLDER`: logs a run to Weights & Biases. The coordinator starts it if `run.wandb` is not `off`.

It follows metrics.jsonl in the run's folder and in the folders of the replicas there, and logs their figures with the
agreed step as the x axis. Standard input has one JSON object per line: first the run (`run`, its name, `mode`,
`fresh`: not resumed, `old`: inodes of files of an older run, `config`), then {"follow": REPLICA} for each replica and
{"finish": "finished" or "failed"}. Its end means that the run is over. The coordinator shows lines on standard output.
Needs only the standard library and the package wandb.
"""

import sys

if __name__ == "__main__":
    del sys.path[0]  # a file next to this one must not be taken for a module of the standard library

import importlib
import json
import os
import pathlib
import select
from typing import Any, Optional

Json = dict[str, Any]

INTERVAL = 1.0  # seconds between two looks at the files
MAX_READ = 1 << 20  # bytes of one file in one look, so that files that are behind advance together
MAX_LAG = 1000  # steps; the means leave out a replica that is further behind, since it may be lost
STATE = "wandb.json"  # in the run's folder: the id of the run at W&B, and what has been logged

# Keys of a replica's line for a step, and their names at W&B, which are those in TensorBoard.
OF_A_STEP = {
    "loss": "train/loss",
    "lr": "train/lr",
    "grad_norm": "train/grad_norm",
    "tokens_per_second": "train/tokens_per_second",
    "utilization": "train/utilization",
    "stall_seconds": "outer/stall_seconds",
    "rounds": "outer/rounds",
}


class Tail:
    """The whole lines that are appended to a file, also when the file is replaced. Files with an inode in
    `old` are skipped."""

    def __init__(self, path: pathlib.Path, old: frozenset[int] = frozenset()) -> None:
        self._path = path
        self._old = old
        self._file: Optional[Any] = None
        self._rest = b""
        self.behind = False

    def lines(self) -> list[Json]:
        """The JSON objects in the next lines; `behind` if there may be more already. Other lines are skipped."""
        if self._file is None and not self._open():
            return []
        found = self._read()
        if not self.behind and self._was_replaced():
            found += self._read()
            if not self.behind and self._open():
                self._rest = b""
                found += self._read()
        return found

    def _open(self) -> bool:
        try:
            file = open(self._path, "rb")
        except OSError:
            return False
        if os.fstat(file.fileno()).st_ino in self._old:
            file.close()
            return False
        if self._file is not None:
            self._file.close()
        self._file = file
        return True

    def _was_replaced(self) -> bool:
        assert self._file is not None
        try:
            return not os.path.samestat(os.stat(self._path), os.fstat(self._file.fileno()))
        except OSError:
            return False

    def _read(self) -> list[Json]:
        assert self._file is not None
        data = self._file.read(MAX_READ)
        self.behind = len(data) == MAX_READ
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [value for value in map(parsed, lines) if isinstance(value, dict)]


def parsed(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def number(value: Any) -> Optional[float]:
    """A number in a line of metrics.jsonl, where infinities and NaN are text."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value
    return float(value) if value in ("nan", "inf", "-inf") else None


def step_of(line: Json) -> Optional[int]:
    step = line.get("step")
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


class Figures:
    """Turns lines into rows, each with the figures of one agreed step. Rows that were logged before are left out."""

    def __init__(self, logged: Json) -> None:
        self._steps: dict[str, int] = dict(logged.get("steps", {}))  # by kind of line: the newest step
        self._tokens: dict[str, float] = dict(logged.get("tokens", {}))  # by replica
        self._newest: dict[str, Json] = {}  # by replica
        self._rows: dict[int, Json] = {}

    def logged(self) -> Json:
        return {"steps": self._steps, "tokens": self._tokens}

    def take_rows(self) -> list[Json]:
        """In the order of their steps."""
        rows = [{"step": step, **self._rows[step]} for step in sorted(self._rows)]
        self._rows.clear()
        return rows

    def add_of_run(self, line: Json) -> None:
        """A line of the coordinator."""
        step = step_of(line)
        loss = number(line.get("eval_loss"))
        if step is not None and loss is not None and self._is_new("eval", step):
            self._row(step)["eval/loss"] = loss
        if isinstance(line.get("fragment"), int):
            self._add_round(line)

    def _add_round(self, line: Json) -> None:
        """Rounds have no step: they count at the newest step that is known, and only once there is one."""
        step = max((at for kind, at in self._steps.items() if kind.startswith("train/")), default=None)
        rounds = line.get("round")
        kind = f"round/{line['fragment']}"
        if step is None or not isinstance(rounds, int) or not self._is_new(kind, rounds):
            return
        for key in ("outer_gradient_norm", "outer_gradient_cosine"):
            of_replicas = line.get(key)
            for replica, value in of_replicas.items() if isinstance(of_replicas, dict) else ():
                value = number(value)
                if value is not None:
                    self._row(step)[f"outer/{key[len('outer_'):]}/{replica}"] = value

    def add_of_replica(self, replica: str, step: int, line: Json) -> None:
        if "eval_nats" in line:
            nats, tokens = number(line["eval_nats"]), number(line.get("eval_tokens"))
            if not self._is_new(f"eval/{replica}", step):
                return
            if nats is not None and tokens:
                self._row(step)[f"eval/loss_of_share/{replica}"] = nats / tokens
            drift = number(line.get("drift"))
            if drift is not None:
                self._row(step)[f"outer/drift/{replica}"] = drift
        elif "inner_steps" in line and self._is_new(f"train/{replica}", step):
            self._add_step(replica, step, line)

    def _add_step(self, replica: str, step: int, line: Json) -> None:
        row = self._row(step)
        figures = {name: number(line.get(key)) for key, name in OF_A_STEP.items()}
        for name, value in figures.items():
            if value is not None:
                row[f"{name}/{replica}"] = value
        self._tokens[replica] = self._tokens.get(replica, 0) + (number(line.get("tokens")) or 0)
        self._newest[replica] = {"step": step, **figures}
        # A replica that was lost has an old step.
        training = [newest for newest in self._newest.values() if newest["step"] + MAX_LAG > step]
        if self._is_new("all", step, again=True):
            for name in ("train/loss", "train/utilization", "train/tokens_per_second"):
                known = [newest[name] for newest in training if newest[name] is not None]
                if known:
                    row[name] = sum(known) if name == "train/tokens_per_second" else mean(known)
            row["train/tokens"] = sum(self._tokens.values())
        if isinstance(line.get("outer_steps"), list):
            self._add_outer_steps(replica, step, [part for part in line["outer_steps"] if isinstance(part, dict)])

    def _add_outer_steps(self, replica: str, step: int, fragments: list[Json]) -> None:
        """Means over the fragments. All replicas have the same figures of the global parameters."""
        row = self._row(step)
        is_first = self._is_new("outer", step)
        for key in ("gain", "correlation", "norm", "spread_at_send", "spread_at_apply"):
            values = [number(fragment.get(key)) for fragment in fragments]
            known = [value for value in values if value is not None]
            if known and key.startswith("spread"):
                row[f"outer/{key}/{replica}"] = mean(known)
            elif known and is_first:
                row[f"outer/{key}"] = mean(known)

    def _row(self, step: int) -> Json:
        return self._rows.setdefault(step, {})

    def _is_new(self, kind: str, step: int, again: bool = False) -> bool:
        """Whether this kind has had neither a later step nor, without `again`, this one. A curve at W&B cannot go back,
        so a run that was resumed from an earlier step is logged from where it had been."""
        last = self._steps.get(kind, -1)
        if step < last or (step == last and not again):
            return False
        self._steps[kind] = step
        return True


class Commands:
    """Standard input, line by line."""

    def __init__(self) -> None:
        self._rest = b""
        self._waiting: list[Json] = []
        self.open = True

    def first(self) -> Optional[Json]:
        while self.open and not self._waiting:
            self._read()
        return self._waiting.pop(0) if self._waiting else None

    def wait(self, seconds: float) -> list[Json]:
        """The commands that have arrived; waits a while for the first."""
        if self.open and not self._waiting and select.select([0], [], [], seconds)[0]:
            self._read()
        commands, self._waiting = self._waiting, []
        return commands

    def _read(self) -> None:
        data = os.read(0, 1 << 16)
        self.open = bool(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._waiting += [json.loads(line) for line in lines]


def typed(value: str) -> Any:
    """A value of the config: a number or a switch if it reads as one."""
    try:
        return json.loads(value)
    except ValueError:
        return value


class State:
    """RUN/wandb.json."""

    def __init__(self, folder: pathlib.Path, fresh: bool) -> None:
        self._file = folder / STATE
        self._values: Json = {}
        if not fresh:
            try:
                self._values = json.loads(self._file.read_text())
            except (OSError, ValueError):
                pass
        self.id: str = self._values.get("id") or os.urandom(4).hex()

    @property
    def logged(self) -> Json:
        logged: Json = self._values.get("logged", {})
        return logged

    def save(self, logged: Json) -> None:
        partial = self._file.with_suffix(".json.partial")
        partial.write_text(json.dumps({"id": self.id, "logged": logged}) + "\n")
        partial.replace(self._file)


def say(text: str) -> None:
    print(text, flush=True)


def begin(wandb: Any, run: Json, folder: pathlib.Path, state: State) -> Any:
    """The run at W&B; None if it cannot begin, with the reason said."""
    settings = {"console": "off", "silent": True, "x_disable_stats": True, "disable_git": True, "save_code": False}
    known = getattr(wandb.Settings, "model_fields", settings)
    try:
        at_wandb = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "isthmus"),
            name=run["run"],
            id=state.id,
            resume="allow" if run["mode"] == "online" else None,
            mode=run["mode"],
            dir=str(folder),
            config={key: typed(value) for key, value in run["config"].items()},
            settings=wandb.Settings(**{key: value for key, value in settings.items() if key in known}),
        )
    except Exception as error:  # of many kinds: no account, no connection, no space
        say(
            f"cannot begin a run at W&B ({type(error).__name__}: {error}); training continues without W&B. To use it "
            "without an account or a connection, set run.wandb to offline"
        )
        return None
    at_wandb.define_metric("step")
    at_wandb.define_metric("*", step_metric="step")
    return at_wandb


def follow(at_wandb: Any, run: Json, folder: pathlib.Path, state: State, commands: Commands) -> int:
    """Logs until the run is over. Returns the run's exit status for W&B."""
    figures = Figures(state.logged)
    old = frozenset(run["old"])
    own = Tail(folder / "metrics.jsonl", old)
    replicas: dict[str, Tail] = {}
    status = 0
    while True:
        is_over = not commands.open
        behind = any(tail.behind for tail in (own, *replicas.values()))
        for command in commands.wait(0 if behind else INTERVAL):
            name = command.get("follow")
            if isinstance(name, str) and name not in replicas:
                replicas[name] = Tail(folder / name / "metrics.jsonl", old)
            if command.get("finish") == "failed":
                status = 1
        lines: list[tuple[int, str, Json]] = []
        for name, tail in replicas.items():
            lines += [(step, name, line) for line in tail.lines() if (step := step_of(line)) is not None]
        for step, name, line in sorted(lines, key=lambda entry: entry[0]):
            figures.add_of_replica(name, step, line)
        for line in own.lines():
            figures.add_of_run(line)
        rows = figures.take_rows()
        for row in rows:
            at_wandb.log(row)
        if rows:
            state.save(figures.logged())
        if is_over and not any(tail.behind for tail in (own, *replicas.values())):
            return status


def main() -> int:
    if len(sys.argv) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    folder = pathlib.Path(sys.argv[1])
    commands = Commands()
    run = commands.first()
    if run is None:
        return 0
    try:
        wandb = importlib.import_module("wandb")
    except ImportError as error:
        say(
            f"the Python package wandb is missing ({error}); training continues without W&B. To install it: "
            f"{sys.executable} -m pip install wandb"
        )
        return 0
    state = State(folder, fresh=bool(run["fresh"]))
    at_wandb = begin(wandb, run, folder, state)
    if at_wandb is None:
        return 0
    state.save(state.logged)
    if run["mode"] == "online":
        say(f"logging to {at_wandb.url}")
    else:
        say(f"logging offline; to upload: wandb sync {pathlib.Path(at_wandb.dir).resolve().parent}")
    at_wandb.finish(exit_code=follow(at_wandb, run, folder, state, commands))
    return 0


if __name__ == "__main__":
    sys.exit(main())
