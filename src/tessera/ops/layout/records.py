"""Layout operators: `reshape transpose broadcast_to slice concat pad`. They move elements and compute nothing.

The functions of `views` decide whether an operator is needed at all, and check its attributes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.structures.promotion import common_dtype
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal, sum_to
from tessera.ops.applications import layouts
from tessera.ops.emitter import Emitter, V
from tessera.ops.layout.regrouping import regrouped
from tessera.ops.record import Named, Operator, Typed, register

N: TypeAlias = Any


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _common(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [common_dtype(operands)] * len(operands)


def _copy_body(e: Emitter[V], x: V, *others: V, **attributes: object) -> V:
    """The element as it is: which element of which operand, the addresses say."""
    return x


# -- reshape ----------------------------------------------------------------------------------------------------------


def _target_shape(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    return attributes["shape"], cast[0]


def _without_shape(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {"shape": None}


def _reshape_reference(x: torch.Tensor, *, shape: Shape) -> torch.Tensor:
    return x.reshape(shape)


def _reshape_gradient(g: N, operands: tuple[N], out: N, *, shape: Shape) -> tuple[N]:
    return (call("reshape", g, shape=operands[0].shape),)


# -- broadcast_to -----------------------------------------------------------------------------------------------------


def _broadcast_reference(x: torch.Tensor, *, shape: Shape) -> torch.Tensor:
    return x.broadcast_to(shape)


def _broadcast_gradient(g: N, operands: tuple[N], out: N, *, shape: Shape) -> tuple[N]:
    return (sum_to(g, operands[0].shape),)


# -- transpose --------------------------------------------------------------------------------------------------------


def _transpose_reference(x: torch.Tensor, *, permutation: tuple[int, ...]) -> torch.Tensor:
    return x.permute(permutation)


def _transpose_gradient(g: N, operands: tuple[N], out: N, *, permutation: tuple[int, ...]) -> tuple[N]:
    inverse = tuple(permutation.index(axis) for axis in range(len(permutation)))
    return (call("transpose", g, permutation=inverse),)


# -- slice ------------------------------------------------------------------------------------------------------------


def _slice_symbolic(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {"starts": None, "sizes": None, "steps": attributes["steps"]}


def _slice_reference(x: torch.Tensor, *, starts: Shape, sizes: Shape, steps: Shape) -> torch.Tensor:
    for axis, (start, size, step) in enumerate(zip(starts, sizes, steps, strict=True)):
        x = x.index_select(axis, torch.arange(size) * step + start)
    return x


def _slice_gradient(g: N, operands: tuple[N], out: N, *, starts: Shape, sizes: Shape, steps: Shape) -> tuple[N]:
    """The cotangent where the elements came from, among zeros."""
    (x,) = operands
    backwards = [axis for axis, step in enumerate(steps) if step < 0]
    if backwards:
        turned = tuple(start + max(size - 1, 0) * step for start, size, step in zip(starts, sizes, steps, strict=True))
        starts = tuple(turned[d] if d in backwards else start for d, start in enumerate(starts))
        return _slice_gradient(
            reversed_along(g, backwards), operands, out, starts=starts, sizes=sizes, steps=tuple(map(abs, steps))
        )
    for axis, extent in enumerate(x.shape):
        spread = dilated(g, axis, steps[axis]) if steps[axis] > 1 and sizes[axis] else g
        # Dilation leaves zeros after the last element, of which the operand may hold fewer.
        kept = min(spread.shape[axis], extent - starts[axis])
        spread = spread if kept == spread.shape[axis] else _first(spread, axis, kept)
        g = padded(spread, axis, starts[axis], extent - starts[axis] - kept)
    return (g,)


def reversed_along(x: N, axes: Sequence[int]) -> N:
    """The elements in the opposite order along some axes."""
    starts = tuple(max(extent - 1, 0) if axis in axes else 0 for axis, extent in enumerate(x.shape))
    steps = tuple(-1 if axis in axes else 1 for axis in range(len(x.shape)))
    return call("slice", x, starts=starts, sizes=x.shape, steps=steps)


def _zeros(like: N, axis: int, extent: int) -> N:
    shape = (*like.shape[:axis], extent, *like.shape[axis + 1 :])
    return call("broadcast_to", literal(0, like.dtype), shape=shape)


def dilated(x: N, axis: int, step: int) -> N:
    """`step - 1` zeros after each element along `axis`."""
    before, after = x.shape[: axis + 1], x.shape[axis + 1 :]
    column = call("reshape", x, shape=(*before, 1, *after))
    wide = call("concat", column, _zeros(column, axis + 1, step - 1), axis=axis + 1)
    return call("reshape", wide, shape=(*x.shape[:axis], x.shape[axis] * step, *after))


def _first(x: N, axis: int, count: int) -> N:
    rank = len(x.shape)
    sizes = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return call("slice", x, starts=(0,) * rank, sizes=sizes, steps=(1,) * rank)


def padded(x: N, axis: int, before: int, after: int) -> N:
    """Zeros at either end of an axis."""
    parts = [_zeros(x, axis, before)] if before else []
    parts += [x, *([_zeros(x, axis, after)] if after else [])]
    return call("concat", *parts, axis=axis) if len(parts) > 1 else x


# -- concat -----------------------------------------------------------------------------------------------------------


def _concat_reference(*parts: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.cat(parts, axis)


def _concat_gradient(g: N, operands: tuple[N, ...], out: N, *, axis: int) -> tuple[N, ...]:
    rank = len(g.shape)
    cotangents, start = [], 0
    for operand in operands:
        starts = tuple(start if dim == axis else 0 for dim in range(rank))
        cotangents.append(call("slice", g, starts=starts, sizes=operand.shape, steps=(1,) * rank))
        start += operand.shape[axis]
    return tuple(cotangents)


# -- pad --------------------------------------------------------------------------------------------------------------


def _pad_symbolic(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {"before": None, "after": None, "mode": attributes["mode"]}


def pad_sources(mode: str, extent: int, before: int, after: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Where the padding along an axis comes from: (first place, step) in the result for what is before, and after."""
    last = before + extent - 1
    if mode == "reflect":
        return (2 * before, -1), (last - 1, -1)
    return ((extent, 1), (before, 1)) if mode == "circular" else ((before, 0), (last, 0))


