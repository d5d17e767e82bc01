"""Several ranks of one site as one replica: DistributedDataParallel, or `fully_shard` (FSDP2).

Only the first rank is in the run. During a call of the loop it sends the others requests to move parameters, and they
serve these until it reports that the call is done. So all ranks must make the same calls of the loop.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import time
from typing import Any, Callable, Iterator, Mapping, Optional, TypeVar

import torch
import torch.distributed as dist

from ._native import ConfigError, NetworkError
from ._moments import Moments
from ._owned import Layout, OwnedStorage
from ._placement import Placement
from ._storage import Storage

Result = TypeVar("Result")

# Kinds of messages from the first rank. A transfer carries its range, _DONE the state of the run.
_DONE, _FETCH, _STORE, _GIVE, _TAKE, _STEPS, _WAITING, _FAILED = range(8)
_FLAGS = ("running", "stopped", "synchronous", "frozen", "wants_evaluation", "wants_checkpoint")
_STATS: tuple[str, ...] = ("rounds", "warmup_rounds", "left_out", "rejected", "uncommitted_steps", "states_taken")
_STATS += ("exchanges_averaged", "exchanges_missed", "exchanges_refused")
_STATS += ("stall_seconds", "warmup_wait_seconds", "payload_bytes", "total_bytes")
_LENGTH = len(_FLAGS) + 3 + len(_STATS)
_MOST_TEXT = 4096  # bytes of a reason
# A rank may wait long for the first one, which may be evaluating. While the first one waits itself, it sends _WAITING.
_LONGEST_SILENCE = datetime.timedelta(hours=2)
_SAY_EVERY = 1.0  # seconds
_PART = 1 << 24  # elements that are moved to a device at once


class Ranks:
    """Communication between the ranks of a site. Collective: all ranks make the same calls, in the same order."""

    def __init__(self, group: Any) -> None:
        ranks = dist.get_process_group_ranks(group)
        self.group, self._first = group, ranks[0]
        self.is_first = dist.get_rank(group) == 0
        # Messages use a separate group in host memory: a wait of the first rank must not look like a lost rank to the
        # training's group, and no step may wait for a GPU.
        self._words = dist.new_group(ranks, timeout=_LONGEST_SILENCE, backend="gloo", use_local_synchronization=True)
        self._devices = {part.split(":")[0] for part in dist.get_backend_config(group).split(",")}

    def layout(self, parameters: Mapping[str, Any]) -> Layout:
        """The parameters of all ranks."""
        with _lost():
            return Layout(parameters, self._words)

    def storage(self, model: torch.nn.Module, layout: Layout, placement: Placement) -> Storage:
        """The storage of this rank; some kinds move values when they are made, so all ranks call it."""
        if not layout.is_uniform:
            return OwnedStorage(model, layout, placement, self.group)
        if any(hasattr(parameter, "to_local") for parameter in layout.parameters.values()):
            from ._sharded import ShardedStorage  # needs a torch with DTensor

            return ShardedStorage(model, layout.parameters, placement, self.group)
        return Storage(model, layout.parameters, placement, self.is_first)

    def broadcast(self, values: torch.Tensor) -> None:
        """Broadcasts the first rank's one-dimensional `values` in place, on any device."""
        for part in values.split(_PART):
            there = part
            if part.device.type not in self._devices:
                there = part.to("cuda" if "cuda" in self._devices else "cpu")
            dist.broadcast(there, self._first, group=self.group)
            if there is not part and not self.is_first:
                part.copy_(there)

    def spread(self, storage: Storage, begin: int, end: int) -> None:
        """Sends elements [begin, end) of the first rank's parameters to all ranks."""
        if storage.sharded:
            storage.store(begin, end)
            return
        for piece, _ in storage.pieces(begin, end):
            self.broadcast(piece)

    def take_moments(
        self,
        storage: Storage,
        moments: Moments,
        begin: int,
        end: int,
        values: tuple[Optional[torch.Tensor], Optional[torch.Tensor]] = (None, None),
    ) -> None:
        """Sets the moments of elements [begin, end) to the first rank's values, on all ranks."""
        moments.take(begin, end, *values)
        for tensor in [] if storage.sharded else moments.tensors(begin, end):
            flat = tensor.contiguous().view(-1)
            self.broadcast(flat)
            tensor.copy_(flat.view(tensor.shape))

    # ---- messages ----

    def say(self, kind: int, numbers: list[float], text: str = "") -> None:
        """Sends a message to the other ranks. Called by the first rank."""
        data = text.encode(errors="replace")[:_MOST_TEXT]
        self.tell(torch.tensor([kind, len(data), *numbers, *[0] * (_LENGTH - len(numbers))], dtype=torch.float64))
        if data:
            self.tell(torch.frombuffer(bytearray(data), dtype=torch.uint8))

    def hear(self) -> tuple[int, list[float], str]:
        """Receives a message of the first rank. Raises NetworkError with the reason if that rank has failed."""
        heard = torch.zeros(2 + _LENGTH, dtype=torch.float64)
        self.tell(heard)
        kind, length, *numbers = heard.tolist()
        text = torch.empty(int(length), dtype=torch.uint8)
        if length:
            self.tell(text)
        said = bytes(text.tolist()).decode(errors="replace")
        if kind == _FAILED:
            raise NetworkError(f"the first rank of this site has failed: {said}")
        return int(kind), numbers, said

    def agree(self, work: Callable[[], Result]) -> Result:
        """Runs `work` on every rank. If one fails, all raise: that rank its own exception, the others NetworkError."""
        failure: Optional[Exception] = None
        result: Any = None
        try:
            result = work()
        except Exception as error:
            failure = error
        reasons: list[Any] = [None] * dist.get_world_size(self._words)
        mine = None if failure is None else f"{type(failure).__name__}: {failure}"
        with _lost():
            dist.all_gather_object(reasons, mine, group=self._words)
        if failure is not None:
            raise failure
        for rank, reason in enumerate(reasons):
            if reason is not None:
                raise NetworkError(f"rank {rank} of this site has failed: {reason}")
        return result

    @property
    def place(self) -> tuple[int, int]:
        """This rank and the number of ranks."""
        return dist.get_rank(self.group), dist.get_world_size(self.group)

    def first_says(self, flag: bool) -> bool:
        """The first rank's `flag`."""
        there = torch.tensor([flag], dtype=torch.uint8)
        self.tell(there)
        return bool(there.item())

    def tell(self, values: torch.Tensor) -> None:
        """Broadcasts the first rank's `values` in place, in host memory."""
        with _lost():
            dist.broadcast(values, self._first, group=self._words)


