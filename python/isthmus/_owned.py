"""Parameters that only some ranks of a site have, as with expert parallelism; the other parameters are on all ranks."""

from __future__ import annotations

import math
import re
from typing import Any, Mapping, Optional

import torch
import torch.distributed as dist

from ._native import ConfigError
from ._placement import Placement
from ._storage import Storage, is_buffer, keep_known

Tensor = torch.Tensor


class Elsewhere:
    """Stands for a parameter that this rank does not have."""

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype) -> None:
        self.shape, self.dtype = torch.Size(shape), dtype


class Layout:
    """The parameters of all ranks of a site, and which ranks have them. Made by all ranks together.

    Raises:
        ConfigError: ranks have different parameters of one name, or shards of DTensor besides parameters of one rank.
    """

    def __init__(self, parameters: Mapping[str, Tensor], group: Any) -> None:
        here = {
            name: (tuple(p.shape), p.dtype, hasattr(p, "to_local"), is_buffer(p))
            for name, p in parameters.items()
        }
        found: list[Any] = [None] * dist.get_world_size(group)
        dist.all_gather_object(found, here, group=group)
        self.holders: dict[str, list[int]] = {}
        """ranks in the group, by name"""
        for rank, names in enumerate(found):
            for name, what in names.items():
                first = self.holders.setdefault(name, [rank])[0]
                if found[first][name] != what:
                    raise ConfigError(
                        f"parameter {name} has shape {list(what[0])} and {what[1]} on rank {rank} of the site, and "
                        f"{list(found[first][name][0])} and {found[first][name][1]} on rank {first}; expected the same, "
                        "or different names"
                    )
                if first != rank:
                    self.holders[name].append(rank)
        self.is_uniform = all(len(ranks) == len(found) for ranks in self.holders.values())
        """all ranks have all parameters"""
        sharded = [name for names in found for name, what in names.items() if what[2]]
        if not self.is_uniform and sharded:
            alone = next(name for name, ranks in self.holders.items() if len(ranks) < len(found))
            raise ConfigError(
                f"parameter {alone} is on ranks {self.holders[alone]} of the site only, and {sharded[0]} is sharded over "
                "several ranks; expected either kind alone"
            )
        self.buffers = {name for names in found for name, what in names.items() if what[3]}
        """names that are no parameters but averaged buffers"""
        self.parameters: dict[str, Any] = {
            name: parameters[name] if name in parameters else Elsewhere(*found[self.holders[name][0]][name][:2])
            for name in merged([list(names) for names in found])
        }


def merged(orders: list[list[str]]) -> list[str]:
    """All names in one order, which is that of a process with all of them, however they are divided among ranks.

    Names that only one list has stay between their neighbours that others have; among several such, lower numbers come
    first: `experts.0` of a second rank before `experts.1` of the first one.
    """
    out: list[str] = []
    for order in orders:
        known = set(out)
        begin, block = 0, list[str]()
        for name in [*order, None]:
            if name is not None and name not in known:
                block.append(name)
                continue
            end = len(out) if name is None else out.index(name)
            if block:
                later = (i for i in range(begin, end) if _numbered(out[i]) > _numbered(block[0]))
                at = next(later, end)
                out[at:at] = block
                end += len(block)
                block = []
            begin = end + 1
    return out


