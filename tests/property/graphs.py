"""Random expression graphs: operators of all families over pending values, with everything fusion has to get right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st

from tessera import op
from tessera.dtypes import DType
from tessera.handle import Tensor
from tests.property.operands import LAYOUTS, Shape, filled, laid_out

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]
Grow: TypeAlias = Callable[["Graph"], Tensor]

WIDTHS = (1, 2, 5, 16, 17, 33, 70)
"""Extents of the two dimensions that values of a graph share, so that most of them can be combined."""


class Graph:
    """A graph as it grows: all values made so far, any of which may be used again."""

    def __init__(self, draw: Draw, dtype: DType, smooth: bool) -> None:
        self.draw = draw
        self.rows, self.columns = (draw(st.sampled_from(WIDTHS)) for _ in range(2))
        self.inputs = [self._input(dtype) for _ in range(draw(st.integers(1, 3)))]
        self.values: list[Tensor] = [op.tensor(tensor) for tensor in self.inputs]
        self.growth = SMOOTH if smooth else SMOOTH + ROUGH

    def _input(self, dtype: DType) -> torch.Tensor:
        shape: Shape = self.draw(
            st.sampled_from(
                ((self.rows, self.columns), (self.rows, self.columns), (self.columns,), (self.rows, 1), (self.rows,))
            )
        )
        tensor = filled(shape, dtype, "ordinary", self.draw(st.integers(0, 1 << 16)))
        return laid_out(tensor, self.draw(st.sampled_from(LAYOUTS)))

    def grow(self, count: int) -> Tensor:
        """Applies `count` drawn operators; gives the value made last."""
        for _ in range(count):
            self.values.append(self.draw(st.sampled_from(self.growth))(self))
        return self.values[-1]

    def any(self) -> Tensor:
        """A value made so far, the latest ones more often."""
        recent = self.values[-3:]
        value: Tensor = self.draw(st.sampled_from(recent + self.values))
        return value

    def matrix(self) -> Tensor:
        """A value of (rows, columns)."""
        value = self.any()
        if value.shape == (self.rows,) and self.rows != self.columns:
            value = value.reshape((self.rows, 1))
        return value.broadcast_to((self.rows, self.columns))


# -- operators whose results change little when their operands do: every dtype can be compared ------------------------


def _unary(graph: Graph) -> Tensor:
    name = graph.draw(st.sampled_from(("tanh", "sigmoid", "erf", "gelu", "silu", "neg")))
    result: Tensor = getattr(op, name)(graph.any())
    return result


def _bounded_exp(graph: Graph) -> Tensor:
    return op.exp(op.tanh(graph.any()))


def _root(graph: Graph) -> Tensor:
    x = graph.any()
    choice = graph.draw(st.sampled_from(("sqrt", "rsqrt", "log")))
    result: Tensor = getattr(op, choice)(x * x + 1.0)
    return result


def _sum_or_difference(graph: Graph) -> Tensor:
    a, b = graph.matrix(), graph.matrix()
    return op.add(a, b) if graph.draw(st.booleans()) else op.sub(a, b)


def _product(graph: Graph) -> Tensor:
    return op.mul(op.tanh(graph.matrix()), graph.matrix())


def _quotient(graph: Graph) -> Tensor:
    return op.div(graph.matrix(), op.abs(graph.matrix()) + 1.5)


def _with_number(graph: Graph) -> Tensor:
    x, number = graph.any(), graph.draw(st.sampled_from((0.5, -1.0, 2, 0.0, 1.0)))
    results: tuple[Tensor, ...] = (x + number, number - x, x * number, x / 4.0)
    return results[graph.draw(st.integers(0, 3))]


def _reduction(graph: Graph) -> Tensor:
    x = graph.matrix()
    kind = graph.draw(st.sampled_from(("sum", "mean")))
    axis = graph.draw(st.sampled_from((0, 1, -1, (0, 1))))
    scaled = x * (1.0 / 16) if kind == "sum" else x
    result: Tensor = getattr(op, kind)(scaled, axis, graph.draw(st.booleans()))
    return result


def _row(graph: Graph) -> Tensor:
    x = graph.matrix()
    kind = graph.draw(st.sampled_from(("softmax", "softmax", "log_softmax", "layer_norm", "rms_norm")))
    if kind.endswith("softmax"):
        chosen: Tensor = getattr(op, kind)(op.tanh(x), graph.draw(st.sampled_from((0, 1))))
        return chosen
    # A large eps: rows of nearly equal elements would make noise of rounding errors.
    return op.layer_norm(x, eps=0.5) if kind == "layer_norm" else op.rms_norm(x, eps=0.5)


def _matmul(graph: Graph) -> Tensor:
    """A product with its own transpose or another value's, brought back to (rows, columns) by another product."""
    a, b, c = op.tanh(graph.matrix()), graph.matrix(), graph.matrix()
    scale = 1.0 / (graph.rows + graph.columns)
    return op.matmul(op.matmul(a, b.T) * scale, c) if graph.draw(st.booleans()) else op.matmul(a, b.T @ c * scale)


