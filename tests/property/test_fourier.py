"""Fourier transforms of drawn shapes, sizes and norms against torch in double precision, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import tessera
from tessera import op
from tessera.errors import ArgumentError, DTypeError
from tessera.grad import grad, vjp
from tessera.handle import Tensor
from tests.property.operands import LAYOUTS, laid_out
from tests.whole import examples

ONE = ("fft", "ifft", "rfft", "irfft")
TWO = ("fft2", "ifft2", "rfft2", "irfft2")
EXTENTS = st.sampled_from((1, 2, 3, 5, 8, 13, 31, 48, 97))
NORMS = st.sampled_from((None, "backward", "ortho", "forward"))


def close(result: Tensor, expected: torch.Tensor) -> None:
    found = result.torch()
    assert found.shape == expected.shape
    eps = torch.finfo(found.dtype).eps
    scale = float(expected.abs().max()) if expected.numel() else 0.0
    wide = torch.complex128 if found.is_complex() else torch.float64
    torch.testing.assert_close(found.to(wide), expected.to(wide), rtol=0, atol=32 * eps * max(scale, 1e-3))


def operand(data: st.DataObject, shape: tuple[int, ...], name: str) -> torch.Tensor:
    kinds = [torch.float32, torch.float64] + ([torch.complex64, torch.complex128] if name[0] != "r" else [])
    x = torch.randn(shape, dtype=data.draw(st.sampled_from(kinds)), generator=torch.Generator().manual_seed(sum(shape)))
    return x if x.is_complex() else laid_out(x, data.draw(st.sampled_from(LAYOUTS[:3])))


def wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.complex128 if x.is_complex() else torch.float64)


@pytest.mark.parametrize("name", ONE)
@settings(max_examples=examples(13, 25))
@given(data=st.data())
def test_one_axis(name: str, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(EXTENTS, min_size=1, max_size=3)))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    n = data.draw(st.one_of(st.none(), EXTENTS))
    if name == "irfft" and n is None and shape[axis] == 1:
        n = 1
    x, norm = operand(data, shape, name), data.draw(NORMS)
    result = getattr(op, name)(x, n, axis, norm)
    expected = getattr(torch.fft, name)(x, n, axis, norm)
    assert result.dtype.torch == expected.dtype
    close(result, getattr(torch.fft, name)(wide(x), n, axis, norm))


@pytest.mark.parametrize("name", TWO)
@settings(max_examples=examples(8, 15))
@given(data=st.data())
def test_two_axes(name: str, data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(EXTENTS, min_size=2, max_size=3)))
    axes = tuple(data.draw(st.permutations(range(len(shape))))[:2])
    s = data.draw(st.one_of(st.none(), st.tuples(EXTENTS, EXTENTS)))
    if name == "irfft2" and s is None:
        s = (shape[axes[0]], 2)
    x, norm = operand(data, shape, name), data.draw(NORMS)
    close(getattr(op, name)(x, s, axes, norm), getattr(torch.fft, name)(wide(x), s, axes, norm))


def test_one_program_for_all_extents_and_sizes() -> None:
    from tessera.lazy.structures.symbolic import symbolic_form

    forms = {symbolic_form(op.rfft(torch.randn(4, n), n + 3).structure) for n in (5, 8, 31)}
    assert len(forms) == 1


def test_in_a_traced_function() -> None:
    @op.kernel
    def power(x: Tensor) -> Tensor:
        z = op.fft(x)
        return op.real(z * op.conj(z))

    for n in (8, 12, 7):
        x = torch.randn(3, n, dtype=torch.float64)
        close(power(x), torch.fft.fft(x).abs() ** 2)  # type: ignore[arg-type]


def test_transforms_are_undone() -> None:
    x = torch.randn(4, 6, 10, dtype=torch.float64)
    close(op.irfft2(op.rfft2(x), s=(6, 10)), x)
    close(op.real(op.ifft2(op.fft2(x, norm="ortho"), norm="ortho")), x)


@pytest.mark.parametrize("name", ONE)
def test_nan_and_infinities_come_out(name: str) -> None:
    x = torch.randn(3, 8)
    x[0, 1], x[1, 2] = torch.nan, torch.inf
    found = getattr(op, name)(x).torch()
    assert not torch.isfinite(found[0].abs()).any()
    assert torch.isfinite(found[2].abs()).all()


@pytest.mark.parametrize("name", ONE)
def test_no_points_are_refused_and_no_batch_is_empty(name: str) -> None:
    with pytest.raises(ArgumentError, match=f"{name} over axis 1 of a tensor of shape \\(3, 0\\): "):
        getattr(op, name)(torch.empty(3, 0))
    with pytest.raises(ArgumentError, match="0 points"):
        getattr(op, name)(torch.empty(3, 4), 0)
    assert getattr(op, name)(torch.empty(0, 4)).torch().numel() == 0


def test_wrong_arguments_are_refused_at_the_call() -> None:
    x = torch.randn(3, 4)
    wrongs: list[Callable[[], Tensor]] = [
        lambda: op.fft(x, norm="both"),
        lambda: op.fft(x, axis=2),
        lambda: op.fft(x, n=1.5),  # type: ignore[arg-type]
        lambda: op.fft2(x, axes=(0, 0)),
        lambda: op.fft2(x, s=(3,)),
        lambda: op.fft(torch.tensor(1.0)),
    ]
    for wrong in wrongs:
        with pytest.raises(ArgumentError) as caught:
            wrong()
        assert __file__ in str(caught.value.where)
    for dtype in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        with pytest.raises(DTypeError, match="defined on fp32, fp64 and complex numbers"):
            op.fft(x.to(dtype))
    with pytest.raises(DTypeError, match="transforms real numbers"):
        op.rfft(torch.randn(4, dtype=torch.complex64))
    assert op.fft(torch.arange(4)).dtype is tessera.dtypes.complex64


CASES: list[tuple[str, dict[str, Any]]] = [
    ("rfft", {"n": 5}),
    ("rfft", {"n": 12, "norm": "ortho"}),
    ("rfft2", {"s": (4, 9), "norm": "forward"}),
    ("fft", {"n": 3}),
    ("ifft2", {}),
]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_gradients_are_torchs(name: str, options: dict[str, Any]) -> None:
    x = torch.randn(3, 7, dtype=torch.float64)
    weight = torch.randn_like(getattr(torch.fft, name)(x, **options).real)

    def power(y: Any, module: Any) -> Any:
        return getattr(module, name)(y, **options)

    leaf = op.tensor(x)
    z = power(leaf, op)
    (gradient,) = vjp(op.real(z * op.conj(z)) * 0.5, [leaf], weight)
    follows = x.clone().requires_grad_()
    ((power(follows, torch.fft).abs() ** 2) * 0.5 * weight).sum().backward()
    assert follows.grad is not None
    close(gradient, follows.grad)


SECOND: list[tuple[str, dict[str, Any]]] = [
    ("rfft", {}),
    ("rfft", {"n": 1}),
    ("rfft", {"n": 4, "norm": "ortho"}),
    ("rfft", {"n": 12}),
    ("rfft2", {"s": (4, 9), "norm": "forward"}),
    ("fft", {"n": 5}),
    ("ifft2", {}),
]


@pytest.mark.parametrize(("name", "options"), SECOND)
def test_gradients_of_gradients_are_torchs(name: str, options: dict[str, Any]) -> None:
    x = torch.randn(3, 7, dtype=torch.float64)

    def quartic(y: Any) -> Any:
        z = getattr(op, name)(y, **options)
        return (op.real(z * op.conj(z)) ** 2).sum()

    second = grad(lambda y: (grad(quartic)(y) ** 2).sum())(x)
    follows = x.clone().requires_grad_()
    value = ((getattr(torch.fft, name)(follows, **options).abs() ** 2) ** 2).sum()
    (first,) = torch.autograd.grad(value, follows, create_graph=True)
    (expected,) = torch.autograd.grad((first**2).sum(), follows)
    close(second, expected)


@pytest.mark.parametrize("n", [None, 5, 8, 20])
def test_gradients_of_gradients_of_irfft_are_torchs(n: int | None) -> None:
    x = torch.randn(2, 9, dtype=torch.float64)

    def cubic(y: Any) -> Any:
        return (op.irfft(op.rfft(y) * op.rfft(y), n) ** 3).sum()

    second = grad(lambda y: (grad(cubic)(y) ** 2).sum())(x)
    follows = x.clone().requires_grad_()
    value = (torch.fft.irfft(torch.fft.rfft(follows) ** 2, n) ** 3).sum()
    (first,) = torch.autograd.grad(value, follows, create_graph=True)
    (expected,) = torch.autograd.grad((first**2).sum(), follows)
    close(second, expected)
