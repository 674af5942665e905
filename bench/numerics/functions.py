"""Errors of elementwise functions over their whole range."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch.nn import functional

from bench.numerics.measures import ErrorRow, Unit, ulp_error
from tessera import op

Unary = Callable[[torch.Tensor], torch.Tensor]

STRIDE = 1021
"""Of all fp32 numbers every so manieth is an argument: some 4.2 million, every exponent and both signs among them. All
65536 of a 16-bit dtype are."""

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Function:
    """A function of one variable, ours and torch's; `exact` is torch's in float64 unless that is not good enough."""

    name: str
    ours: Callable[[torch.Tensor], object]
    theirs: Unary
    unit: Unit = "ulp"
    exact: Unary | None = None


def _gelu(x: torch.Tensor) -> torch.Tensor:
    """x / 2 erfc(-x / sqrt 2), which cancels nothing."""
    left: torch.Tensor = torch.special.erfc(-x * 0.5**0.5)
    return x * 0.5 * left


def _gelu_tanh(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)), which is the same and cancels nothing."""
    return x * torch.sigmoid(2 * (2 / torch.pi) ** 0.5 * (x + 0.044715 * x * x * x))


FUNCTIONS = (
    Function("exp", op.exp, torch.exp),
    Function("expm1", op.expm1, torch.expm1),
    Function("log", op.log, torch.log),
    Function("log1p", op.log1p, torch.log1p),
    Function("sin", op.sin, torch.sin),
    Function("cos", op.cos, torch.cos),
    Function("sqrt", op.sqrt, torch.sqrt),
    Function("rsqrt", op.rsqrt, torch.rsqrt),
    Function("tanh", op.tanh, torch.tanh),
    Function("erf", op.erf, torch.erf),
    Function("sigmoid", op.sigmoid, torch.sigmoid),
    Function("silu", op.silu, functional.silu),
    Function("gelu", op.gelu, functional.gelu, "ulp of x", exact=_gelu),
    Function(
        "gelu (tanh)",
        lambda x: op.gelu(x, approximate="tanh"),
        lambda x: functional.gelu(x, approximate="tanh"),
        "ulp of x",
        exact=_gelu_tanh,
    ),
)


def arguments(dtype: torch.dtype, stride: int = STRIDE) -> torch.Tensor:
    """Numbers of `dtype` of every exponent and both signs, infinities, NaN and denormals among them."""
    if dtype == torch.float32:
        special = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, 1.0, -1.0])
        patterns = torch.arange(-(2**31), 2**31, stride, dtype=torch.int64).to(torch.int32)
        return torch.cat((patterns.view(torch.float32), special))
    return torch.arange(-(2**15), 2**15, dtype=torch.int64).to(torch.int16).view(dtype)


def row(function: Function, name: str, stride: int = STRIDE) -> ErrorRow:
    """The errors of one function in one dtype."""
    x = arguments(DTYPES[name], stride)
    exact = (function.exact or function.theirs)(x.double())
    scale = torch.maximum(x.double().abs(), exact.abs()) if function.unit == "ulp of x" else None
    ours = op.tensor(function.ours(x)).torch()
    errors = [ulp_error(result, exact, scale) for result in (ours, function.theirs(x))]
    return ErrorRow(
        function.name, name, "every exponent" if name == "fp32" else "all numbers", function.unit, errors[0], errors[1]
    )


def rows(stride: int = STRIDE) -> Iterator[ErrorRow]:
    """Every function in every dtype."""
    for function in FUNCTIONS:
        for name in DTYPES:
            yield row(function, name, stride)
