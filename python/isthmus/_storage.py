"""The parameters of a module, and buffers that are averaged, in one flat memory; transparent to module and optimizer."""

from __future__ import annotations

import fnmatch
import math
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

import torch

from ._native import ConfigError
from ._placement import Placement, plain_name

Tensor = torch.Tensor


def local_tensor(parameter: Tensor) -> Tensor:
    """The local part of a parameter: all of it, or this rank's shard (FSDP2's DTensor)."""
    return parameter.to_local() if hasattr(parameter, "to_local") else parameter


def reshard(model: torch.nn.Module) -> None:
    """Restores the shards of FSDP2: a forward pass alone may leave gathered parameters instead of them."""
    for module in model.modules():
        if hasattr(module, "reshard") and hasattr(module, "unshard"):
            module.reshard()  # type: ignore[operator]


def parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """Each trained parameter, once, by its plain name."""
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ConfigError(
            "the model is wrapped by FullyShardedDataParallel, which hides its parameters; expected fully_shard (FSDP2)"
        )
    reshard(model)
    found: dict[str, torch.nn.Parameter] = {}
    seen: dict[tuple, str] = {}
    for name, parameter in model.named_parameters():  # yields tied parameters once
        name = plain_name(name)
        if not parameter.requires_grad:
            continue
        if torch.nn.parameter.is_lazy(parameter):
            raise ConfigError(f"parameter {name} has no shape yet: run the model once before the loop is made")
        if not parameter.is_floating_point() or parameter.dtype not in (torch.float32, torch.bfloat16):
            raise ConfigError(f"parameter {name} has dtype {parameter.dtype}; expected torch.float32 or torch.bfloat16")
        local = local_tensor(parameter)
        place = (local.device, local.untyped_storage().data_ptr(), local.storage_offset(), tuple(local.shape))
        if local.numel() > 0 and place in seen:
            continue  # two parameters share memory: tied by hand
        if local.numel() > 0:
            seen[place] = name
        found[name] = parameter
    if not found:
        raise ConfigError("the model has no parameter that is trained (requires_grad)")
    return found


def whole_parameters_of(model: torch.nn.Module) -> dict[str, torch.nn.Parameter]:
    """The same for a model that is not sharded. Raises ConfigError for a sharded one."""
    found = parameters_of(model)
    for name, parameter in found.items():
        if hasattr(parameter, "to_local"):
            raise ConfigError(f"parameter {name} is sharded over several ranks; expected whole ones before fully_shard")
    return found


def is_buffer(tensor: object) -> bool:
    return not isinstance(tensor, torch.nn.Parameter)


def buffers_of(model: torch.nn.Module, patterns: Sequence[str]) -> dict[str, Tensor]:
    """Buffers with plain names that match a pattern. Raises ConfigError for patterns without a buffer, or for integers."""
    if isinstance(patterns, str):
        raise ConfigError(f"buffers is the text {patterns!r}; expected a list of patterns")
    here = {plain_name(name): buffer for name, buffer in model.named_buffers()}
    found = {n: buffer for n, buffer in here.items() if any(fnmatch.fnmatchcase(n, p) for p in patterns)}
    for pattern in patterns:
        if not fnmatch.filter(found, pattern):
            raise ConfigError(f"buffers: no buffer of the model matches {pattern}; it has {', '.join(here) or 'none'}")
    for name, buffer in found.items():
        if buffer.dtype not in (torch.float32, torch.bfloat16):
            raise ConfigError(f"buffer {name} has dtype {buffer.dtype}; expected torch.float32 or torch.bfloat16")
    return found


def alone(model: torch.nn.Module, parameters: Mapping[str, Tensor], placement: Placement) -> Storage:
    """The storage of a process that is a site by itself."""
    for name, parameter in parameters.items():
        if hasattr(parameter, "to_local"):
            raise ConfigError(
                f"parameter {name} is sharded over several ranks; expected their process group as `group`, and the loop on "
                "all of them"
            )
    return Storage(model, parameters, placement)


def keep_known(now: Tensor, values: Tensor) -> None:
    """Copies elements of the model, `now`, to their fp32 `values` in host memory.

    A bf16 value that still equals its rounded fp32 master leaves the master unchanged. So the changes of outer steps
    below bf16's precision are kept until the inner optimizer changes the element.
    """
    if now.dtype == torch.float32:
        values.copy_(now, non_blocking=True)
    else:
        now = now.to("cpu")
        values.copy_(torch.where(now == values.to(now.dtype), values, now.float()))


