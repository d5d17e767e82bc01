"""Several ranks of one site as one replica: DistributedDataParallel, or `fully_shard` (FSDP2).

The first is in the run. What it changes in its parameters, and what it must know of sharded ones, it says to the
others, who do their part of it until it says that the call is done.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from ._native import ConfigError, NetworkError
from ._storage import Storage

_FLAGS = ("running", "stopped", "synchronous", "frozen", "wants_evaluation", "wants_checkpoint")
# Of what the first rank says: one of these kinds, two numbers, flags, step, place and number of replicas.
_DONE, _FETCH, _STORE, _FAILED = range(4)
_LENGTH = 3 + len(_FLAGS) + 3
_MOST_WHY = 4096  # bytes


class _Ranks:
    """What the ranks of a site say to each other. Collective calls: all ranks make the same ones."""

    def __init__(self, storage: Storage, group: Any) -> None:
        self.storage, self._group = storage, group
        self._first = dist.get_global_rank(group, 0)
        self._device = storage.device if dist.get_backend(group) == "nccl" else torch.device("cpu")

    def broadcast(self, values: torch.Tensor) -> None:
        """From the first rank, in place, wherever the tensor is."""
        there = values.to(self._device)
        dist.broadcast(there, self._first, group=self._group)
        if there is not values:
            values.copy_(there)

    def say(self, kind: int, *numbers: int) -> None:
        """By the first rank."""
        self.broadcast(torch.tensor([kind, *numbers, *[0] * (_LENGTH - 1 - len(numbers))], dtype=torch.int64))

    def hear(self) -> list[int]:
        """What the first rank says, by the others. Raises NetworkError with its reason where it has failed."""
        heard = torch.zeros(_LENGTH, dtype=torch.int64)
        self.broadcast(heard)
        kind, length = heard[0].item(), heard[1].item()
        if kind == _FAILED:
            text = torch.empty(length, dtype=torch.uint8)
            self.broadcast(text)
            why = bytes(text.tolist()).decode(errors="replace")
            raise NetworkError(f"the first rank of this site has failed: {why}")
        return heard.tolist()

    def fail(self, error: BaseException) -> None:
        """By the first rank: the others must not wait for one that has an exception."""
        text = f"{type(error).__name__}: {error}".encode(errors="replace")[:_MOST_WHY]
        self.say(_FAILED, len(text))
        self.broadcast(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def spread(self, begin: int, end: int) -> None:
        """Elements [begin, end) of the first rank's parameters, for all."""
        if self.storage.sharded:
            self.storage.store(begin, end)
            return
        for piece, _ in self.storage.overlaps(begin, end):
            self.broadcast(piece)

    def replicate(self, values: torch.Tensor) -> None:
        """Values of the whole buffer, for those that have room for them."""
        if not self.storage.sharded:
            self.broadcast(values)


class FirstRank:
    """In the place of a `Replica`, on the rank that has one."""

    is_due = False  # parameters are looked after here, so that the others hear of what is wrong

    def __init__(self, storage: Storage, group: Any) -> None:
        self._ranks, self._storage = _Ranks(storage, group), storage
        self._native: Any = None

    @property
    def moves(self) -> tuple[Any, Any]:
        """`fetch` and `store` for the replica."""
        fetch, _ = self._storage.moves
        return self._fetch_with_others if self._storage.sharded else fetch, self._store_for_all

    def _fetch_with_others(self, begin: int, end: int) -> None:
        self._ranks.say(_FETCH, begin, end)
        self._storage.fetch(begin, end)

    def _store_for_all(self, begin: int, end: int) -> None:
        if not self._storage.direct and not self._storage.sharded:
            self._storage.store(begin, end)
        self._ranks.say(_STORE, begin, end)
        self._ranks.spread(begin, end)

    def join(self, make: Any) -> None:
        """`make` makes the replica."""
        self._native = self._or_fail(make)
        size = self._storage.size
        if not self._storage.sharded:  # ranks may have begun with other values
            self._store_for_all(0, size)
        self._done()

    def after_step(self, loss: Optional[float], tokens: int) -> bool:
        self._or_fail(lambda: self._step(loss, tokens))
        self._done()
        return self._native.running

    def _step(self, loss: Optional[float], tokens: int) -> None:
        if self._native.is_due:
            self._storage.check()
        self._native.after_step(loss, tokens)

    def average_gradients(self, gradients: torch.Tensor, tokens: int) -> None:
        self._or_fail(lambda: self._native.average_gradients(gradients, tokens))
        self._done()
        self._ranks.replicate(gradients)

    def copy_global(self, out: torch.Tensor) -> None:
        self._native.copy_global(out)
        self._ranks.replicate(out)

    def broadcast(self, values: torch.Tensor) -> None:
        self._ranks.broadcast(values)

    def save(self) -> bytes:
        saved = self._or_fail(lambda: self._native.save())
        self._done()
        return saved

    def _or_fail(self, work: Any) -> Any:
        try:
            return work()
        except BaseException as error:
            self._ranks.fail(error)
            raise

    def _done(self) -> None:
        flags = [int(getattr(self._native, name)) for name in _FLAGS]
        self._ranks.say(_DONE, 0, 0, *flags, self._native.step, *self._native.rank)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class OtherRank:
    """In the place of a `Replica`, on a rank that hears from the first one."""

    leaves = ""
    is_due = False

    def __init__(self, storage: Storage, group: Any) -> None:
        self._ranks = _Ranks(storage, group)
        self._serve()

    def after_step(self, loss: Optional[float], tokens: int) -> bool:
        if not self.running:
            raise ConfigError("after_step: the run is over for this replica; leave the loop when it returns False")
        self._serve()
        return self.running

    def average_gradients(self, gradients: torch.Tensor, tokens: int) -> None:
        self._serve()
        self._ranks.replicate(gradients)

    def copy_global(self, out: torch.Tensor) -> None:
        self._ranks.replicate(out)

    def broadcast(self, values: torch.Tensor) -> None:
        self._ranks.broadcast(values)

    def save(self) -> bytes:
        self._serve()
        return b""

    def global_hash(self) -> str:
        raise ConfigError("global_hash: ask on the site's first rank, which is in the run")

    def stats(self) -> dict[str, Any]:
        return {}

    def report_evaluation(self, nats: float, tokens: int) -> None:
        raise ConfigError("report_evaluation: on the site's first rank, for all of them")

    def request_stop(self, reason: str) -> None:
        raise ConfigError("request_stop: on the site's first rank")

    def close(self, why: str) -> None:
        pass

    def _serve(self) -> None:
        """Does what the first rank says, until that is done with its call."""
        kind, begin, end, *rest = self._ranks.hear()
        while kind != _DONE:
            if kind == _FETCH:
                self._ranks.storage.fetch(begin, end)
            else:
                self._ranks.spread(begin, end)
            kind, begin, end, *rest = self._ranks.hear()
        for name, value in zip(_FLAGS, rest):
            setattr(self, name, bool(value))
        self.step, *place = rest[len(_FLAGS) :]
        self.rank = tuple(place)
