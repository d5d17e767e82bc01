"""Parameters that are sharded over the ranks of a site (`fully_shard`, FSDP2), with a whole copy at its first rank."""

from __future__ import annotations

import math
from typing import Any, Mapping, Optional

import torch
import torch.distributed as dist

from ._native import ConfigError
from ._placement import Placement
from ._storage import Storage, keep_known, local_tensor, reshard

try:
    from torch.distributed.tensor import distribute_tensor
except ImportError:  # before torch 2.5
    from torch.distributed._tensor import distribute_tensor

Tensor = torch.Tensor


class ShardedStorage(Storage):
    """Parameters stay where they are. Methods that move values are collective: every rank of the site calls them.

    The first rank has the fp32 values of the whole buffer in host memory; on the others `values` is empty. Tensors are
    gathered and scattered one at a time, so a device holds at most one whole tensor besides the shards.
    """

    sharded = True

    def __init__(
        self, model: torch.nn.Module, parameters: Mapping[str, Tensor], placement: Placement, group: Any
    ) -> None:
        for name, parameter in parameters.items():
            _check_mesh(name, parameter, group)
        self._group = group
        self._first = dist.get_global_rank(group, 0)
        super().__init__(model, parameters, placement, dist.get_rank(group) == 0)

    def _lay_out(self) -> None:
        pass

    def to_first(self, name: str, mine: Optional[Tensor]) -> Optional[Tensor]:
        full = self._gathered(mine)
        return full if self.whole else None

    def from_first(self, name: str, full: Optional[Tensor], into: Optional[Tensor]) -> None:
        self._scatter(full, into)

    def fetch(self, begin: int, end: int) -> None:
        reshard(self._model)
        for name, low, high, part in self.touched(begin, end):
            full = self.to_first(name, self._parameters[name].detach())
            if full is not None:
                keep_known(full.reshape(-1)[part], self.values[low:high])
        self._wait()

    def store(self, begin: int, end: int) -> None:
        reshard(self._model)
        for name, low, high, part in self.touched(begin, end):
            parameter = self._parameters[name]
            partly = high - low < parameter.numel()
            full = self._gathered(parameter.detach()) if partly else None
            if self.whole:
                full = torch.empty(parameter.shape, dtype=parameter.dtype) if full is None else full
                full.view(-1)[part] = self.values[low:high].to(full)
            self._scatter(full, parameter)

    def check(self) -> None:
        reshard(self._model)
        super().check()

    def _place_of(self, tensor: Tensor) -> Any:
        """Not the address: the first forward pass of torch 2.7 moves unevenly sharded parameters."""
        local = local_tensor(tensor)
        return (local.device, local.dtype, local.shape)

    def keep(self) -> list[Tensor]:
        reshard(self._model)
        return [local_tensor(p).detach().clone() for p in self._parameters.values()]

    def put(self, values: Tensor) -> None:
        """Puts the first rank's `values` into the model; on the other ranks `values` is empty."""
        for name, shape, begin in self._placement.tensors:
            parameter = self._parameters[name]
            full = values[begin : begin + math.prod(shape)].view(shape) if self.whole else None
            self._scatter(full, parameter)

    def put_back(self, before: list[Tensor]) -> None:
        reshard(self._model)
        with torch.no_grad():
            for parameter, values in zip(self._parameters.values(), before):
                local_tensor(parameter).copy_(values)

    def own_values(self) -> dict[str, Tensor]:
        reshard(self._model)
        return self._whole({name: parameter.detach() for name, parameter in self._parameters.items()})

    def whole_state(self, module: torch.nn.Module) -> dict[str, Tensor]:
        reshard(self._model)
        return super().whole_state(module)

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Collective; empty on all ranks but the first."""
        found = {}
        for name, tensor in tensors.items():
            full = self._gathered(tensor)
            if self.whole:
                found[name] = full.cpu()
        return found

    def gather_gradients(self) -> Tensor:
        out = torch.zeros_like(self.values)
        for name, shape, begin in self._placement.tensors:
            gradient = self._gradient(name)
            if gradient is None:
                continue
            full = self._gathered(gradient)
            if self.whole:
                out[begin : begin + math.prod(shape)] = full.reshape(-1)
        return out

    def scatter_gradients(self, values: Tensor) -> None:
        for name, shape, begin in self._placement.tensors:
            gradient = self._gradient(name)
            if gradient is None:
                gradient = torch.zeros_like(self._parameters[name])
            self._scatter(values[begin : begin + math.prod(shape)].view(shape) if self.whole else None, gradient)
            self._set_gradient(name, gradient)

    @staticmethod
    def _gathered(tensor: Any) -> Tensor:
        """The whole tensor, on every rank."""
        if not hasattr(tensor, "device_mesh"):
            return tensor.clone()
        if tensor.device.type != tensor.device_mesh.device_type:  # offloaded
            tensor = tensor.to(tensor.device_mesh.device_type)
        return tensor.full_tensor()

    def _scatter(self, full: Optional[Tensor], into: Any) -> None:
        """Scatters the first rank's `full`: each rank gets its part. The others pass None."""
        with torch.no_grad():
            local = local_tensor(into)
            mesh = getattr(into, "device_mesh", None)
            device = local.device if mesh is None else torch.device(mesh.device_type)
            if full is None:
                full = torch.empty(into.shape, dtype=local.dtype, device=device)
            full = full.to(device=device, dtype=local.dtype).contiguous()
            if mesh is None:
                dist.broadcast(full, self._first, group=self._group)
                local.copy_(full)
            else:
                local.copy_(local_tensor(distribute_tensor(full, mesh, into.placements)))


def _check_mesh(name: str, parameter: Any, group: Any) -> None:
    if not hasattr(parameter, "device_mesh"):
        return
    mesh = parameter.device_mesh
    ranks, here = mesh.mesh.flatten().tolist(), dist.get_process_group_ranks(group)
    if ranks != here:
        raise ConfigError(
            f"parameter {name} is sharded over ranks {ranks}, and the group of this site has {here}; expected the same "
            "ranks in the same order"
        )
