"""Arguments that are of no kind an operator takes: refused by name, as Tessera's errors; and numbers of any size."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError, DTypeError, TesseraError

X = torch.randn(1, 2, 6, 6, generator=torch.Generator().manual_seed(4))
SEVERAL = numpy.zeros((2, 2))
HUGE = 10**400

NEITHER_TRUE_NOR_FALSE: dict[str, Callable[[], object]] = {
    "sum": lambda: op.sum(X, axis=0, keepdims=SEVERAL),  # type: ignore[arg-type]
    "std": lambda: op.std(X, axis=0, keepdims=torch.zeros(2)),  # type: ignore[arg-type]
    "avg_pool2d": lambda: op.avg_pool2d(X, 2, ceil_mode=SEVERAL),  # type: ignore[arg-type]
    "avg_pool2d, padded": lambda: op.avg_pool2d(X, 2, padding=1, count_include_pad=SEVERAL),  # type: ignore[arg-type]
    "dropout": lambda: op.dropout(X, 0.5, 3, SEVERAL),  # type: ignore[arg-type]
    "rope": lambda: op.rope(X, interleaved=torch.zeros(0)),  # type: ignore[arg-type]
}
NO_NAMES: dict[str, Callable[[], object]] = {
    "fft": lambda: op.fft(X, norm=SEVERAL),  # type: ignore[arg-type]
    "pad": lambda: op.pad(X, (1, 1), mode=SEVERAL),  # type: ignore[arg-type]
    "max_pool2d": lambda: op.max_pool2d(X, 2, layout=SEVERAL),  # type: ignore[arg-type]
    "gelu": lambda: op.gelu(X, SEVERAL),  # type: ignore[arg-type]
    "matmul": lambda: op.matmul(X, X, math=SEVERAL),  # type: ignore[arg-type]
    "cross_entropy": lambda: op.cross_entropy(X[0, 0], torch.zeros(6, dtype=torch.int64), reduction=SEVERAL),  # type: ignore[arg-type]
    "spectral_conv": lambda: op.spectral_conv(X, X[:, :, :3, :3], padding=SEVERAL),  # type: ignore[arg-type]
    "einsum": lambda: op.einsum(bytearray(b"ij"), X[0, 0]),  # type: ignore[arg-type]
    "transpose": lambda: op.transpose(X, 0.5),  # type: ignore[arg-type]
    "reshape": lambda: op.reshape(X, torch.tensor(3)),  # type: ignore[arg-type]
    "rms_norm": lambda: op.rms_norm(X, eps=SEVERAL),  # type: ignore[arg-type]
}
TOO_LARGE: dict[str, Callable[[], object]] = {
    "elu": lambda: op.elu(X, HUGE),
    "clamp": lambda: op.clamp(X, min=HUGE),
    "flash_attention": lambda: op.flash_attention(X, X, X, scale=HUGE),
    "tensor": lambda: op.tensor(HUGE, dtype="fp32"),
}


@pytest.mark.parametrize("name", [*NEITHER_TRUE_NOR_FALSE, *NO_NAMES, *TOO_LARGE])
def test_it_is_refused_by_name(name: str) -> None:
    with pytest.raises(ArgumentError):
        (NEITHER_TRUE_NOR_FALSE | NO_NAMES | TOO_LARGE)[name]()


@pytest.mark.parametrize("operator", [op.add, op.sub, op.mul, op.div, op.maximum, op.lt, op.matmul])
def test_dates_are_no_operands(operator: Callable[..., object]) -> None:
    with pytest.raises(TesseraError):
        operator(X, numpy.datetime64("2020"))
    with pytest.raises(DTypeError):
        operator(numpy.datetime64("2020"), X)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("number", [HUGE, -HUGE])
def test_an_integer_that_no_float_holds_is_an_infinity_beside_tensors(dtype: torch.dtype, number: int) -> None:
    x = torch.zeros(3, dtype=dtype)
    assert op.add(x, number).torch().tolist() == [float("inf") if number > 0 else float("-inf")] * 3


def test_an_array_read_backwards_may_be_cast() -> None:
    array = numpy.arange(6.0).reshape(2, 3)[::-1]
    assert op.tensor(array, dtype="fp32").torch().tolist() == array.tolist()


def test_axes_of_a_tensor_without_dimensions_may_be_swapped() -> None:
    assert op.swapaxes(torch.tensor(3), 0, 0).torch().item() == 3