class Storage:
    """Parameters as views into flat memory, and the fp32 values in host memory that the outer loop works on.

    On a CPU in fp32 they are the same memory. Otherwise `fetch` and `store` copy ranges: to and from another device on
    its current stream, and only that stream is waited for; for bf16, to and from a master in fp32. `parameters` include
    the averaged buffers.
    """

    sharded = False

    def __init__(
        self,
        model: torch.nn.Module,
        parameters: Mapping[str, Tensor],
        placement: Placement,
        first: bool = True,
    ):
        self._model = model
        self._parameters = dict(parameters)
        self._placement = placement
        self._frozen = {plain_name(n) for n, p in model.named_parameters() if not p.requires_grad}
        kinds = {(local_tensor(p).device, p.dtype) for p in parameters.values()}
        self._one_kind = len(kinds) == 1
        self.device, self.dtype = min(kinds, key=str)
        self._gpus = {device for device, _ in kinds if device.type == "cuda"}
        self.direct = kinds == {(torch.device("cpu"), torch.float32)} and not self.sharded
        self.whole = first or self.direct
        """`values` are on this rank; otherwise only on the first rank of the site"""
        self.values = torch.zeros(placement.size if self.whole else 0, dtype=torch.float32)
        """fp32 in host memory, [elements of the buffer]"""
        if self._gpus and self.whole:
            self.values = self.values.pin_memory()
        # (first element, one-dimensional tensor on its device), in order
        self._pieces: list[tuple[int, Tensor]] = []
        self._lay_out()
        if not self.direct and (self.whole or self.sharded):
            self.fetch(0, self._placement.size)
        self._places = {name: self._place_of(p) for name, p in self._parameters.items()}
        self._agreed: dict[str, Tensor] = {}
        """fp32 values of the averaged buffers that all replicas share, during the warm-up"""

    @property
    def here(self) -> Mapping[str, Tensor]:
        """The parameters and averaged buffers that this rank has, by name."""
        return self._parameters

    @property
    def size(self) -> int:
        """Elements of the buffer."""
        return self._placement.size

    @property
    def moves(self) -> tuple[Optional[Callable[[int, int], None]], Optional[Callable[[int, int], None]]]:
        """`fetch` and `store`; None if there is nothing to copy."""
        return (None, None) if self.direct else (self.fetch, self.store)

    def room(self) -> Tensor:
        """Zeros for fp32 values of the whole buffer, in host memory; empty if another rank scatters the values."""
        return torch.zeros(0 if self.sharded and not self.whole else self.size, dtype=torch.float32)

    def _lay_out(self) -> None:
        if self._one_kind:
            self._move_into_one()
        else:
            self._take_as_they_are()

    def _move_into_one(self) -> None:
        flat = self.values if self.direct else torch.zeros(self._placement.size, dtype=self.dtype, device=self.device)
        with torch.no_grad():
            for name, shape, begin in self._placement.tensors:
                parameter = self._parameters[name]
                view = flat[begin : begin + math.prod(shape)].view(shape)
                view.copy_(parameter)
                self._retie(parameter, view)
        self._pieces = [(0, flat)]

    def _retie(self, parameter: Tensor, view: Tensor) -> None:
        """Points a parameter, and others that share its memory, to `view`. Keeps the objects, for the optimizer."""
        storage, shape = parameter.untyped_storage().data_ptr(), parameter.shape
        for other in self._model.parameters():
            same = other.untyped_storage().data_ptr() == storage and other.shape == shape
            if other is not parameter and same and other.storage_offset() == parameter.storage_offset():
                other.data = view
        parameter.data = view

    def _take_as_they_are(self) -> None:
        for name, _, begin in self._placement.tensors:
            parameter = self._parameters[name].detach()
            if not parameter.is_contiguous():
                raise ConfigError(f"parameter {name} is not contiguous; expected contiguous parameters here")
            if parameter.numel() > 0:
                self._pieces.append((begin, parameter.view(-1)))

    # ---- copying values ----

    def pieces(self, begin: int, end: int) -> Iterator[tuple[Tensor, slice]]:
        """One-dimensional parts of the model's memory with elements [begin, end), and their slices of the buffer."""
        for first, piece in self._pieces:
            low, high = max(begin, first), min(end, first + piece.numel())
            if low < high:
                yield piece[low - first : high - first], slice(low, high)

    def touched(self, begin: int, end: int) -> Iterator[tuple[str, int, int, slice]]:
        """Tensors with elements in [begin, end): these elements in the buffer, and in the flattened tensor."""
        for name, shape, first in self._placement.tensors:
            low, high = max(begin, first), min(end, first + math.prod(shape))
            if low < high:
                yield name, low, high, slice(low - first, high - first)

    def to_first(self, name: str, mine: Optional[Tensor]) -> Optional[Tensor]:
        """The whole of a tensor that is divided as the parameter is, on the first rank; None on the others."""
        return mine if self.whole else None

    def from_first(self, name: str, full: Optional[Tensor], into: Optional[Tensor]) -> None:
        """Copies the first rank's `full` into a tensor that is divided as the parameter is. The others pass None."""
        if full is not None and into is not None:
            into.copy_(full)

    def fetch(self, begin: int, end: int) -> None:
        """Copies elements [begin, end) of the model to `values`."""
        with torch.no_grad():
            for piece, place in self.pieces(begin, end):
                keep_known(piece, self.values[place])
        self._wait()

    def store(self, begin: int, end: int) -> None:
        """Copies elements [begin, end) of `values` to the model."""
        with torch.no_grad():
            for piece, place in self.pieces(begin, end):
                piece.copy_(self.values[place], non_blocking=True)
        self._wait()

    def _wait(self) -> None:
        for gpu in self._gpus:
            torch.cuda.current_stream(gpu).synchronize()

    # ---- changes to the model ----

    def check(self) -> None:
        """Raises ConfigError unless the parameters are still those with which the loop was made."""
        here: dict[str, Tensor] = {plain_name(name): p for name, p in self._model.named_parameters()}
        buffers = {plain_name(name): buffer for name, buffer in self._model.named_buffers()}
        for name, parameter in self._parameters.items():
            what = "buffer" if is_buffer(parameter) else "parameter"
            if not is_buffer(parameter) and not parameter.requires_grad:
                raise ConfigError(f"parameter {name} was frozen after the loop was made; freeze it before")
            if (buffers if is_buffer(parameter) else here).get(name) is not parameter:
                raise ConfigError(f"{what} {name} was replaced or removed after the loop was made")
            if self._place_of(parameter) != self._places[name]:
                raise ConfigError(
                    f"{what} {name} no longer lies in the loop's memory: model.to(), .half() or load_state_dict("
                    "assign=True) after the loop was made; do that before, or copy values in place"
                )
        for name, parameter in here.items():
            if name in self._parameters or not parameter.requires_grad:
                continue
            if any(parameter is known for known in self._parameters.values()):
                continue
            if not self.sharded and self._place_of(parameter) in self._places.values():  # tied
                continue
            what = "unfrozen" if name in self._frozen else "added"
            raise ConfigError(f"parameter {name} was {what} after the loop was made; make the loop after it")

    def _place_of(self, tensor: Tensor) -> Any:
        """The same value as long as the tensor may stay in the loop."""
        return local_tensor(tensor).data_ptr()

    # ---- temporary values ----

    def keep(self) -> list[Tensor]:
        """A copy of the model's current values."""
        with torch.no_grad():
            return [piece.clone() for _, piece in self._pieces]

    def put(self, values: Tensor) -> None:
        """Copies values (fp32, host, the whole buffer) into the model."""
        with torch.no_grad():
            for first, piece in self._pieces:
                piece.copy_(values[first : first + piece.numel()])

    def put_back(self, before: list[Tensor]) -> None:
        """Restores values returned by `keep`."""
        with torch.no_grad():
            for (_, piece), values in zip(self._pieces, before):
                piece.copy_(values)

    def own_values(self) -> dict[str, Tensor]:
        """A copy of the model's current values by name, whole and in host memory, in the parameters' dtypes."""
        return {name: parameter.detach().to("cpu", copy=True) for name, parameter in self._parameters.items()}

    def whole_state(self, module: torch.nn.Module) -> dict[str, Tensor]:
        """The module's state dict, whole and in host memory."""
        return self._whole(module.state_dict())

    def _whole(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return {name: tensor.cpu() for name, tensor in tensors.items()}

    # ---- the synchronous warm-up ----

    def agree_on_buffers(self) -> None:
        """Call before the first warm-up step: all replicas have the same values now."""
        self._agreed = {n: b.detach().float().clone() for n, b in self._parameters.items() if is_buffer(b)}

    def gather_gradients(self) -> Tensor:
        """All gradients, fp32 in host memory, [elements of the buffer]; zero without a gradient.

        For averaged buffers, their changes since the last call of `scatter_gradients`.
        """
        out = torch.zeros_like(self.values)
        for name, shape, begin in self._placement.tensors:
            gradient = self._gradient(name)
            if gradient is not None:
                out[begin : begin + math.prod(shape)].copy_(gradient.reshape(-1))
        return out

    def scatter_gradients(self, values: Tensor) -> None:
        """Replaces all gradients with these values, and the changes of averaged buffers."""
        for name, shape, begin in self._placement.tensors:
            self._set_gradient(name, values[begin : begin + math.prod(shape)].view(shape))

    def _gradient(self, name: str) -> Optional[Tensor]:
        parameter = self._parameters[name]
        return parameter.detach() - self._agreed[name] if is_buffer(parameter) else parameter.grad

    def _set_gradient(self, name: str, values: Tensor) -> None:
        parameter = self._parameters[name]
        if is_buffer(parameter):
            self._agreed[name] += values.to(self._agreed[name])
            parameter.copy_(self._agreed[name])
            return
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad.copy_(values)
