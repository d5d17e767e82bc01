"""The codecs of outer gradients, applied to tensors, for studying them. docs/numerics.md describes the formats.

    spec = isthmus.codecs.spec("4bit", block=64)
    encoded = isthmus.codecs.encode(x, spec)              # uint8
    y = isthmus.codecs.decode(encoded, spec, x.shape)
    isthmus.codecs.bits(spec), isthmus.codecs.error(x, spec)
"""

from __future__ import annotations

import math
from typing import Optional, Sequence, Union

import torch

from ._native import codecs as _codecs

Spec = _codecs.Spec
KINDS: tuple[str, ...] = tuple(_codecs.KINDS)
"""Names of all codecs."""


def spec(
    kind: str,
    *,
    block: Optional[int] = None,
    scale: Optional[str] = None,
    clip: Optional[float] = None,
    stochastic: bool = False,
    top_k: Optional[int] = None,
) -> Spec:
    """A codec. Omitted settings get defaults that were chosen by measurements.

    Args:
        kind: one of `KINDS`.
        block: elements that share a scale, a power of two from 16 to 4096.
        scale: format of the scales: bf16, e5m3 or e8m0.
        clip: share of a block's largest magnitude that the largest level represents, .01 to 1.
        stochastic: rounds to one of the two neighbours so that the expectation equals the value.
        top_k: for `topk`: elements kept of every 4096.

    Raises:
        ConfigError: no codec has these settings.
    """
    return _codecs.make_spec(kind, block, scale, clip, stochastic, top_k)


def bits(codec: Union[str, Spec]) -> float:
    """Bits per element in long arrays, including scales."""
    return _codecs.bits_per_element(_spec(codec))


def encode(
    x: torch.Tensor,
    codec: Union[str, Spec],
    *,
    residual: Optional[torch.Tensor] = None,
    decay: float = 1.0,
    key: int = 0,
) -> torch.Tensor:
    """Encodes a tensor: one-dimensional uint8 in host memory, with the same bytes on every machine.

    Args:
        x: floating point, any shape; read as fp32, flat, in row-major order.
        residual: fp32, contiguous, with as many elements as `x`. `decay` times it is added first, and it is replaced by
            the error of this encoding (error feedback).
        key: seed of stochastic rounding.

    Raises:
        DivergenceError: a value is not finite, or too large for the codec.
    """
    codec = _spec(codec)
    values = _flat(x)
    out = torch.empty(_codecs.encoded_size(codec, values.numel()), dtype=torch.uint8)
    _codecs.encode(codec, values, out, None if residual is None else residual.view(-1), decay, key)
    return out


def decode(encoded: torch.Tensor, codec: Union[str, Spec], shape: Union[int, Sequence[int]]) -> torch.Tensor:
    """Decodes the bytes of `encode`: fp32, in host memory, in that shape.

    Raises:
        DataError: the bytes are not an encoding of that many values.
    """
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    out = torch.empty(math.prod(shape), dtype=torch.float32)
    _codecs.decode(_spec(codec), encoded.cpu().contiguous(), out)
    return out.view(shape)


def error(x: torch.Tensor, codec: Union[str, Spec], *, key: int = 0) -> float:
    """Relative error of the codec on a tensor: norm of the difference over norm of the tensor; 0 for zeros."""
    values = _flat(x)
    lost = (decode(encode(values, codec, key=key), codec, values.numel()) - values).double().norm().item()
    whole = values.double().norm().item()
    return lost / whole if whole > 0 else 0.0


def _spec(codec: Union[str, Spec]) -> Spec:
    return spec(codec) if isinstance(codec, str) else codec


def _flat(x: torch.Tensor) -> torch.Tensor:
    return x.detach().to("cpu", torch.float32).contiguous().view(-1)
