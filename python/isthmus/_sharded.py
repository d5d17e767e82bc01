"""Parameters that lie in shards on the ranks of a site (`fully_shard`, FSDP2), and whole at its first rank."""

from __future__ import annotations

import math
from typing import Any, Iterator, Mapping

import torch
import torch.distributed as dist
from torch.distributed.tensor import distribute_tensor

from ._native import ConfigError
from ._placement import Placement
from ._storage import Storage, keep_known, local_tensor

Tensor = torch.Tensor


class ShardedStorage(Storage):
    """Parameters stay where they are. All that carries values over is collective: every rank of the site calls it.

    The first rank has the fp32 values of the whole buffer in host memory; on the others `values` is empty. A tensor is
    gathered and scattered whole, one after the other, so beside the shards no more than one lies on a device.
    """

    sharded = True

    def __init__(
        self, model: torch.nn.Module, parameters: Mapping[str, torch.nn.Parameter], placement: Placement, group: Any
    ) -> None:
        for name, parameter in parameters.items():
            _check_mesh(name, parameter, group)
        self._group = group
        self._first = dist.get_global_rank(group, 0)
        self.whole = dist.get_rank(group) == 0
        self._reshard(model)
        super().__init__(model, parameters, placement)

    def _lay_out(self) -> None:
        pass

    def fetch(self, begin: int, end: int) -> None:
        self._reshard(self._model)
        for parameter, low, high, part in self._touched(begin, end):
            full = self._gathered(parameter.detach())
            if self.whole:
                keep_known(full.reshape(-1)[part], self.values[low:high])
        self._wait()

    def store(self, begin: int, end: int) -> None:
        self._reshard(self._model)
        for parameter, low, high, part in self._touched(begin, end):
            partly = high - low < parameter.numel()
            full = self._gathered(parameter.detach()) if partly else None
            if self.whole:
                full = torch.empty(parameter.shape, dtype=parameter.dtype) if full is None else full
                full.view(-1)[part] = self.values[low:high].to(full)
            self._scatter(full, parameter)

    def check(self) -> None:
        self._reshard(self._model)
        super().check()

    def swap_in(self, values: Tensor) -> list[Tensor]:
        """`values` of the first rank count; the others' are empty."""
        self._reshard(self._model)
        before = [local_tensor(p).detach().clone() for p in self._parameters.values()]
        for name, shape, begin in self._placement.tensors:
            parameter = self._parameters[name]
            full = values[begin : begin + math.prod(shape)].view(shape).to(parameter.dtype) if self.whole else None
            self._scatter(full, parameter)
        return before

    def swap_out(self, before: list[Tensor]) -> None:
        self._reshard(self._model)
        with torch.no_grad():
            for parameter, values in zip(self._parameters.values(), before):
                local_tensor(parameter).copy_(values)

    def gather_gradients(self) -> Tensor:
        out = torch.zeros_like(self.values)
        for name, shape, begin in self._placement.tensors:
            gradient = self._parameters[name].grad
            if gradient is None:
                continue
            full = self._gathered(gradient)
            if self.whole:
                out[begin : begin + math.prod(shape)] = full.reshape(-1)
        return out

    def scatter_gradients(self, values: Tensor) -> None:
        for name, shape, begin in self._placement.tensors:
            parameter = self._parameters[name]
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            self._scatter(values[begin : begin + math.prod(shape)].view(shape) if self.whole else None, parameter.grad)

    def _touched(self, begin: int, end: int) -> Iterator[tuple[torch.nn.Parameter, int, int, slice]]:
        """Parameters with elements in [begin, end): those elements in the buffer, and in the flattened tensor."""
        for name, shape, first in self._placement.tensors:
            low, high = max(begin, first), min(end, first + math.prod(shape))
            if low < high:
                yield self._parameters[name], low, high, slice(low - first, high - first)

    @staticmethod
    def _gathered(tensor: Tensor) -> Tensor:
        """All of it, on every rank."""
        return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor.clone()

    def _scatter(self, full: Any, into: Tensor) -> None:
        """`full` of the first rank to all, each its own part of it; the others give None."""
        with torch.no_grad():
            local = local_tensor(into)
            if full is None:
                full = torch.empty(into.shape, dtype=local.dtype, device=local.device)
            full = full.to(device=local.device, dtype=local.dtype).contiguous()
            if hasattr(into, "device_mesh"):
                local.copy_(distribute_tensor(full, into.device_mesh, into.placements).to_local())
            else:
                dist.broadcast(full, self._first, group=self._group)
                local.copy_(full)

    @staticmethod
    def _reshard(model: torch.nn.Module) -> None:
        """A forward pass alone may leave gathered parameters behind, which would hide what happens to the shards."""
        for module in model.modules():
            if hasattr(module, "reshard") and hasattr(module, "unshard"):
                module.reshard()


def _check_mesh(name: str, parameter: Tensor, group: Any) -> None:
    if not hasattr(parameter, "device_mesh"):
        return
    mesh = parameter.device_mesh
    ranks, here = mesh.mesh.flatten().tolist(), dist.get_process_group_ranks(group)
    if ranks != here:
        raise ConfigError(
            f"parameter {name} is sharded over ranks {ranks}, and the group of this site has {here}; expected the same "
            "ones in the same order"
        )
