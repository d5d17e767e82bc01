"""A folder with a model, written by the module's own `save_pretrained` and replaced as a whole."""

from __future__ import annotations

import pathlib
from typing import Any, Callable, Optional

import torch

from ._native import ConfigError, DataError, ModelFolder


def saver_of(model: torch.nn.Module) -> Any:
    """The module that has `save_pretrained`, without the wrappers of `torch.compile` and DDP.

    Raises:
        ConfigError: it has none.
    """
    while not hasattr(model, "save_pretrained"):
        if isinstance(getattr(model, "_orig_mod", None), torch.nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        elif type(model).__name__ == "DistributedDataParallel":
            model = model.module  # type: ignore[assignment]
        else:
            raise ConfigError(
                f"save_pretrained: the model is a {type(model).__name__}, which has no method save_pretrained; "
                "expected a model of Hugging Face. To save another one: "
                "with loop.global_parameters(): torch.save(model.state_dict(), FILE)"
            )
    return model


def write_folder(folder: Optional[ModelFolder], fill: Callable[[pathlib.Path], Any], model: str) -> None:
    """Calls `fill` with a temporary folder, adds isthmus.json, which names the model, and swaps the two.

    Does nothing without a folder, as on ranks that do not write.

    Raises:
        DataError: the folder cannot be written. It is then unchanged, also after other exceptions of `fill`.
    """
    if folder is None:
        return
    try:
        folder.replace(lambda to: fill(pathlib.Path(to)), model)
    except OSError as error:
        raise DataError(f"cannot write {folder.path}: {error}") from error
