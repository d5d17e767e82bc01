"""The state that a loop saves and resumes from."""

from __future__ import annotations

from typing import Any, Mapping, Optional

import torch

from ._native import ConfigError, DataError
from ._storage import Storage

STATE_VERSION = 2


def bytes_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8) if data else torch.zeros(0, dtype=torch.uint8)


def restore_master(storage: Storage, state: Optional[Mapping[str, Any]]) -> None:
    """Restores the fp32 values of parameters in another format."""
    if state is None:
        return
    if state is True or not hasattr(state, "get") or not isinstance(state.get("replica"), torch.Tensor):
        raise ConfigError("resume is not a result of OuterLoop.state_dict(); load the saved one and pass it")
    if state.get("version") != STATE_VERSION:
        raise DataError(f"resume: the state dict has version {state.get('version')}; expected {STATE_VERSION}")
    if storage.direct or not storage.whole:
        return
    values = state.get("values")
    if not isinstance(values, torch.Tensor) or values.dtype != torch.float32 or values.numel() != storage.size:
        raise DataError("resume: the state dict is of a model with other names, shapes or fragments")
    storage.values.copy_(values)
