"""Train one model on machines that are far apart: the outer loop for training loops of PyTorch (docs/python.md)."""

import importlib
from typing import TYPE_CHECKING, Any

from ._native import ConfigError, DataError, DivergenceError, Error, NetworkError, __version__

if TYPE_CHECKING:
    from . import codecs as codecs
    from ._experiment import initial_parameters, worker_arguments
    from .batches import Batches
    from .loop import OuterLoop, synchronous_step
    from .observer import Observer

__all__ = [
    "Batches",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "Error",
    "NetworkError",
    "Observer",
    "OuterLoop",
    "__version__",
    "codecs",
    "initial_parameters",
    "synchronous_step",
    "worker_arguments",
]

# Modules that need torch are imported on first use, because the programs in this package do not need torch. Type
# checkers would accept any name from a module with __getattr__, so they do not see it.
_LAZY = {
    "Batches": "batches",
    "codecs": "codecs",
    "Observer": "observer",
    "OuterLoop": "loop",
    "initial_parameters": "_experiment",
    "synchronous_step": "loop",
    "worker_arguments": "_experiment",
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        if name not in _LAZY:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        module = importlib.import_module("." + _LAZY[name], __name__)
        value = module if name == "codecs" else getattr(module, name)
        globals()[name] = value
        return value