@contextlib.contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise NetworkError(f"the ranks of this site have lost each other: {error}") from error


class Moves:
    """Transfers that the first rank's replica requests during a call, and that the other ranks serve.

    Has no reference to the replica: the replica refers to it, and the cycle would keep both alive.
    """

    def __init__(self, ranks: Ranks, storage: Storage) -> None:
        self._ranks, self._storage = ranks, storage
        self.served = False
        """the other ranks are listening"""
        self.moving = False
        """the other ranks are in a transfer"""
        self._said = 0.0

    @property
    def both(self) -> tuple[Any, Any]:
        """`fetch` and `store`."""
        fetch, _ = self._storage.moves
        return self._fetch if self._storage.sharded else fetch, self._store

    def waiting(self) -> None:
        """Called regularly while the replica waits: shows the others that it is alive, and lets them be interrupted."""
        if self.served and time.monotonic() - self._said > _SAY_EVERY:
            self._ranks.say(_WAITING, [])
            self._said = time.monotonic()

    def _fetch(self, begin: int, end: int) -> None:
        with self.others(_FETCH, begin, end):
            self._storage.fetch(begin, end)

    def _store(self, begin: int, end: int) -> None:
        if not self._storage.direct and not self._storage.sharded:
            self._storage.store(begin, end)
        with self.others(_STORE, begin, end):
            self._ranks.spread(self._storage, begin, end)

    @contextlib.contextmanager
    def others(self, kind: int, *numbers: int) -> Iterator[None]:
        if not self.served:
            raise ConfigError("the parameters are on all ranks of the site: call this after the warm-up or at the end")
        self._ranks.say(kind, list(numbers))
        self.moving = True
        yield
        self.moving = False


