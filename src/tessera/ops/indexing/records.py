"""Operators that read or write at places given by a tensor of indices, by torch's library.

Indices count from 0; negative ones are refused, as torch's functions do. Every index is checked before what it names is
read or written: IndexRangeError (E_INDEX) names the first that is out of range, and its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.errors import IndexRangeError
from tessera.ir.anchors import along
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal
from tessera.ops.applications import places
from tessera.ops.extension import same_shape_result
from tessera.ops.indexing.small_calls import checked, replaced, taken
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, elements, shape_error

N: TypeAlias = Any


def refuse_out_of_range(
    what: str, index: torch.Tensor, extent: int, ignored: int | None = None, from_end: bool = False
) -> None:
    """Raises IndexRangeError for the first index outside of 0 to `extent - 1` that is not `ignored`; with `from_end`
    -1 to `-extent` are places, too.
    """
    if not index.numel():
        return
    first = -extent if from_end else 0
    least, most = torch.aminmax(index)
    if least >= first and most < extent:
        return
    outside = (index < first) | (index >= extent)
    if ignored is not None:
        outside &= index != ignored
    if outside.any():
        place = tuple(outside.nonzero()[0].tolist())
        raise IndexRangeError(
            f"{what}: index {int(index[place])} at {place} of the indices, where there are {extent}",
            hints=[f"indices are {first} to {extent - 1}" if extent else "there is nothing to index"],
        )


@contextmanager
def named_index(what: str, index: torch.Tensor, extent: int) -> Iterator[None]:
    """Says which index it was where torch, which checks each before it is used, refuses one."""
    try:
        yield
    except (IndexError, RuntimeError):
        refuse_out_of_range(what, index, extent)
        raise


def _each_added(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return elements(operands[-1].shape)


def _none(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


def with_indices(*places: int) -> Any:
    """A rule: the operands at `places` are integers, which come as int64; the others have one dtype, not of 8 bits."""

    def rule(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
        name = str(attributes.get("what", name))  # as users called it
        others = [operand for place, operand in enumerate(operands) if place not in places]
        if any(operands[place].dtype.kind != "int" for place in places):
            raise dtype_error(name, operands, "indices are integers", ["cast them to int64"])
        if len({operand.dtype for operand in others}) > 1:
            raise dtype_error(name, operands, "the tensors have one dtype", ["cast one of them"])
        if any(operand.dtype.kind == "float" and operand.dtype.itemsize == 1 for operand in others):
            raise dtype_error(name, operands, "not defined on 8-bit floats", ["cast to a wider dtype"])
        return [int64 if place in places else operand.dtype for place, operand in enumerate(operands)]

    return rule


# -- checked_index ----------------------------------------------------------------------------------------------------


def _checked_reference(
    index: torch.Tensor, *, what: str, extent: int, ignored: int | None, from_end: bool
) -> torch.Tensor:
    refuse_out_of_range(what, index, extent, ignored, from_end)
    return torch.where(index < 0, index + extent, index) if from_end else index


def _without_extent(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {**attributes, "extent": None}


def _checked(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (index,), extent, from_end = inputs, attributes["extent"], attributes["from_end"]
    refuse_out_of_range(attributes["what"], index, extent, attributes["ignored"], from_end)
    outputs[0].copy_(torch.where(index < 0, index + extent, index) if from_end else index)


define(
    "checked_index",
    _checked,
    {"what": "", "extent": 0, "ignored": None, "from_end": False},
    operand_dtypes=with_indices(0),
    result=same_shape_result,
    native=checked,
    reference=_checked_reference,
    gradient=_none,
    application=places.of_checks,
    symbolic=_without_extent,
)

# -- take and its transpose -------------------------------------------------------------------------------------------


def _taken(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    x, index = operands[0].shape, operands[1].shape
    axis = attributes["axis"]
    return (*x[:axis], *index, *x[axis + 1 :]), cast[0]


def _taken_bytes(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    moved = 2 * elements(result.shape) * result.dtype.itemsize
    return moved + elements(operands[1].shape) * operands[1].dtype.itemsize


def _take_reference(x: torch.Tensor, index: torch.Tensor, *, what: str, axis: int, held: int | None) -> torch.Tensor:
    refuse_out_of_range(what, index, x.shape[axis])
    return x.index_select(axis, index.flatten()).reshape((*x.shape[:axis], *index.shape, *x.shape[axis + 1 :]))


def _take_gradient(g: N, operands: tuple[N, N], out: N, *, what: str, axis: int, held: int | None) -> tuple[N, None]:
    """The sums of what each part was used for; the part `held` gets none."""
    x, index = operands
    if held is not None:
        column = call("reshape", index, shape=(*index.shape, *[1] * (len(g.shape) - axis - len(index.shape))))
        g = call("where", column == held, literal(0, g.dtype), g)
    return call("put_sum", g, index, what=what, axis=axis, extent=x.shape[axis]), None


def _take(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index), (result,), axis = inputs, outputs, attributes["axis"]
    if index.dim() != 1:
        result = result.view(*x.shape[:axis], index.numel(), *x.shape[axis + 1 :])
    with named_index(attributes["what"], index, x.shape[axis]):
        torch.index_select(x, axis, index.flatten(), out=result)


define(
    "take",
    _take,
    {"what": "take", "axis": 0, "held": None},
    arity=(2, 2),
    operand_dtypes=with_indices(1),
    result=_taken,
    known_anchor=along.taken,
    bytes_moved=_taken_bytes,
    native=taken,
    reference=_take_reference,
    gradient=_take_gradient,
    application=places.of_takes,
)


def _summed(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    shape, rank, axis = operands[0].shape, len(operands[1].shape), attributes["axis"]
    if shape[axis : axis + rank] != operands[1].shape:
        raise shape_error(name, operands, "the indices have no element for each part")
    return (*shape[:axis], attributes["extent"], *shape[axis + rank :]), cast[0]


def _put_reference(x: torch.Tensor, index: torch.Tensor, *, what: str, axis: int, extent: int) -> torch.Tensor:
    refuse_out_of_range(what, index, extent)
    shape = (*x.shape[:axis], extent, *x.shape[axis + index.ndim :])
    parts = x.reshape(*shape[:axis], index.numel(), *shape[axis + 1 :])
    return torch.zeros(shape, dtype=x.dtype).index_add(axis, index.flatten(), parts)


def _put_gradient(g: N, operands: tuple[N, N], out: N, *, what: str, axis: int, extent: int) -> tuple[N, None]:
    return call("take", g, operands[1], what=what, axis=axis), None


def _put(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index), (result,), axis = inputs, outputs, attributes["axis"]
    parts = x.reshape(*result.shape[:axis], index.numel(), *result.shape[axis + 1 :])
    wide = widened(result).zero_()
    with named_index(attributes["what"], index, attributes["extent"]):
        # One after the other, in the order of the indices.
        wide.index_add_(axis, index.flatten(), parts.to(wide.dtype))
    if wide is not result:
        result.copy_(wide)


def widened(like: torch.Tensor) -> torch.Tensor:
    """Where sums of a tensor's elements are formed: narrow floats in fp32, so that rounding happens once."""
    return torch.empty_like(like, dtype=torch.float32) if like.dtype in (torch.float16, torch.bfloat16) else like


