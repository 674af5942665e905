"""Transforms in others, for operands that are split over devices along what is transformed.

Along several axes a transform is one along each in turn. What a device has whole is transformed first, the rest when
devices have exchanged parts; so slabs exchange once and pencils twice. A transform that ends so leaves its result
split along another dimension, and the inverse, which again begins with what is whole, ends as the first one began:
nothing is moved back in between.

A long transform along one axis that is split, where nothing else can be split instead, is one over r rows and c columns
(Bailey, "FFTs in external or hierarchical memory", 1990). With n = n1 c + n2 and k = k1 + r k2,

    X[k1 + r k2] = sum_n2 W_c^(n2 k2)  W_n^(n2 k1)  sum_n1 W_r^(n1 k1)  x[n1 c + n2]
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeAlias

from tessera.dtypes import fp64, real_of
from tessera.lazy.layouts import layout
from tessera.ops.algebra import call, literal
from tessera.ops.collective.records import CONSTRAIN

N: TypeAlias = Any
Axes: TypeAlias = tuple[int, ...]
Sizes: TypeAlias = Sequence[int | None]

LONG: Final = 1 << 12
"""Points from which three exchanges of parts take less time than one of all of them."""

SIGN: Final = {"fft": -1.0, "ifft": 1.0}


def complex_transform(name: str) -> Callable[..., N]:
    """The spelling of `fft` or `ifft`."""

    def spelled(x: N, *, axes: Axes, sizes: Sizes, norm: str) -> N:
        if len(axes) == 1:
            return _lengthwise(name, x, axes[0], sizes[0], norm)
        first, rest = _first(x, axes)
        return _over(name, _over(name, x, first, axes, sizes, norm), rest, axes, sizes, norm)

    return spelled


def of_real(x: N, *, axes: Axes, sizes: Sizes, norm: str) -> N:
    """The spelling of `rfft`: along its last axis first, by which numbers become complex."""
    half = call("rfft", x, axes=axes[-1:], sizes=tuple(sizes[-1:]), norm=norm)
    return _over("fft", half, range(len(axes) - 1), axes, sizes, norm)


def to_real(x: N, *, axes: Axes, sizes: Sizes, norm: str) -> N:
    """The spelling of `irfft`: along its last axis last."""
    half = _over("ifft", x, range(len(axes) - 1), axes, sizes, norm)
    return call("irfft", half, axes=axes[-1:], sizes=tuple(sizes[-1:]), norm=norm)


def of_real_adjoint(adjoint_norm: Callable[[str], str]) -> Callable[..., N]:
    """The spelling of the adjoint of `rfft`, along its last axis last."""

    def spelled(g: N, *, axes: Axes, sizes: Sizes, norm: str, shape: Axes) -> N:
        outer = range(len(axes) - 1)
        back = _over("ifft", g, outer, axes, (None,) * len(axes), adjoint_norm(norm))
        return _ended("rfft_adjoint", _fitted(back, axes[:-1], shape), axes, sizes, norm, shape)

    return spelled


def to_real_adjoint(adjoint_norm: Callable[[str], str]) -> Callable[..., N]:
    """The spelling of the adjoint of `irfft`, along its last axis first."""

    def spelled(g: N, *, axes: Axes, sizes: Sizes, norm: str, shape: Axes) -> N:
        inner = tuple(shape[d] if d == axes[-1] else extent for d, extent in enumerate(g.shape))
        half = _ended("irfft_adjoint", g, axes, sizes, norm, inner)
        spectrum = _over("fft", half, range(len(axes) - 1), axes, (None,) * len(axes), adjoint_norm(norm))
        return _fitted(spectrum, axes[:-1], shape)

    return spelled


def _ended(name: str, x: N, axes: Axes, sizes: Sizes, norm: str, shape: Axes) -> N:
    """An adjoint along the last axis alone."""
    return call(name, x, axes=axes[-1:], sizes=tuple(sizes[-1:]), norm=norm, shape=shape)


def _fitted(x: N, axes: Axes, shape: Axes) -> N:
    wanted = tuple(shape[d] if d in axes else extent for d, extent in enumerate(x.shape))
    return x if wanted == x.shape else call("refit", x, shape=wanted)


def _over(name: str, x: N, places: Sequence[int], axes: Axes, sizes: Sizes, norm: str) -> N:
    """The transform along some of the axes, by place."""
    if not places:
        return x
    return call(name, x, axes=tuple(axes[p] for p in places), sizes=tuple(sizes[p] for p in places), norm=norm)


def _first(x: N, axes: Axes) -> tuple[list[int], list[int]]:
    """The axes, by place, that every device has whole, or one of them where none is; and the others."""
    dims = x.structure.layout.dims
    first = [place for place, axis in enumerate(axes) if not dims[axis]] or [len(axes) - 1]
    return first, [place for place in range(len(axes)) if place not in first]


def _lengthwise(name: str, x: N, axis: int, size: int | None, norm: str) -> N:
    """The transform along one axis; over rows and columns where that is worth it."""
    found = by_rows_and_columns(name, x, axis, size, norm)
    if found is None:
        return call(name, x, axes=(axis,), sizes=(size,), norm=norm)
    return columns_first(found[0], axis)


def by_rows_and_columns(name: str, x: N, axis: int, size: int | None, norm: str) -> tuple[N, int] | None:
    """The transform along one axis as Y[k1, k2] = X[k1 + r k2], and r; None where it is not worth it."""
    mesh, dims, points = x.structure.layout.mesh, x.structure.layout.dims, x.shape[axis]
    parts = math.prod(mesh.size(each) for each in dims[axis])
    others = [extent for d, extent in enumerate(x.shape) if d != axis]
    rows = _rows(points, parts)
    if size not in (None, points) or points < LONG or max(others, default=1) >= parts or rows is None:
        return None
    columns = points // rows
    grid = call("reshape", x, shape=(*x.shape[:axis], rows, columns, *x.shape[axis + 1 :]))
    by_columns = call(name, grid, axes=(axis,), sizes=(None,), norm=norm)
    turned = by_columns * _twiddles(name, x, axis, (rows, columns), 1, len(x.shape) - axis - 1)
    return call(name, turned, axes=(axis + 1,), sizes=(None,), norm=norm), rows


def columns_first(y: N, axis: int) -> N:
    """X[k1 + r k2] of Y[k1, k2]."""
    order = (*range(axis), axis + 1, axis, *range(axis + 2, len(y.shape)))
    shape = (*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :])
    return call("reshape", call("transpose", y, permutation=order), shape=shape)


def of_turned(name: str, y: N, axis: int, norm: str) -> N:
    """The transform, in order, of Y[k1, k2] = X[k1 + r k2]: along k2 first, which devices have whole."""
    by_rows = call(name, y, axes=(axis + 1,), sizes=(None,), norm=norm)
    turned = by_rows * _twiddles(name, y, axis, y.shape[axis : axis + 2], 0, len(y.shape) - axis - 2)
    grid = call(name, turned, axes=(axis,), sizes=(None,), norm=norm)
    return call("reshape", grid, shape=(*y.shape[:axis], y.shape[axis] * y.shape[axis + 1], *y.shape[axis + 2 :]))


def _rows(points: int, parts: int) -> int | None:
    """The divisor next to the root that as many parts divide, with as many columns at least; None where none does."""
    found = [rows for rows in range(parts, points // parts + 1, parts) if points % rows == 0]
    return min(found, key=lambda rows: abs(math.log(rows * rows / points)), default=None)


def _twiddles(name: str, x: N, axis: int, grid: Sequence[int], split: int, behind: int) -> N:
    """exp(-+2 pi i a b / n) of a grid [a, b], of which each device computes its columns (`split` is 1) or rows (0), as
    x is split along an axis; with so many dimensions behind.
    """
    laid = layout(x.structure.layout.mesh, [x.structure.layout.dims[axis]])
    own = call(CONSTRAIN.name, call("iota", shape=(grid[split],)), layout=laid)
    other = call("iota", shape=(grid[1 - split],))
    rows, columns = (other, own) if split else (own, other)
    turns = call("reshape", rows, shape=(grid[0], 1)) * columns
    angles = call("cast", turns, dtype=fp64) * literal(SIGN[name] * 2 * math.pi / (grid[0] * grid[1]), fp64)
    real = real_of(x.dtype)
    sides = [call("cast", call(each, angles), dtype=real) for each in ("cos", "sin")]
    parts = [call("reshape", side, shape=(*grid, 1)) for side in sides]
    table = call("view_as_complex", call("concat", *parts, axis=2))
    return call("reshape", table, shape=(*grid, *[1] * behind))