class FirstMoments:
    """The moments of all ranks of a site, as its first rank's replica gives and takes them."""

    def __init__(self, ranks: Ranks, storage: Storage, moves: Moves, moments: Moments) -> None:
        self._ranks, self._storage, self._moves, self._moments = ranks, storage, moves, moments

    @property
    def steps(self) -> int:
        return self._moments.steps

    def give(self, begin: int, end: int, which: int) -> torch.Tensor:
        if not self._storage.sharded:
            return self._moments.give(begin, end, which)
        with self._moves.others(_GIVE, begin, end, which):
            return self._moments.give(begin, end, which)

    def take(self, begin: int, end: int, first: torch.Tensor, second: torch.Tensor) -> None:
        with self._moves.others(_TAKE, begin, end):
            self._ranks.take_moments(self._storage, self._moments, begin, end, (first, second))

    def set_steps(self, steps: int) -> None:
        self._moments.set_steps(steps)
        with self._moves.others(_STEPS, steps):
            pass


class _Rank:
    """State of the run that all ranks know, as of the end of the last call."""

    is_due = False  # the calls themselves check the parameters
    running = stopped = synchronous = frozen = wants_evaluation = wants_checkpoint = False
    step = 0
    rank = (0, 1)
    leaves = ""

    def __init__(self, ranks: Ranks, storage: Storage) -> None:
        self._ranks, self._storage = ranks, storage
        self._stats: dict[str, Any] = {}
        self._hash = ""

    def stats(self) -> dict[str, Any]:
        return self._stats

    def broadcast(self, values: torch.Tensor) -> None:
        self._ranks.broadcast(values)

    def _replicate(self, values: torch.Tensor) -> None:
        """Broadcasts values of the whole buffer, unless parameters are sharded."""
        if not self._storage.sharded:
            self._ranks.broadcast(values)

    def _know(self, numbers: list[float], text: str) -> None:
        for name, value in zip(_FLAGS, numbers):
            setattr(self, name, bool(value))
        self.step, *place = map(int, numbers[len(_FLAGS) : len(_FLAGS) + 3])
        self.rank = (place[0], place[1])
        values = numbers[len(_FLAGS) + 3 :]
        self._stats = {n: v if n.endswith("_seconds") else int(v) for n, v in zip(_STATS, values)}
        if text:
            self.leaves, self._hash = json.loads(text)