def _attention(graph: Graph) -> Tensor:
    """Attention written out, scaled and maybe masked by what there is, its scores of (rows, rows)."""
    q, k, v = op.tanh(graph.matrix()), graph.matrix(), graph.matrix()
    scores = op.matmul(q, op.tanh(k).T) * (1.0 / graph.columns)
    choice = graph.draw(st.integers(0, 3))
    if choice == 1:
        scores = scores + op.tanh(graph.matrix())[:, :1]
    elif choice == 2:
        position = op.arange(graph.rows)
        scores = op.where(op.reshape(position, (graph.rows, 1)) >= position, scores, float("-inf"))
    elif choice == 3:
        weights = op.exp(scores - op.max(scores, -1, True))
        return op.matmul(weights / op.sum(weights, -1, True), v)
    return op.matmul(op.softmax(scores), v)


def _normed_product(graph: Graph) -> Tensor:
    """Products of one norm, one of them the gate of the other."""
    normed = (
        op.rms_norm(graph.matrix(), eps=0.5) if graph.draw(st.booleans()) else op.layer_norm(graph.matrix(), eps=0.5)
    )
    weights = op.tanh(graph.matrix()).T * (1.0 / (graph.rows + graph.columns))
    gate, up = op.matmul(normed, weights), op.matmul(normed, weights * 0.5)
    return op.matmul(op.silu(gate) * up, op.tanh(graph.matrix()))


def _heads(graph: Graph) -> Tensor:
    """Columns taken apart, worked on and put side by side in another order."""
    x = op.gelu(graph.matrix()).reshape((graph.rows, 1, graph.columns))
    twice = op.concat([x, op.tanh(x)], 1)
    flat = twice.transpose(1, 0, 2).reshape((2 * graph.rows, graph.columns))
    return flat[graph.rows :]


def _transposed(graph: Graph) -> Tensor:
    return op.gelu(graph.matrix().T).T


def _reshaped(graph: Graph) -> Tensor:
    return op.tanh(graph.matrix().reshape((-1,))).reshape((graph.rows, graph.columns))


def _halves(graph: Graph) -> Tensor:
    x, half = graph.matrix(), graph.columns // 2
    return op.concat([x[:, half:] * 2.0, op.tanh(graph.matrix())[:, :half]], 1)


def _stepped(graph: Graph) -> Tensor:
    x = graph.matrix()
    return op.concat([x[1::2], x[::2] + 1.0], 0)


SMOOTH: tuple[Grow, ...] = (
    _unary,
    _bounded_exp,
    _root,
    _sum_or_difference,
    _product,
    _quotient,
    _with_number,
    _reduction,
    _row,
    _matmul,
    _attention,
    _normed_product,
    _heads,
    _transposed,
    _reshaped,
    _halves,
    _stepped,
)


# -- operators that decide by comparing: only for fp64, where rounding does not change decisions ----------------------


def _choice(graph: Graph) -> Tensor:
    a, b = graph.matrix(), graph.matrix()
    return op.where(a > 0.37, b, a)


def _extreme(graph: Graph) -> Tensor:
    x = graph.matrix()
    kind, axis = graph.draw(st.sampled_from(("max", "min"))), graph.draw(st.sampled_from((0, 1)))
    result: Tensor = getattr(op, kind)(x, axis, True)
    return result.broadcast_to(x.shape)


def _clamped(graph: Graph) -> Tensor:
    return op.sub(op.clamp(op.relu(graph.matrix()), 0.1, 2.0), op.minimum(graph.matrix(), graph.matrix()))


ROUGH: tuple[Grow, ...] = (_choice, _extreme, _clamped)
