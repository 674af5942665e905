"""Complex numbers against torch in complex128: operators that are kernels over pairs, and those of the library."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera.errors import DTypeError, ShapeMismatchError, TesseraError
from tessera.handle import Tensor
from tests.property.operands import LAYOUTS, Shape, laid_out, shapes
from tests.whole import examples

Z, W = (torch.randn(5, 7, dtype=torch.complex64, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
R = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))

BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
}


def close(result: Tensor, expected: torch.Tensor) -> None:
    """Compares with a value computed in double precision."""
    found = result.torch()
    eps = torch.finfo(found.dtype).eps
    assert found.shape == expected.shape
    wide = torch.complex128 if found.is_complex() else torch.float64
    torch.testing.assert_close(found.to(wide), expected.to(wide), rtol=64 * eps, atol=64 * eps)


def drawn(data: st.DataObject, shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    values = torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(data.draw(st.integers(0, 999))))
    if values.ndim and data.draw(st.booleans()):
        return laid_out(values, "transposed")
    return values


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=examples(6, 12))
@given(data=st.data())
def test_arithmetic_of_drawn_shapes(name: str, data: st.DataObject) -> None:
    shape = data.draw(shapes(data.draw(st.integers(0, 3))))
    first = data.draw(st.sampled_from((torch.complex64, torch.complex128)))
    second = data.draw(st.sampled_from((torch.complex64, torch.float32, torch.float64)))
    other = data.draw(st.sampled_from((shape, shape[-1:], ())))
    a, b = drawn(data, shape, first), drawn(data, other, second)
    b = b + torch.where(b.abs() < 0.1, 1.0, 0.0).to(b.dtype)  # quotients of nothing small
    if data.draw(st.booleans()) and name != "div":
        a, b = b, a
    result = getattr(op, name)(a, b)
    assert result.dtype.torch == BINARY[name](a, b).dtype
    close(result, BINARY[name](a.to(torch.complex128), b.to(torch.complex128)))


@pytest.mark.parametrize("view", [Z, Z.t(), Z[::2, 1:], Z[:0], Z[:1, :1], Z[0, 0], Z.conj(), Z[:1].expand(4, 7)])
def test_functions_and_views(view: torch.Tensor) -> None:
    z = op.tensor(view)
    plain = view.resolve_conj()
    close(-z, -plain)
    close(abs(z), plain.abs())
    close(op.real(z), plain.real)
    close(op.imag(z * 2.0), 2 * plain.imag)
    close(op.conj(z), plain.conj())
    close(op.sum(z), plain.sum())
    close((z * 1.5 + 2).reshape(-1), (plain * 1.5 + 2).reshape(-1))
    close(z.to("complex128"), plain.to(torch.complex128))
    close(op.where(plain.real > 0, z, 0.0), torch.where(plain.real > 0, plain, 0.0))


def test_products_of_matrices() -> None:
    close(op.matmul(Z, W.t()), Z.to(torch.complex128) @ W.t().to(torch.complex128))
    close(op.tensor(Z) @ R.t(), Z.to(torch.complex128) @ R.t().to(torch.complex128))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_parts_become_complex_numbers(layout: Any) -> None:
    real, imag = laid_out(R, layout), laid_out(R + 1, layout)
    result = op.complex(real, imag)
    assert torch.equal(result.torch(), torch.complex(real.contiguous(), imag.contiguous()))
    assert torch.equal(op.complex(real, 2.0).torch(), torch.complex(real.contiguous(), torch.full_like(R, 2.0)))


def test_views_of_what_exists_are_no_work() -> None:
    assert op.real(Z).torch().data_ptr() == Z.data_ptr()
    assert torch.equal(op.imag(Z).torch(), Z.imag)
    assert op.real(R).torch().data_ptr() == R.data_ptr()


def test_numpy_both_ways() -> None:
    array = numpy.array([[1 + 2j, 3 - 1j]], dtype=numpy.complex128)
    result = (op.tensor(array) * 2.0).numpy()
    assert result.dtype == numpy.complex128
    assert (result == array * 2).all()


def test_sums_fuse_and_moves_copy_words() -> None:
    text = ((op.tensor(Z) + W) * 0.5 - W).inspect("schedule")
    assert text.count("tessera.schedule.kernel") == 1
    for dtype in (torch.complex64, torch.complex128):
        joined = op.concat([Z.to(dtype), W.to(dtype)], 1)
        assert torch.equal(joined.torch(), torch.cat([Z, W], 1).to(dtype))


@pytest.mark.parametrize("function", [op.exp, op.relu, op.softmax, op.max, lambda z: z < 1.0, op.cumsum])
def test_what_is_not_defined_is_refused_by_name(function: Callable[[Any], Any]) -> None:
    if function is not op.exp:
        with pytest.raises(TesseraError):
            function(op.tensor(Z)).eval()
        return
    with pytest.raises(DTypeError, match=r"exp of \(5, 7\) complex64: not defined on complex numbers"):
        op.exp(Z)


def test_casts_to_real_numbers_and_odd_parts_are_refused() -> None:
    with pytest.raises(DTypeError, match="complex numbers are no fp32"):
        op.tensor(Z).to("fp32")
    with pytest.raises(DTypeError, match="real numbers have no imaginary parts"):
        op.imag(R)
    with pytest.raises(DTypeError, match="the parts are real numbers"):
        op.complex(Z, R)
    with pytest.raises(ShapeMismatchError, match="do not broadcast"):
        op.complex(R, R[:3])
    with pytest.raises(ShapeMismatchError, match="do not broadcast"):
        op.tensor(Z) * W[:3]


def test_on_the_interpreted_device() -> None:
    z = op.tensor(Z, device="interpreter")
    close(op.real(op.fft(z * 2.0 + 1.0)), torch.fft.fft(Z * 2.0 + 1.0).real)


def test_numbers_over_complex_tensors() -> None:
    for number in (2, 1, 0.5, -1, 3, 2.5):  # the first four are part of the algebra, the others arguments
        close(number / op.tensor(Z), number / Z.to(torch.complex128))
