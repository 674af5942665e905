"""rope: against float64, both kinds of pairs, long sequences, tables, gradients and kernels."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import grad, op
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tests.property.checking import evaluated
from tests.whole import examples


def angles(positions: torch.Tensor, size: int, theta: float) -> torch.Tensor:
    return positions.double()[..., None] * theta ** (-torch.arange(0, size, 2).double() / size)


def turned(x: torch.Tensor, angle: torch.Tensor, axis: int, interleaved: bool) -> torch.Tensor:
    """The rotation in float64; `angle` is [length, pairs] or [batch, length, pairs]."""
    shape = [1] * x.ndim
    shape[axis], shape[-1] = angle.shape[-2:]
    if angle.ndim == 3:
        shape[0] = angle.shape[0]
    cos, sin = angle.cos().reshape(shape), angle.sin().reshape(shape)
    half, wide = x.shape[-1] // 2, x.double()
    if interleaved:
        first, second = wide[..., ::2], wide[..., 1::2]
        return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)
    first, second = wide[..., :half], wide[..., half:]
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


@given(data=st.data())
@settings(max_examples=examples(6, 12))
def test_rotations_are_float64s(data: st.DataObject) -> None:
    lead = data.draw(st.sampled_from(((), (2,), (2, 3))))
    length, pairs = data.draw(st.sampled_from((1, 5, 33))), data.draw(st.sampled_from((1, 4, 17)))
    axis = data.draw(st.sampled_from((-2, -3))) if lead else -2
    interleaved = data.draw(st.booleans())
    dtype = data.draw(st.sampled_from((torch.float32, torch.float64, torch.bfloat16)))
    shape = [*lead, 4, 2 * pairs]
    shape[axis] = length
    x = torch.randn(shape).to(dtype)
    theta = data.draw(st.sampled_from((10000.0, 500000.0)))
    positions = torch.arange(length)
    options = data.draw(st.sampled_from(("default", "given", "batch")))
    given_positions: torch.Tensor | None = None
    if options == "given":
        given_positions = positions = torch.randint(0, 1 << 20, (length,))
    if options == "batch" and len(shape) > 2 and shape[0] != length:
        given_positions = positions = torch.randint(0, 99, (shape[0], length))
        if axis == -len(shape):
            given_positions, positions = None, torch.arange(length)
    result = op.rope(x, given_positions, theta=theta, interleaved=interleaved, axis=axis)
    expected = turned(x, angles(positions, 2 * pairs, theta), axis, interleaved)
    tolerance = 2.0**-7 if dtype == torch.bfloat16 else 2e-6
    torch.testing.assert_close(evaluated(result).double(), expected, rtol=tolerance, atol=tolerance * 4)


def test_long_sequences_keep_all_digits() -> None:
    positions = torch.tensor([100_000, 1_000_003, 16_777_217, (1 << 31) + 1])
    x = torch.ones(4, 128)
    expected = turned(x, angles(positions, 128, 10000.0), -2, False)
    torch.testing.assert_close(op.rope(x, positions).torch().double(), expected, rtol=0, atol=5e-7)


@pytest.mark.parametrize("interleaved", [False, True])
def test_tables(interleaved: bool) -> None:
    x, angle = torch.randn(2, 3, 7, 10), angles(torch.arange(7), 10, 100.0)
    expected = turned(x, angle, -2, interleaved).float()
    cos, sin = angle.cos().float(), angle.sin().float()
    torch.testing.assert_close(op.rope(x, cos=cos, sin=sin, interleaved=interleaved).torch(), expected)
    repeat = (lambda t: t.repeat_interleave(2, -1)) if interleaved else (lambda t: torch.cat([t, t], -1))
    whole = op.rope(x, cos=repeat(cos), sin=repeat(sin), interleaved=interleaved)
    torch.testing.assert_close(whole.torch(), expected)


def test_gradients_turn_back() -> None:
    x, weight = torch.randn(2, 5, 8, dtype=torch.float64), torch.randn(2, 5, 8, dtype=torch.float64)
    for interleaved in (False, True):
        ours = grad.grad(lambda a, pairs=interleaved: (op.rope(a, interleaved=pairs) * weight).sum())(x)
        leaf = x.clone().requires_grad_()
        (turned(leaf, angles(torch.arange(5), 8, 10000.0), -2, interleaved) * weight).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(ours.torch(), leaf.grad, rtol=1e-6, atol=1e-6)


def test_one_kernel_turns_and_nothing_is_copied() -> None:
    launches = launches_of_operator(op.rope, [(2, 4, 40, 16)], "fp32")
    large = [launch for launch in launches if any(view.shape[:2] == (2, 4) for view, _ in launch.call.arguments)]
    assert len(large) == 1
    assert launches[-1] is large[0]


def test_on_the_interpreter() -> None:
    x = torch.randn(2, 5, 8)
    for interleaved in (False, True):
        there = op.rope(op.tensor(x, device="interpreter"), interleaved=interleaved)
        torch.testing.assert_close(there.torch(), op.rope(x, interleaved=interleaved).torch(), rtol=1e-5, atol=1e-5)


def test_what_is_refused() -> None:
    x = torch.ones(2, 5, 8)
    with pytest.raises(ShapeMismatchError, match="of even extent"):
        op.rope(torch.ones(5, 7))
    with pytest.raises(DTypeError, match="rope of int64"):
        op.rope(x.long())
    with pytest.raises(ArgumentError, match="the dimension that is turned"):
        op.rope(x, axis=-1)
    with pytest.raises(ArgumentError, match="both tables"):
        op.rope(x, cos=torch.ones(5, 4))
    with pytest.raises(ShapeMismatchError, match=r"positions of shape \(4,\)"):
        op.rope(x, torch.arange(4))
    with pytest.raises(ShapeMismatchError, match="a table cos of shape"):
        op.rope(x, cos=torch.ones(4, 4), sin=torch.ones(5, 4))
    with pytest.raises(ArgumentError, match="theta=-1"):
        op.rope(x, theta=-1)
