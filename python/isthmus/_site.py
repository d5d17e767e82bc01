"""Several ranks of one site as one replica (DistributedDataParallel).

The first is in the run, and after each step gives the others what has changed. They all hold the same parameters, so
one of them speaks for all.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
import torch.distributed as dist

from ._native import ConfigError, NetworkError
from ._storage import Storage

_MOST_RANGES = 32
_FLAGS = ("running", "stopped", "synchronous", "frozen", "wants_evaluation", "wants_checkpoint")
# Of what the first rank says: number of ranges or _FAILED, flags, step, place and number of replicas, ranges.
_LENGTH = 1 + len(_FLAGS) + 3 + 2 * _MOST_RANGES
_FAILED = -1


def merged(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same elements in few ranges, in order; in one that covers them where they would be too many."""
    out: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(end, out[-1][1]))
        else:
            out.append((begin, end))
    return out if len(out) <= _MOST_RANGES else [(out[0][0], out[-1][1])]


class _Ranks:
    """What the ranks of a site say to each other. Collective calls: all ranks make the same ones."""

    def __init__(self, storage: Storage, group: Any) -> None:
        self._storage, self._group = storage, group
        self._first = dist.get_global_rank(group, 0)
        self._device = storage.device if dist.get_backend(group) == "nccl" else torch.device("cpu")

    def broadcast(self, values: torch.Tensor) -> None:
        """From the first rank, in place, wherever the tensor is."""
        there = values.to(self._device)
        dist.broadcast(there, self._first, group=self._group)
        if there is not values:
            values.copy_(there)

    def exchange(self, numbers: list[int]) -> list[int]:
        """The first rank's numbers; the others' are only as many."""
        tensor = torch.tensor(numbers, dtype=torch.int64)
        self.broadcast(tensor)
        return tensor.tolist()

    def share(self, ranges: list[tuple[int, int]]) -> None:
        """The first rank's parameters in these ranges, for all."""
        for begin, end in ranges:
            for piece, _ in self._storage.overlaps(begin, end):
                self.broadcast(piece)


class FirstRank:
    """In the place of a `Replica`, on the rank that has one."""

    is_due = False  # parameters are looked after here, so that the others hear of what is wrong

    def __init__(self, storage: Storage, group: Any) -> None:
        self._ranks, self._storage = _Ranks(storage, group), storage
        self._changed: list[tuple[int, int]] = []
        self._native: Any = None

    def store(self, begin: int, end: int) -> None:
        """What the replica has changed; to be given to it as `store`."""
        if not self._storage.direct:
            self._storage.store(begin, end)
        self._changed.append((begin, end))

    def join(self, make: Any) -> None:
        """`make` makes the replica."""
        self._native = self._or_fail(make)
        self._changed = [(0, self._storage.values.numel())]
        self._tell()

    def after_step(self, loss: Optional[float], tokens: int) -> bool:
        self._or_fail(lambda: self._step(loss, tokens))
        self._tell()
        return self._native.running

    def _step(self, loss: Optional[float], tokens: int) -> None:
        if self._native.is_due:
            self._storage.check()
        self._native.after_step(loss, tokens)

    def average_gradients(self, gradients: torch.Tensor, tokens: int) -> None:
        self._or_fail(lambda: self._native.average_gradients(gradients, tokens))
        self._ranks.exchange([0] * _LENGTH)
        self._ranks.broadcast(gradients)

    def copy_global(self, out: torch.Tensor) -> None:
        self._native.copy_global(out)
        self._ranks.broadcast(out)

    def _or_fail(self, work: Any) -> Any:
        """The others must not wait for a rank that has an exception."""
        try:
            return work()
        except BaseException:
            self._ranks.exchange([_FAILED] + [0] * (_LENGTH - 1))
            raise

    def _tell(self) -> None:
        ranges = merged(self._changed)
        self._changed = []
        flat = [number for pair in ranges for number in pair]
        flags = [int(getattr(self._native, name)) for name in _FLAGS]
        place = [self._native.step, *self._native.rank]
        self._ranks.exchange([len(ranges), *flags, *place, *flat, *[0] * (2 * _MOST_RANGES - len(flat))])
        self._ranks.share(ranges)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)


class OtherRank:
    """In the place of a `Replica`, on a rank that hears from the first one."""

    leaves = ""
    is_due = False

    def __init__(self, storage: Storage, group: Any) -> None:
        self._ranks = _Ranks(storage, group)
        self._hear()

    def after_step(self, loss: Optional[float], tokens: int) -> bool:
        if not self.running:
            raise ConfigError("after_step: the run is over for this replica; leave the loop when it returns False")
        self._hear()
        return self.running

    def average_gradients(self, gradients: torch.Tensor, tokens: int) -> None:
        self._check(self._ranks.exchange([0] * _LENGTH))
        self._ranks.broadcast(gradients)

    def copy_global(self, out: torch.Tensor) -> None:
        self._ranks.broadcast(out)

    def save(self) -> bytes:
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

    def _check(self, heard: list[int]) -> None:
        if heard[0] == _FAILED:
            raise NetworkError("the first rank of this site has failed; its own message says why")

    def _hear(self) -> None:
        heard = self._ranks.exchange([0] * _LENGTH)
        self._check(heard)
        for name, value in zip(_FLAGS, heard[1:]):
            setattr(self, name, bool(value))
        self.step, *rank = heard[1 + len(_FLAGS) : 4 + len(_FLAGS)]
        self.rank = tuple(rank)
        flat = heard[4 + len(_FLAGS) :]
        self._ranks.share([(flat[2 * i], flat[2 * i + 1]) for i in range(heard[0])])
