"""Functions of one variable: `exp log expm1 log1p sin cos sqrt rsqrt tanh erf sigmoid silu gelu`."""

from __future__ import annotations

import math
from typing import Any, Final, TypeAlias

import torch

from tessera.ops.algebra import call
from tessera.ops.applications import maps
from tessera.ops.elementwise.dtypes import to_float
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Emitter, V
from tessera.ops.extension import only_float

N: TypeAlias = Any
"""A node."""

SQRT_HALF: Final = math.sqrt(0.5)
GELU_SCALE: Final = math.sqrt(2.0 / math.pi)
GELU_CUBIC: Final = 0.044715
"""Hendrycks and Gimpel, "Gaussian Error Linear Units" (2016): gelu(x) ~ x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715
x^3))).
"""
ERF_SCALE: Final = 2.0 / math.sqrt(math.pi)
NORMAL_SCALE: Final = 1.0 / math.sqrt(2.0 * math.pi)
"""Height of the standard normal density."""


def _sigmoid(e: Emitter[V], x: V) -> V:
    """1 / (1 + exp(-x)): exp overflows to infinity, whose inverse is the right 0."""
    one = e.constant(1.0, x)
    return e.div(one, e.add(one, e.exp(e.neg(x), approximate=True)))


def _silu(e: Emitter[V], x: V) -> V:
    """x / (1 + exp(-x))."""
    return e.div(x, e.add(e.constant(1.0, x), e.exp(e.neg(x), approximate=True)))


def _silu_gradient(g: N, x: N, out: N) -> N:
    """d(x s) = s (1 + x (1 - s)) dx, with s = sigmoid(x)."""
    s = call("sigmoid", x)
    return g * (s * (1 + x * (1 - s)))


def _gelu(e: Emitter[V], x: V, *, approximate: str) -> V:
    """x Phi(x), by erf, or by tanh where `approximate` says so."""
    half = e.mul(e.constant(0.5, x), x)
    if approximate == "tanh":
        cubic = e.mul(e.mul(x, x), e.mul(e.constant(GELU_CUBIC, x), x))
        inner = e.tanh(e.mul(e.constant(GELU_SCALE, x), e.add(x, cubic)), approximate=True)
    else:
        inner = e.erf(e.mul(x, e.constant(SQRT_HALF, x)), approximate=True)
    return e.mul(half, e.add(inner, e.constant(1.0, x)))


def _gelu_gradient(g: N, x: N, out: N, *, approximate: str) -> N:
    """d(x Phi(x)) = (Phi(x) + x phi(x)) dx; the tanh form is differentiated as it stands."""
    if approximate == "tanh":
        t = call("tanh", GELU_SCALE * (x + GELU_CUBIC * x * x * x))
        slope = GELU_SCALE * (1 + 3 * GELU_CUBIC * x * x)
        return g * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope)
    distribution = 0.5 * (1 + call("erf", x * SQRT_HALF))
    density = NORMAL_SCALE * call("exp", -0.5 * (x * x))
    return g * (distribution + x * density)


def _gelu_reference(x: torch.Tensor, *, approximate: str) -> torch.Tensor:
    return torch.nn.functional.gelu(x, approximate=approximate)


def _size(x: torch.Tensor, **attributes: object) -> torch.Tensor:
    return x.abs()


ROWS = (
    elementwise("exp", lambda e, x: e.exp(x), lambda g, x, out: g * out, torch.exp, to_float),
    elementwise("log", lambda e, x: e.log(x), lambda g, x, out: g / x, torch.log, to_float, positive=True),
    elementwise("expm1", lambda e, x: e.expm1(x), lambda g, x, out: g * (out + 1), torch.expm1, to_float),
    elementwise("log1p", lambda e, x: e.log1p(x), lambda g, x, out: g / (x + 1), torch.log1p, to_float),
    elementwise("sin", lambda e, x: e.sin(x), lambda g, x, out: g * call("cos", x), torch.sin, to_float),
    elementwise("cos", lambda e, x: e.cos(x), lambda g, x, out: -(g * call("sin", x)), torch.cos, to_float),
    elementwise("sqrt", lambda e, x: e.sqrt(x), lambda g, x, out: g * 0.5 / out, torch.sqrt, to_float, positive=True),
    elementwise(
        "rsqrt", lambda e, x: e.rsqrt(x), lambda g, x, out: g * -0.5 * out * out * out, torch.rsqrt, to_float,
        positive=True,
    ),
    elementwise("tanh", lambda e, x: e.tanh(x), lambda g, x, out: g * (1 - out * out), torch.tanh, to_float),
    elementwise(
        "erf", lambda e, x: e.erf(x), lambda g, x, out: g * (call("exp", -(x * x)) * ERF_SCALE), torch.erf, to_float
    ),
    elementwise("sigmoid", _sigmoid, lambda g, x, out: g * (out * (1 - out)), torch.sigmoid, to_float),
    elementwise("silu", _silu, _silu_gradient, torch.nn.functional.silu, only_float),
    elementwise(
        "gelu", _gelu, _gelu_gradient, _gelu_reference, only_float,
        attributes={"approximate": "none"}, application=maps.of_maps(1, maps.approximations), terms=_size,
    ),
)  # fmt: skip
"""One row an operator: name, body, gradient, reference, dtypes of operands, and what else is special."""
