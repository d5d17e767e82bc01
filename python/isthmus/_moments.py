"""Moments of the inner optimizer. A replica that joins a run copies those of a replica that is in it."""

from __future__ import annotations

from typing import Any, Iterator, Mapping, Optional, Sequence, Tuple, Union

import torch

from ._native import ConfigError
from ._storage import Storage, is_buffer

Tensor = torch.Tensor
Keys = Tuple[str, Optional[str]]
Optimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]

# Names of the first and the second moment in the optimizer's state.
_KEYS: dict[str, Keys] = {
    "Adam": ("exp_avg", "exp_avg_sq"),
    "AdamW": ("exp_avg", "exp_avg_sq"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "Muon": ("momentum_buffer", None),
    "SGD": ("momentum_buffer", None),
}


class Moments:
    """The moments of the parameters of a storage, on each rank of a site.

    `give` and `take` are collective if the storage is sharded: every rank of the site calls them.

    Raises:
        ConfigError: the optimizer's moments are not known, or a parameter is in no optimizer.
    """

    def __init__(self, optimizers: Optimizers, keys: Optional[Keys], storage: Storage) -> None:
        self._storage = storage
        self._optimizers = [optimizers] if isinstance(optimizers, torch.optim.Optimizer) else list(optimizers)
        keys_by = {id(optimizer): keys or keys_of(optimizer) for optimizer in self._optimizers}
        owners: dict[int, torch.optim.Optimizer] = {}
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                owners.update((id(parameter), optimizer) for parameter in group["params"])
        self._of: dict[str, tuple[Tensor, torch.optim.Optimizer, Keys]] = {}
        for name, parameter in storage.here.items():
            if is_buffer(parameter):
                continue
            if id(parameter) not in owners:
                raise ConfigError(f"parameter {name} is in no parameter group of the optimizer given to the loop")
            owner = owners[id(parameter)]
            known = keys_by[id(owner)]
            if known is None:
                raise ConfigError(
                    f"the moments of {type(owner).__name__} are not known; expected moment_keys, the names of its first "
                    'and second moment in the optimizer\'s state, such as ("exp_avg", "exp_avg_sq") or ("velocity", None)'
                )
            self._of[name] = (parameter, owner, known)

    @property
    def steps(self) -> int:
        """Inner steps behind the moments, for bias correction; 1 for optimizers that do not count."""
        found = [int(state["step"]) for state in self._states() if "step" in state]
        return min(found, default=1)

    def set_steps(self, steps: int) -> None:
        for state in self._states():
            if isinstance(state.get("step"), Tensor):
                state["step"].fill_(steps)
            elif "step" in state:
                state["step"] = steps

    def give(self, begin: int, end: int, which: int) -> Tensor:
        """The first (0) or second (1) moment of elements [begin, end), fp32 in host memory; only right on the first rank."""
        out = torch.zeros(end - begin)
        for name, low, high, part in self._storage.touched(begin, end):
            full = self._storage.to_first(name, self._tensors(name)[which])
            if full is not None:
                out[low - begin : high - begin].copy_(full.reshape(-1)[part])
        return out

    def take(self, begin: int, end: int, first: Optional[Tensor], second: Optional[Tensor]) -> None:
        """Replaces both moments of elements [begin, end) by the first rank's values; the others pass None."""
        self._begin_state()
        for name, low, high, part in self._storage.touched(begin, end):
            for values, tensor in zip((first, second), self._tensors(name)):
                full = self._storage.to_first(name, tensor)  # all of it: the range may have a part of the tensor
                if full is not None and values is not None:
                    full = full.detach().clone(memory_format=torch.contiguous_format)
                    full.view(-1)[part] = values[low - begin : high - begin].to(full)
                self._storage.from_first(name, full, tensor)

    def tensors(self, begin: int, end: int) -> Iterator[Tensor]:
        """The moments that this rank has of tensors with elements in [begin, end)."""
        for name, *_ in self._storage.touched(begin, end):
            yield from (tensor for tensor in self._tensors(name) if tensor is not None)

    def _states(self) -> Iterator[dict[str, Any]]:
        for parameter, optimizer, _ in self._of.values():
            if parameter in optimizer.state:
                yield optimizer.state[parameter]

    def _tensors(self, name: str) -> list[Optional[Tensor]]:
        """First and second moment; zeros before the first step. None on ranks without the tensor."""
        if name not in self._storage.here:
            return [None, None]
        if name not in self._of:
            return [torch.zeros_like(self._storage.here[name]) for _ in range(2)]
        parameter, optimizer, keys = self._of[name]
        state = optimizer.state.get(parameter, {})
        found = []
        for key in keys:
            moment = state.get(key) if key else None
            if moment is None:
                moment = torch.zeros_like(parameter)
            if moment.shape != parameter.shape:
                raise ConfigError(
                    f"{key} of parameter {name} has shape {list(moment.shape)} in the optimizer; expected that of the "
                    f"parameter, {list(parameter.shape)}"
                )
            found.append(moment.detach())
        return found

    def _begin_state(self) -> None:
        """Lets optimizers that have made no step make their state, by a step of zero gradients at learning rate 0."""
        for optimizer in self._optimizers:
            keys = [(p, key) for p, owner, names in self._of.values() if owner is optimizer for key in names if key]
            if all(key in optimizer.state.get(parameter, {}) for parameter, key in keys):
                continue
            parameters = [p for group in optimizer.param_groups for p in group["params"]]
            gradients = [p.grad for p in parameters]
            rates = [group["lr"] for group in optimizer.param_groups]
            for parameter in parameters:
                parameter.grad = torch.zeros_like(parameter)
            for group in optimizer.param_groups:
                group["lr"] = 0.0
            optimizer.step()
            for parameter, gradient in zip(parameters, gradients):
                parameter.grad = gradient
            for group, rate in zip(optimizer.param_groups, rates):
                group["lr"] = rate


def moments_of(
    optimizers: Optional[Optimizers], keys: Optional[Keys], storage: Storage, wanted: bool
) -> Optional[Moments]:
    """None without an optimizer, or if the run's replicas begin with fresh ones (`join.inner_state`)."""
    return Moments(optimizers, keys, storage) if optimizers is not None and wanted else None


def keys_of(optimizer: Any) -> Optional[Keys]:
    """None for an optimizer of a kind that is not known."""
    found = (_KEYS[kind.__name__] for kind in type(optimizer).__mro__ if kind.__name__ in _KEYS)
    return next(found, None)
