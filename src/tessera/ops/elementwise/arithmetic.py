"""Arithmetic: `add sub mul div pow maximum minimum neg abs relu floor ceil round clamp`.

Gradients at ties and corners are torch's: both sides of an equal maximum get half, abs has derivative 0 at 0.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

from tessera.dtypes import bool_
from tessera.ops.algebra import call, literal
from tessera.ops.applications import maps
from tessera.ops.elementwise.dtypes import common, numbers, to_float, within_bounds
from tessera.ops.elementwise.row import elementwise
from tessera.ops.emitter import Emitter, V

N: TypeAlias = Any
"""A node."""


def _add(e: Emitter[V], a: V, b: V) -> V:
    """Of bools, their union."""
    return e.logical_or(a, b) if a.dtype is bool_ else e.add(a, b)


def _mul(e: Emitter[V], a: V, b: V) -> V:
    """Of bools, their intersection."""
    return e.logical_and(a, b) if a.dtype is bool_ else e.mul(a, b)


def _pow_gradient(g: N, a: N, b: N, out: N) -> tuple[N, N]:
    """d(a ** b) = b a ** (b - 1) da + a ** b ln(a) db; 0 where b, or a under a positive power, is 0."""
    zero = literal(0, out.dtype)
    base = call("where", b == 0, zero, g * (b * call("pow", a, b - 1)))
    exponent = call("where", (a == 0) & (b >= 0), zero, g * (out * call("log", a)))
    return base, exponent


def _maximum(e: Emitter[V], a: V, b: V) -> V:
    """The larger; NaN if either is; of bools, their union."""
    return e.logical_or(a, b) if a.dtype is bool_ else e.maximum(a, b)


def _minimum(e: Emitter[V], a: V, b: V) -> V:
    """The smaller; NaN if either is; of bools, their intersection."""
    return e.logical_and(a, b) if a.dtype is bool_ else e.minimum(a, b)


def _extremum_gradient(g: N, first_wins: N, second_wins: N) -> tuple[N, N]:
    zero = literal(0, g.dtype)
    half = g * 0.5
    first = call("where", first_wins, g, call("where", second_wins, zero, half))
    second = call("where", second_wins, g, call("where", first_wins, zero, half))
    return first, second


def _abs_gradient(g: N, x: N, out: N) -> N:
    return call("where", x > 0, g, call("where", x < 0, -g, literal(0, g.dtype)))


# Integers are their own floor, ceiling and nearest integer.
def _floor(e: Emitter[V], x: V) -> V:
    return e.floor(x) if x.dtype.kind == "float" else x


def _ceil(e: Emitter[V], x: V) -> V:
    return e.ceil(x) if x.dtype.kind == "float" else x


def _round(e: Emitter[V], x: V) -> V:
    return e.round(x) if x.dtype.kind == "float" else x


def _clamp(e: Emitter[V], x: V, *, minimum: float | None, maximum: float | None) -> V:
    """The upper bound is applied last: it wins where the bounds cross, as in torch."""
    raised = x if minimum is None else e.maximum(x, e.constant(minimum, x))
    return raised if maximum is None else e.minimum(raised, e.constant(maximum, x))


def _clamp_gradient(g: N, x: N, out: N, *, minimum: float | None, maximum: float | None) -> N:
    """Within the bounds, which count as within."""
    zero = literal(0, g.dtype)
    if minimum is not None:
        g = call("where", x >= minimum, g, zero)
    if maximum is not None:
        g = call("where", x <= maximum, g, zero)
    return g


def _clamp_reference(x: torch.Tensor, *, minimum: float | None, maximum: float | None) -> torch.Tensor:
    return torch.clamp(x, minimum, maximum)


ROWS = (
    elementwise("add", _add, lambda g, a, b, out: (g, g), torch.add, common, cheap=True),
    elementwise(
        "sub", lambda e, a, b: e.sub(a, b), lambda g, a, b, out: (g, -g), torch.sub, numbers, cheap=True
    ),
    elementwise("mul", _mul, lambda g, a, b, out: (g * b, g * a), torch.mul, common, cheap=True),
    elementwise(
        "div", lambda e, a, b: e.div(a, b), lambda g, a, b, out: (g / b, -g * out / b), torch.div, to_float,
        positive=True,
    ),
    elementwise(
        "pow", lambda e, a, b: e.pow(a, b), _pow_gradient, torch.pow, numbers,
        positive=True, application=maps.of_powers,
    ),
    elementwise(
        "maximum", _maximum, lambda g, a, b, out: _extremum_gradient(g, a > b, b > a), torch.maximum, common,
        cheap=True,
    ),
    elementwise(
        "minimum", _minimum, lambda g, a, b, out: _extremum_gradient(g, a < b, b < a), torch.minimum, common,
        cheap=True,
    ),
    elementwise("neg", lambda e, x: e.neg(x), lambda g, x, out: -g, torch.neg, numbers, cheap=True),
    elementwise("abs", lambda e, x: e.abs(x), _abs_gradient, torch.abs, numbers, cheap=True),
    elementwise(
        "relu",
        lambda e, x: e.maximum(x, e.constant(0, x)),
        lambda g, x, out: call("where", out > 0, g, literal(0, g.dtype)),
        torch.relu, numbers, cheap=True,
    ),
    elementwise("floor", _floor, None, torch.floor, numbers, cheap=True),
    elementwise("ceil", _ceil, None, torch.ceil, numbers, cheap=True),
    elementwise("round", _round, None, torch.round, numbers, cheap=True),
    elementwise(
        "clamp", _clamp, _clamp_gradient, _clamp_reference, within_bounds,
        attributes={"minimum": None, "maximum": None}, cheap=True, application=maps.of_maps(1, maps.bounds),
    ),
)  # fmt: skip
"""One row an operator: name, body, gradient, reference, dtypes of operands, and what else is special."""
