"""The codecs on tensors."""

import pytest
import torch

from isthmus import ConfigError, DataError, DivergenceError, codecs


@pytest.mark.parametrize("kind", codecs.KINDS)
def test_a_codec_has_the_bits_it_says(kind):
    x = torch.randn(128, 512, generator=torch.Generator().manual_seed(1))
    encoded = codecs.encode(x, kind)
    assert encoded.dtype == torch.uint8
    assert abs(8 * encoded.numel() / x.numel() - codecs.bits(kind)) < 0.01
    decoded = codecs.decode(encoded, kind, x.shape)
    lost = ((decoded - x).norm() / x.norm()).item()
    assert codecs.error(x, kind) == pytest.approx(lost, rel=1e-4)
    assert torch.equal(codecs.encode(decoded, "fp32").view(torch.float32), decoded.view(-1))


def test_fewer_bits_lose_more():
    x = torch.randn(1 << 16, generator=torch.Generator().manual_seed(2))
    errors = [codecs.error(x, kind) for kind in ("fp32", "bf16", "int8", "4bit", "3bit", "2bit", "sign")]
    assert errors[0] == 0 and errors == sorted(errors)
    assert codecs.error(torch.zeros(64), "4bit") == 0


def test_a_residual_gets_what_was_lost():
    x = torch.randn(4096, generator=torch.Generator().manual_seed(3))
    residual = torch.zeros(4096)
    decoded = codecs.decode(codecs.encode(x, "2bit", residual=residual), "2bit", 4096)
    torch.testing.assert_close(decoded + residual, x)


def test_what_cannot_be_is_refused():
    with pytest.raises(ConfigError, match="no_such"):
        codecs.bits("no_such")
    with pytest.raises(ConfigError, match="block"):
        codecs.spec("4bit", block=48)
    with pytest.raises(DivergenceError, match="element 2"):
        codecs.encode(torch.tensor([0.0, 1.0, float("inf")]), "int8")
    encoded = codecs.encode(torch.ones(64), "4bit")
    with pytest.raises(DataError, match="bytes are not an encoding of 65 values"):
        codecs.decode(encoded, "4bit", 65)
    with pytest.raises(ConfigError, match="residual has 3 elements"):
        codecs.encode(torch.ones(64), "4bit", residual=torch.zeros(3))