define(
    "put_sum",
    _put,
    {"what": "put_sum", "axis": 0, "extent": 0},
    arity=(2, 2),
    operand_dtypes=with_indices(1),
    result=_summed,
    known_anchor=along.summed,
    flops=_each_added,
    reference=_put_reference,
    gradient=_put_gradient,
    application=places.of_sums_at_places,
    symbolic=_without_extent,
)

# -- put --------------------------------------------------------------------------------------------------------------


def _replaced_parts(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    (x, index, source), axis = (operand.shape for operand in operands), attributes["axis"]
    if source != (*x[:axis], *index, *x[axis + 1 :]):
        raise shape_error(name, operands, "the source has no part of the tensor's shape for each index")
    return x, cast[0]


def _parts(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, axis: int) -> torch.Tensor:
    """The source with one dimension in the place of those of the indices."""
    return source if index.dim() == 1 else source.reshape(*x.shape[:axis], index.numel(), *x.shape[axis + 1 :])


def _replace_reference(
    x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, what: str, axis: int
) -> torch.Tensor:
    refuse_out_of_range(what, index, x.shape[axis])
    return x.index_copy(axis, index.flatten(), _parts(x, index, source, axis))


def _replace_gradient(g: N, operands: tuple[N, N, N], out: N, *, what: str, axis: int) -> tuple[N, None, N]:
    """What is replaced gets none; neither do parts that a later one at the same place has replaced."""
    x, index, source = operands
    nothing = call("broadcast_to", literal(0, g.dtype), shape=source.shape)
    given = call("take", g, index, what=what, axis=axis)
    if elements(index.shape) > 1:
        numbers = call("iota", shape=index.shape)
        none = call("broadcast_to", literal(0, int64), shape=x.shape[axis : axis + 1])
        last = call("put", none, index, numbers, what=what, axis=0)
        stays = call("eq", call("take", last, index, what=what, axis=0), numbers)
        after = len(x.shape) - axis - 1
        given = call("where", call("reshape", stays, shape=(*index.shape, *[1] * after)), given, literal(0, g.dtype))
    return call("put", g, index, nothing, what=what, axis=axis), None, given


def _replace(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index, source), (result,), axis = inputs, outputs, attributes["axis"]
    # Before anything is written: the result may be the operand's own memory.
    refuse_out_of_range(attributes["what"], index, x.shape[axis])
    if result.data_ptr() != x.data_ptr():
        result.copy_(x)
    result.index_copy_(axis, index.flatten(), _parts(x, index, source, axis))


define(
    "put",
    _replace,
    {"what": "put", "axis": 0},
    arity=(3, 3),
    operand_dtypes=with_indices(1),
    result=_replaced_parts,
    known_anchor=along.replaced,
    native=replaced,
    reference=_replace_reference,
    gradient=_replace_gradient,
    application=places.of_replacements,
    in_place=True,
)

# -- gather and scatter_add -------------------------------------------------------------------------------------------


def scattered_shapes(name: str, operands: Sequence[Typed], axis: int) -> None:
    """Raises ShapeMismatchError for an index, or a source, that does not fit a tensor along an axis."""
    x, index, *source = (operand.shape for operand in operands)
    if len(x) != len(index) or any(len(shape) != len(x) for shape in source):
        raise shape_error(name, operands, "all have the same number of dimensions")
    if any(place != axis and own > there for place, (own, there) in enumerate(zip(index, x, strict=True))):
        raise shape_error(name, operands, f"indices beyond the tensor along another axis than {axis}")
    if any(own > there for shape in source for own, there in zip(index, shape, strict=True)):
        raise shape_error(name, operands, "more indices than elements to add")


def _gathered(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    scattered_shapes(name, operands, attributes["axis"])
    return operands[1].shape, cast[0]


def _gather_reference(x: torch.Tensor, index: torch.Tensor, *, axis: int) -> torch.Tensor:
    refuse_out_of_range("gather", index, x.shape[axis])
    return torch.gather(x, axis, index)


def _gather_gradient(g: N, operands: tuple[N, N], out: N, *, axis: int) -> tuple[N, None]:
    x, index = operands
    zeros = call("broadcast_to", literal(0, x.dtype), shape=x.shape)
    return call("scatter_add", zeros, index, g, axis=axis), None


def _gather(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    x, index = inputs
    with named_index("gather", index, x.shape[attributes["axis"]]):
        torch.gather(x, attributes["axis"], index, out=outputs[0])


define(
    "gather",
    _gather,
    {"axis": 0},
    arity=(2, 2),
    operand_dtypes=with_indices(1),
    result=_gathered,
    known_anchor=along.row,
    bytes_moved=_taken_bytes,
    reference=_gather_reference,
    gradient=_gather_gradient,
    application=places.of_gathers,
)


def _scattered(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    scattered_shapes(name, operands, attributes["axis"])
    return operands[0].shape, cast[0]


def _scatter_reference(x: torch.Tensor, index: torch.Tensor, source: torch.Tensor, *, axis: int) -> torch.Tensor:
    refuse_out_of_range("scatter_add", index, x.shape[axis])
    # torch's own gradient asks for a source of the index's shape.
    return x.scatter_add(axis, index, source[tuple(slice(extent) for extent in index.shape)])


def _scatter_gradient(g: N, operands: tuple[N, N, N], out: N, *, axis: int) -> tuple[N, None, N]:
    _, index, source = operands
    taken = call("gather", g, index, axis=axis)
    after = tuple(there - own for own, there in zip(index.shape, source.shape, strict=True))
    if any(after):  # elements beyond the indices are added nowhere
        taken = call("pad", taken, literal(0, g.dtype), before=(0,) * len(after), after=after, mode="constant")
    return g, None, taken


def _scatter(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, index, source), (result,), axis = inputs, outputs, attributes["axis"]
    wide = widened(result).copy_(x)
    with named_index("scatter_add", index, x.shape[axis]):
        # torch adds along the axis in the order of the indices, whatever the number of threads.
        wide.scatter_add_(axis, index, source.to(wide.dtype))
    if wide is not result:
        result.copy_(wide)


define(
    "scatter_add",
    _scatter,
    {"axis": 0},
    arity=(3, 3),
    operand_dtypes=with_indices(1),
    result=_scattered,
    known_anchor=along.row,
    flops=_each_added,
    reference=_scatter_reference,
    gradient=_scatter_gradient,
    application=places.of_scattered_sums,
)