def _numbered(name: str) -> list[tuple[int, str]]:
    """Sorts numbers in a name by their values."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


class OwnedStorage(Storage):
    """Parameters stay where they are. Methods that move values are collective: every rank of the site calls them.

    The first rank has the fp32 values of the whole buffer in host memory. It gets a tensor from the first of its ranks
    and sends it to all of them, one tensor at a time.
    """

    sharded = True

    def __init__(self, model: torch.nn.Module, layout: Layout, placement: Placement, group: Any) -> None:
        self._all, self._holders, self._group = layout.parameters, layout.holders, group
        self._rank = dist.get_rank(group)
        here = {name: p for name, p in layout.parameters.items() if not isinstance(p, Elsewhere)}
        super().__init__(model, here, placement, self._rank == 0)

    def _lay_out(self) -> None:
        """For `keep` and `put_back`, which need no flat tensors."""
        here = [(begin, self._mine(name)) for name, _, begin in self._placement.tensors]
        self._pieces = [(begin, mine) for begin, mine in here if mine is not None]

    def fetch(self, begin: int, end: int) -> None:
        for name, low, high, part in self.touched(begin, end):
            full = self.to_first(name, self._mine(name))
            if full is not None:
                keep_known(full.reshape(-1)[part], self.values[low:high])
        self._wait()

    def store(self, begin: int, end: int) -> None:
        for name, low, high, part in self.touched(begin, end):
            full: Optional[Tensor] = None
            if high - low < math.prod(self._all[name].shape):
                full = self.to_first(name, self._mine(name))
            if self.whole:
                if full is None:
                    full = torch.empty(self._all[name].shape, dtype=self._all[name].dtype)
                full = full.contiguous()
                full.view(-1)[part] = self.values[low:high].to(full)
            self.from_first(name, full, self._mine(name))
        self._wait()

    def put(self, values: Tensor) -> None:
        """Puts the first rank's `values` into the model; on the other ranks `values` is empty."""
        for name, shape, begin in self._placement.tensors:
            full = values[begin : begin + math.prod(shape)].view(shape) if self.whole else None
            self.from_first(name, full, self._mine(name))

    def own_values(self) -> dict[str, Tensor]:
        """Collective; empty on all ranks but the first."""
        found = {name: self.to_first(name, self._mine(name)) for name in self._all}
        return {name: full.to("cpu", copy=True) for name, full in found.items() if full is not None}

    def whole_state(self, module: torch.nn.Module) -> dict[str, Tensor]:
        """The first rank's state dict of the module, with the parameters that it does not have."""
        own = self.own_values()
        return {**{name: tensor.cpu() for name, tensor in module.state_dict().items()}, **own} if self.whole else {}

    def gather_gradients(self) -> Tensor:
        out = torch.zeros_like(self.values)
        for name, shape, begin in self._placement.tensors:
            full = self.to_first(name, self._gradient(name))
            if full is not None:
                out[begin : begin + math.prod(shape)] = full.reshape(-1)
        return out

    def scatter_gradients(self, values: Tensor) -> None:
        for name, shape, begin in self._placement.tensors:
            full = values[begin : begin + math.prod(shape)].view(shape) if self.whole else None
            gradient = self._gradient(name)
            self.from_first(name, full, gradient)
            if gradient is not None:
                self._set_gradient(name, gradient)

    def _mine(self, name: str) -> Optional[Tensor]:
        return self._parameters[name].detach() if name in self._parameters else None

    def _gradient(self, name: str) -> Optional[Tensor]:
        """Zero for an expert that no token has reached; None for a tensor of other ranks."""
        if name not in self._parameters:
            return None
        gradient = super()._gradient(name)
        return torch.zeros_like(self._parameters[name]) if gradient is None else gradient

    # ---- between ranks ----

    def to_first(self, name: str, mine: Optional[Tensor]) -> Optional[Tensor]:
        source = self._holders[name][0]
        if source == 0:
            return mine if self.whole else None
        if self._rank == source:
            assert mine is not None
            dist.send(mine.to(self._all[name].dtype).contiguous(), self._global(0), group=self._group)
        if not self.whole:
            return None
        there = torch.empty(self._all[name].shape, dtype=self._all[name].dtype, device=self.device)
        dist.recv(there, self._global(source), group=self._group)
        return there

    def from_first(self, name: str, full: Optional[Tensor], into: Optional[Tensor]) -> None:
        for rank in self._holders[name]:
            if rank == 0 and full is not None and into is not None:
                into.copy_(full)
            elif rank != 0 and full is not None:
                dist.send(full.to(self.device, self._all[name].dtype).contiguous(), self._global(rank), group=self._group)
            elif rank != 0 and rank == self._rank and into is not None:
                there = torch.empty(into.shape, dtype=self._all[name].dtype, device=into.device)
                dist.recv(there, self._global(0), group=self._group)
                into.copy_(there)

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank)