class FirstRank(_Rank):
    """Takes the place of a `Replica` on the rank that has one."""

    def __init__(self, ranks: Ranks, storage: Storage, moments: Optional[Moments]) -> None:
        super().__init__(ranks, storage)
        self._moves = Moves(ranks, storage)
        self._moments = FirstMoments(ranks, storage, self._moves, moments) if moments else None
        self._native: Any = None

    def join(self, make: Callable[[Moves, Optional[FirstMoments]], Any]) -> None:
        """Joins the run; `make` creates the replica."""

        def begin() -> None:
            self._native = make(self._moves, self._moments)
            if not self._storage.sharded:  # ranks may have different initial values
                self._moves.both[1](0, self._storage.size)

        self._serve(begin)

    def check(self) -> None:
        self._serve(self._storage.check)

    def after_step(self, loss: Optional[float], tokens: int, samples: Optional[int]) -> bool:
        if not self.running:
            return self._native.after_step(loss, tokens, samples)  # raises the reason
        self._serve(lambda: self._step(loss, tokens, samples))
        return self.running

    def _step(self, loss: Optional[float], tokens: int, samples: Optional[int]) -> None:
        if self._native.is_due:
            self._storage.check()
        self._native.after_step(loss, tokens, samples)

    def average_gradients(self, gradients: torch.Tensor, tokens: int, samples: Optional[int]) -> None:
        self._serve(lambda: self._native.average_gradients(gradients, tokens, samples))
        self._replicate(gradients)

    def next_samples(self, count: int, size: int) -> list[int]:
        found = self._serve(lambda: self._native.next_samples(count, size))
        self._ranks.tell(torch.tensor(found))
        return found

    def copy_global(self, out: torch.Tensor) -> None:
        self._serve(lambda: self._native.copy_global(out))
        self._replicate(out)

    def save(self) -> bytes:
        return self._serve(self._native.save)

    def global_hash(self) -> str:
        return self._hash or self._native.global_hash()

    def report_evaluation(self, nats: float, tokens: int) -> None:
        self._native.report_evaluation(nats, tokens)

    def request_stop(self, reason: str) -> None:
        self._native.request_stop(reason)

    def request_leave(self, reason: str) -> None:
        self._native.request_leave(reason)

    def close(self, why: str) -> None:
        if self._native is not None:
            self._native.close(why)

    def _serve(self, work: Callable[[], Result]) -> Result:
        """Runs `work` while the others listen. Reports an exception to them, so that they do not wait for this rank."""
        self._moves.served = True
        try:
            result = work()
        except BaseException as error:
            if not self._moves.moving:
                with contextlib.suppress(NetworkError):
                    self._ranks.say(_FAILED, [], f"{type(error).__name__}: {error}")
            raise
        finally:
            self._moves.served = False
        self._done()
        return result

    def _done(self) -> None:
        native = self._native
        stats = native.stats()
        numbers = [float(getattr(native, name)) for name in _FLAGS]
        numbers += [native.step, *native.rank, *(stats[name] for name in _STATS)]
        text = ""
        if not native.running and not self._hash and not self.leaves:
            text = json.dumps([native.leaves, "" if native.leaves else native.global_hash()])
        self._know(numbers, text)
        self._ranks.say(_DONE, numbers, text)


class OtherRank(_Rank):
    """Takes the place of a `Replica` on a rank that follows the first one."""

    def __init__(self, ranks: Ranks, storage: Storage, moments: Optional[Moments]) -> None:
        super().__init__(ranks, storage)
        self._moments = moments
        self._listen()

    def check(self) -> None:
        self._storage.check()
        self._listen()

    def after_step(self, loss: Optional[float], tokens: int, samples: Optional[int]) -> bool:
        if not self.running:
            raise ConfigError("after_step: the run is over for this replica; leave the loop when it returns False")
        self._listen()
        return self.running

    def next_samples(self, count: int, size: int) -> list[int]:
        self._listen()
        there = torch.zeros(count, dtype=torch.int64)
        self._ranks.tell(there)
        return there.tolist()

    def average_gradients(self, gradients: torch.Tensor, tokens: int, samples: Optional[int]) -> None:
        self._listen()
        self._replicate(gradients)

    def copy_global(self, out: torch.Tensor) -> None:
        self._listen()
        self._replicate(out)

    def save(self) -> bytes:
        self._listen()
        return b""

    def global_hash(self) -> str:
        if not self._hash:
            raise ConfigError("global_hash: before the run's end it is only available on the site's first rank")
        return self._hash

    def report_evaluation(self, nats: float, tokens: int) -> None:
        """Does nothing: only the first rank's call counts."""

    def request_stop(self, reason: str) -> None:
        """Does nothing: only the first rank's call counts."""

    def request_leave(self, reason: str) -> None:
        """Does nothing: only the first rank's call counts."""

    def close(self, why: str) -> None:
        pass

    def _listen(self) -> None:
        """Serves the first rank's requests until its call is done."""
        while True:
            kind, numbers, text = self._ranks.hear()
            if kind == _DONE:
                return self._know(numbers, text)
            if kind == _FETCH:
                self._storage.fetch(int(numbers[0]), int(numbers[1]))
            elif kind == _STORE:
                self._ranks.spread(self._storage, int(numbers[0]), int(numbers[1]))
            elif self._moments and kind == _GIVE:
                self._moments.give(int(numbers[0]), int(numbers[1]), int(numbers[2]))
            elif self._moments and kind == _TAKE:
                self._ranks.take_moments(self._storage, self._moments, int(numbers[0]), int(numbers[1]))
            elif self._moments and kind == _STEPS:
                self._moments.set_steps(int(numbers[0]))