def _pad_reference(x: torch.Tensor, *value: torch.Tensor, before: Shape, after: Shape, mode: str) -> torch.Tensor:
    for axis, (front, back) in enumerate(zip(before, after, strict=True)):
        extent = x.shape[axis]
        if mode == "constant":
            shapes = [(*x.shape[:axis], width, *x.shape[axis + 1 :]) for width in (front, back)]
            parts = [value[0].expand(shape) for shape in shapes]
        else:
            sources = pad_sources(mode, extent, front, back)
            widths = zip(sources, (front, back), strict=True)
            parts = [
                x.index_select(axis, torch.arange(width) * step + start - front) for (start, step), width in widths
            ]
        x = torch.cat([parts[0], x, parts[1]], axis)
    return x


def _pad_gradient(g: N, operands: tuple[N, ...], out: N, *, before: Shape, after: Shape, mode: str) -> tuple[N, ...]:
    """What lies inside, and what the padding was copied from gets the padding's cotangent too, the last axis first."""
    if mode == "constant":
        inside = _between(g, before, operands[0].shape)
        zeros = call("broadcast_to", literal(0, g.dtype), shape=operands[0].shape)
        outside = call("pad", zeros, literal(1, g.dtype), before=before, after=after, mode=mode)
        return inside, call("sum", g * outside, axes=tuple(range(len(g.shape))))
    for axis in reversed(range(len(before))):
        g = _folded(g, axis, operands[0].shape[axis], before[axis], after[axis], mode)
    return (g,)


def _folded(g: N, axis: int, extent: int, before: int, after: int, mode: str) -> N:
    """The cotangent of what was padded along one axis."""
    inside = _along(g, axis, before, extent)
    for width, at, (start, step) in (
        (before, 0, pad_sources(mode, extent, before, after)[0]),
        (after, before + extent, pad_sources(mode, extent, before, after)[1]),
    ):
        if not width:
            continue
        part, first = _along(g, axis, at, width), start - before
        if step == 0:
            part = call("sum", part, axes=(axis,), keepdims=True)
        elif step < 0:
            part, first = reversed_along(part, [axis]), first - width + 1
        inside = inside + padded(part, axis, first, extent - first - part.shape[axis])
    return inside


def _along(x: N, axis: int, start: int, size: int) -> N:
    starts = tuple(start if dim == axis else 0 for dim in range(len(x.shape)))
    return _between(x, starts, (*x.shape[:axis], size, *x.shape[axis + 1 :]))


def _between(x: N, starts: Shape, sizes: Shape) -> N:
    return call("slice", x, starts=starts, sizes=sizes, steps=(1,) * len(sizes))


def _define(
    name: str,
    reference: Callable[..., torch.Tensor],
    gradient: Callable[..., tuple[Any, ...]],
    attributes: Named,
    **special: Any,
) -> Operator:
    fields: dict[str, Any] = {"arity": (1, 1), "operand_dtypes": _as_given} | special
    return register(
        Operator(
            name=name,
            family="layout",
            reference=reference,
            gradient=gradient,
            body=_copy_body,
            attributes=attributes,
            **fields,
        )
    )


_SHAPE: Named = {"shape": ()}
_SLICE: Named = {"starts": (), "sizes": (), "steps": ()}
_MANY: dict[str, Any] = {"arity": (1, 1 << 30), "operand_dtypes": _common}

_define(
    "reshape",
    _reshape_reference,
    _reshape_gradient,
    _SHAPE,
    result=_target_shape,
    symbolic=_without_shape,
    known_anchor=regrouped,
    movement="regrouped",
    application=layouts.of_reshapes,
)
_define(
    "broadcast_to",
    _broadcast_reference,
    _broadcast_gradient,
    _SHAPE,
    symbolic=_without_shape,
    anchor=anchor_rules.repetition,
    movement="repeated",
    application=layouts.of_broadcasts,
)
_define(
    "transpose",
    _transpose_reference,
    _transpose_gradient,
    {"permutation": ()},
    anchor=anchor_rules.transposition,
    movement="permuted",
    application=layouts.of_transposes,
)
_define(
    "slice",
    _slice_reference,
    _slice_gradient,
    _SLICE,
    symbolic=_slice_symbolic,
    anchor=anchor_rules.cut,
    movement="cut",
    application=layouts.of_slices,
)
_define(
    "concat",
    _concat_reference,
    _concat_gradient,
    {"axis": 0},
    anchor=anchor_rules.concatenation,
    movement="joined",
    application=layouts.of_concatenations,
    **_MANY,
)
_define(
    "pad",
    _pad_reference,
    _pad_gradient,
    {"before": (), "after": (), "mode": "constant"},
    symbolic=_pad_symbolic,
    anchor=anchor_rules.padding,
    movement="padded",
    application=layouts.of_padding,
    arity=(1, 2),
    operand_dtypes=_common,
)
