"""FSDP2 on CPUs, which not every version of PyTorch has."""

import pytest
import torch


def need():
    """Skips the calling test without it."""
    if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 6):
        pytest.skip(f"FSDP2 of torch {torch.__version__} runs on GPUs only")
