"""Train one model on machines that are far apart: the outer loop for training loops of PyTorch (docs/python.md)."""

from . import codecs
from ._native import ConfigError, DataError, DivergenceError, Error, NetworkError, __version__
from .loop import OuterLoop, initial_parameters, synchronous_step, worker_arguments
from .observer import Observer

__all__ = [
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
