"""`op.scaled_attention`: numbers that stand for others by factors, as 8-bit floats do."""

from __future__ import annotations

import math

import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.ops import oracle
from tessera.typing import ArrayLike

E4M3_MOST, E4M3_EPS = 448.0, 2.0**-4
"""The largest number of fp8_e4m3, and what rounding to it errs by, of a number."""


def heads(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def quantized(x: torch.Tensor) -> tuple[Tensor, torch.Tensor]:
    """A tensor in fp8_e4m3, as large as it can be, and its factor."""
    factor = x.abs().max() / E4M3_MOST
    return op.cast(op.tensor(x / factor), "fp8_e4m3"), factor


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2", "bf16", "fp32", "fp64"])
@pytest.mark.parametrize("causal", [False, True])
def test_factors_multiply_and_the_result_is_rounded_once(dtype: str, causal: bool) -> None:
    operands = heads(2, 4, 19, 24), heads(2, 2, 33, 24, seed=1), heads(2, 2, 33, 5, seed=2)
    q, k, v = (op.cast(op.tensor(x), dtype) for x in operands)
    found = op.scaled_attention(
        q, k, v, q_scale=0.5, k_scale=torch.tensor(2.0), v_scale=3.0, causal=causal, dtype="fp32"
    )
    wide = (op.cast(x, "fp64") for x in (q, k, v))
    plain = op.flash_attention(*wide, causal=causal).torch()
    torch.testing.assert_close(found.torch().double(), 3.0 * plain, atol=2e-5, rtol=2e-5)
    torch.testing.assert_close(oracle.reference(found), 3.0 * plain, atol=1e-6, rtol=1e-6)
    rounded = op.scaled_attention(q, k, v, v_scale=3.0, causal=causal)
    assert rounded.dtype.name == "bf16"
    torch.testing.assert_close(rounded.torch().double(), 3.0 * plain, atol=2e-2, rtol=1e-2)


def test_quantized_operands_stand_for_what_was_quantized() -> None:
    q, k, v = heads(1, 3, 40, 32), 5.0 * heads(1, 3, 60, 32, seed=1), 1e-3 * heads(1, 3, 60, 32, seed=2)
    (q8, of_q), (k8, of_k), (v8, of_v) = map(quantized, (q, k, v))
    found = op.scaled_attention(q8, k8, v8, q_scale=of_q, k_scale=of_k, v_scale=of_v, scale=0.05, dtype="fp32").torch()
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.05)
    assert (found - expected).abs().max() < 2 * E4M3_EPS * v.abs().max()


@pytest.mark.parametrize("dtype", ["fp8_e4m3", "fp8_e5m2"])
def test_kernels_of_gpus_round_weights_to_8_bits_at_most(dtype: str) -> None:
    """Interpreted: of fp8_e4m3 the second product is one of 8 bits, whose weights err by a sixteenth at most."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    operands = [op.cast(op.tensor(heads(2, 2, n, 32, seed=n)), dtype) for n in (17, 70, 71)]
    q, k, v = operands[0], operands[1], op.cast(op.tensor(heads(2, 2, 70, 16)), dtype)
    expected = oracle.reference(op.scaled_attention(q, k, v, causal=True, dtype="fp32"))
    moved = (op.tensor(x.torch(), device="interpreter") for x in (q, k, v))
    found = op.scaled_attention(*moved, causal=True, dtype="fp32").torch().double()
    assert (found - expected).abs().max() <= E4M3_EPS * float(op.cast(v, "fp32").torch().abs().max())


def test_weights_that_are_small_are_told_from_0() -> None:
    """One key outweighs 4000 others, of which each weighs less than fp8_e4m3's least number."""
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    keys = 4096
    q = torch.zeros(1, 1, 1, 16)
    q[..., 0] = 1.0
    k, v = torch.zeros(1, 1, keys, 16), torch.ones(1, 1, keys, 16)
    k[..., 0, 0], v[..., 0, :] = 8.0, 0.0
    operands = [op.tensor(op.cast(op.tensor(x), "fp8_e4m3").torch(), device="interpreter") for x in (q, k, v)]
    found = op.scaled_attention(*operands, scale=1.0, dtype="fp32").torch()
    weight = math.exp(-8.0)
    expected = (keys - 1) * weight / (1 + (keys - 1) * weight)
    torch.testing.assert_close(found, torch.full_like(found, expected), atol=0.0, rtol=E4M3_EPS)


def test_nothing_and_one_of_everything() -> None:
    for shape in ((1, 1, 0, 16), (0, 2, 3, 16), (1, 1, 1, 1)):
        x = op.cast(op.ones(shape), "fp8_e4m3")
        assert op.scaled_attention(x, x, x).torch().shape == shape
    q, none = op.cast(op.ones((3, 8)), "fp8_e4m3"), op.cast(op.ones((0, 8)), "fp8_e4m3")
    assert op.scaled_attention(q, none, none).torch().eq(0).all()


@pytest.mark.parametrize("factor", [math.nan, math.inf])
def test_factors_that_are_not_finite_show(factor: float) -> None:
    x = op.cast(op.ones((3, 8)), "fp8_e4m3")
    found = op.scaled_attention(x, x, x, v_scale=factor).torch()
    assert not found.isfinite().any()


def test_negative_factors_turn_scores_around() -> None:
    q, k, v = heads(2, 5, 8), heads(2, 7, 8, seed=1), heads(2, 7, 8, seed=2)
    expected = op.flash_attention(-q, k, v).torch()
    factors: tuple[ArrayLike, ...] = (-1.0, torch.tensor(-1.0))
    for factor in factors:
        found = op.scaled_attention(q, k, v, k_scale=factor, dtype="fp32")
        torch.testing.assert_close(found.torch(), expected, atol=1e-5, rtol=1e-5)


def test_what_is_refused() -> None:
    q, k = op.cast(op.ones((3, 8)), "fp8_e4m3"), op.cast(op.ones((3, 8)), "bf16")
    with pytest.raises(DTypeError, match="one floating-point dtype"):
        op.scaled_attention(q, k, k)
    for dtype in ("int8", "int64", "bool", "complex64", "complex128"):
        x = op.ones((3, 8), dtype)
        for v_scale in (0.5, torch.tensor(0.5)):
            with pytest.raises(DTypeError):
                op.scaled_attention(x, x, x, v_scale=v_scale, dtype=dtype)
            with pytest.raises(DTypeError):
                op.scaled_attention(x, x, x, k_scale=torch.tensor(-2.0), v_scale=v_scale)
    with pytest.raises(DTypeError, match="the result is of a floating-point dtype"):
        op.scaled_attention(q, q, q, dtype="int32")
    with pytest.raises(ArgumentError, match="a factor of shape"):
        op.scaled_attention(q, q, q, v_scale=torch.ones(3))
    with pytest.raises(ArgumentError, match="causal"):
        op.scaled_attention(q, q, q, causal=1)  # type: ignore[arg-type]
