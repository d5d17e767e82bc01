"""Batches of a data set by the run's ledger."""

from __future__ import annotations

from typing import Iterator

import torch

from ._native import ConfigError
from .loop import OuterLoop


class Batches(torch.utils.data.Sampler[list[int]]):
    """Endless batches of indices for `DataLoader(data, batch_sampler=Batches(loop, len(data), batch=8))`.

    The indices are those of `OuterLoop.next_samples`, and end with the run. The loader may fetch ahead, and use worker
    processes: each `after_step` counts the oldest batches. On a site with several ranks each has its part of a batch.

    Args:
        size: samples of the data set, which all replicas have.
        batch: samples of a batch of one rank.
        accumulate: batches of one step, with gradient accumulation.

    Raises:
        ConfigError: a number is not positive.
    """

    def __init__(self, loop: OuterLoop, size: int, batch: int, accumulate: int = 1) -> None:
        if min(size, batch, accumulate) < 1:
            raise ConfigError(f"Batches: size {size}, batch {batch}, accumulate {accumulate}; expected at least 1 each")
        self._loop, self._size, self._batch = loop, size, batch
        self._rank, self._ranks = loop.site_rank
        loop.samples = batch * accumulate * self._ranks

    def __iter__(self) -> Iterator[list[int]]:
        while self._loop.running:
            indices = self._loop.next_samples(self._batch * self._ranks, self._size)
            yield indices[self._rank :: self._ranks]
