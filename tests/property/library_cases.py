"""Applications of the operators that plans call a library for: one function for each record, by its name."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from hypothesis import strategies as st

from tessera.dtypes import DType
from tessera.errors import DTypeError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.ops import Operator
from tessera.ops.algebra import call
from tessera.ops.applications.rule import WantedOperand
from tessera.ops.record import Shaped
from tests.property.operands import LAYOUTS, Shape, filled, laid_out, shapes

Draw: TypeAlias = Callable[[st.SearchStrategy[Any]], Any]


@dataclass(frozen=True)
class Case:
    """A pending tensor, and the magnitude of the terms that its elements are sums of."""

    tensor: Tensor
    scale: torch.Tensor | float = 0.0


INDEXED = frozenset(("take", "put_sum", "put", "gather", "scatter_add"))
"""Operators whose second operand is one of indices."""

PROBES: Mapping[str, dict[str, Any]] = {
    "scatter_along": {"extent": 2},
    "refit": {"shape": (2, 3)},
    "spread": {"shape": (2, 4), "steps": (1, 2)},
}
"""Attributes of a record's application to two 2 x 2 operands, where the defaults are none."""


OF_COMPLEX_NUMBERS = frozenset(
    "view_as_real view_as_complex complex_mul complex_div complex_matmul complex_abs to_complex fft ifft rfft irfft "
    "rfft_adjoint irfft_adjoint kernel_spectrum spectrum_adjoint pointwise_mul spectral_conv".split()
)
"""Records with tests of their own (tests/property/test_complex.py, test_fourier.py, test_spectral.py)."""


def _matrix(draw: Draw, dtype: DType, shape: Shape | None = None) -> torch.Tensor:
    """A tensor of one to three dimensions, of any layout, with NaN and infinities among its elements."""
    drawn = draw(shapes(draw(st.sampled_from((1, 2, 2, 3))))) if shape is None else shape
    values = draw(st.sampled_from(("ordinary", "special")))
    return laid_out(filled(drawn, dtype, values, draw(st.integers(0, 1 << 16))), draw(st.sampled_from(LAYOUTS)))


def _cumsum(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis, reverse = draw(st.integers(0, x.ndim - 1)), draw(st.booleans())
    tensor = call("cumsum", as_node(x), axis=axis, reverse=reverse)
    if dtype.kind != "float":
        return Case(tensor)
    magnitude = torch.nan_to_num(x.double().abs(), nan=0.0, posinf=0.0)
    return Case(tensor, record.reference(magnitude, axis=axis, reverse=reverse))


def _topk(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    k = draw(st.integers(0, x.shape[axis]))
    flags = {"largest": draw(st.booleans()), "ordered": draw(st.booleans())}
    return Case(call(record.name, as_node(x), k=k, axis=axis, **flags))


def _sort(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis, descending = draw(st.integers(0, x.ndim - 1)), draw(st.booleans())
    return Case(call(record.name, as_node(x), axis=axis, descending=descending))


def _fmod(draw: Draw, record: Operator, dtype: DType) -> Case:
    a = _matrix(draw, dtype)
    b = a.flip(-1) if draw(st.booleans()) else a[..., :1] * 0.5
    return Case(call("fmod", as_node(a), as_node(b)))


def _divisors(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    return Case(call("checked_divisor", as_node(torch.where(x == 0, 1, x))))


def _scatter(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    extent = x.shape[axis] + draw(st.sampled_from((0, 1, 5)))
    # Distinct places along the axis: which of two elements at one place wins is nobody's promise.
    order = torch.rand((*x.shape[:axis], extent, *x.shape[axis + 1 :])).argsort(axis).narrow(axis, 0, x.shape[axis])
    return Case(call("scatter_along", as_node(x), as_node(order), axis=axis, extent=extent))


def _refit(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    return Case(call("refit", as_node(x), shape=tuple(draw(st.integers(0, extent + 3)) for extent in x.shape)))


def _spread(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    steps = tuple(draw(st.integers(1, 3)) for _ in x.shape)
    shape = tuple(extent * step + draw(st.integers(0, 2)) for extent, step in zip(x.shape, steps, strict=True))
    return Case(call("spread", as_node(x), shape=shape, steps=steps))


def _places(draw: Draw, shape: Shape, extent: int) -> torch.Tensor:
    """Indices in range; none where nothing is there to index."""
    drawn = draw(st.integers(0, 1 << 16))
    return torch.randint(0, max(extent, 1), shape if extent else (0,), generator=torch.Generator().manual_seed(drawn))


def _checked(draw: Draw, record: Operator, dtype: DType) -> Case:
    from_end = draw(st.booleans())
    index = _places(draw, draw(shapes(2)), 7).to(dtype.torch) - (3 if from_end and not dtype.is_unsigned else 0)
    return Case(call("checked_index", as_node(index), what="test", extent=7, from_end=from_end))


def _take(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    index = _places(draw, draw(shapes(draw(st.integers(0, 2)))), x.shape[axis])
    return Case(call("take", as_node(x), as_node(index), axis=axis))


def _put_sum(draw: Draw, record: Operator, dtype: DType) -> Case:
    shape, axis, extent = draw(shapes(draw(st.integers(1, 3)))), 0, draw(st.integers(1, 9))
    x = ordinary(draw, dtype, shape)
    index = _places(draw, shape[:1], extent)
    tensor = call("put_sum", as_node(x), as_node(index), axis=axis, extent=extent)
    return Case(tensor, _magnitude(record, (x, index), what="", axis=axis, extent=extent))


def _put(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    index = torch.randperm(x.shape[axis])[: draw(st.integers(0, x.shape[axis]))]
    source = _matrix(draw, dtype, (*x.shape[:axis], len(index), *x.shape[axis + 1 :]))
    return Case(call("put", as_node(x), as_node(index), as_node(source), axis=axis))


def ordinary(draw: Draw, dtype: DType, shape: Shape) -> torch.Tensor:
    return laid_out(filled(shape, dtype, "ordinary", draw(st.integers(0, 1 << 16))), draw(st.sampled_from(LAYOUTS)))


def _magnitude(record: Operator, operands: tuple[torch.Tensor, ...], **attributes: Any) -> torch.Tensor | float:
    """The sum of magnitudes that sums of floats have errors of."""
    sizes = [x if x.dtype == torch.int64 else x.double().abs() for x in operands]
    return record.reference(*sizes, **attributes) if operands[0].is_floating_point() else 0.0


def _gather(draw: Draw, record: Operator, dtype: DType) -> Case:
    x = _matrix(draw, dtype)
    axis = draw(st.integers(0, x.ndim - 1))
    wanted = tuple(draw(st.integers(0, extent)) for extent in x.shape)
    index = _places(draw, wanted, x.shape[axis]).reshape(wanted if x.shape[axis] else (*[0] * x.ndim,))
    return Case(call("gather", as_node(x), as_node(index), axis=axis))


def _scatter_add(draw: Draw, record: Operator, dtype: DType) -> Case:
    shape = draw(shapes(draw(st.integers(1, 3))))
    axis = draw(st.integers(0, len(shape) - 1))
    wanted = tuple(draw(st.integers(0, extent)) if shape[axis] else 0 for extent in shape)
    more = tuple(extent + draw(st.integers(0, 2)) for extent in wanted)
    x, source = ordinary(draw, dtype, shape), ordinary(draw, dtype, more)
    index = _places(draw, wanted, shape[axis]).reshape(wanted)
    tensor = call("scatter_add", as_node(x), as_node(index), as_node(source), axis=axis)
    return Case(tensor, _magnitude(record, (x, index, source), axis=axis))


def _of_meshes(draw: Draw, record: Operator, dtype: DType) -> Case:
    return Case(call(record.name, as_node(_matrix(draw, dtype))))


def by_application(draw: Draw, record: Operator, dtype: DType) -> Case:
    """What the record says that it is applied to."""
    shape = draw(shapes(draw(st.integers(1, 3))))
    application = record.apply_to(Shaped(shape, dtype), random.Random(draw(st.integers(0, 1 << 16))))
    if application is None:
        application = record.apply_to(Shaped((2, 3), dtype), random.Random(0))
    assert application is not None, record.name
    operands = tuple(drawn_operand(draw, wanted) for wanted in application.operands)
    attributes = {**record.attributes, **application.attributes}
    tensor = call(record.name, *map(as_node, operands), **attributes)
    return Case(tensor, _magnitude(record, operands, **attributes) if tensor.dtype.kind == "float" else 0.0)


def is_applied_to(record: Operator, dtype: DType) -> bool:
    """Whether the record's application to a matrix of the dtype is one that the operator takes."""
    application = record.apply_to(Shaped((2, 3), dtype), random.Random(0))
    if application is None:
        return False
    operands = [as_node(torch.zeros(each.shape, dtype=each.dtype.torch)) for each in application.operands]
    try:
        call(record.name, *operands, **{**record.attributes, **application.attributes})
    except DTypeError:
        return False
    return True


def drawn_operand(draw: Draw, wanted: WantedOperand) -> torch.Tensor:
    """The operand that an application wants."""
    if wanted.below is None:
        return ordinary(draw, wanted.dtype, wanted.shape)
    chance = torch.Generator().manual_seed(draw(st.integers(0, 1 << 16)))
    return torch.randint(0, wanted.below, wanted.shape, generator=chance).to(wanted.dtype.torch)


LIBRARY_CASES: dict[str, Callable[[Draw, Operator, DType], Case]] = {
    "cumsum": _cumsum,
    "topk_values": _topk,
    "topk_indices": _topk,
    "sort_values": _sort,
    "sort_indices": _sort,
    "fmod": _fmod,
    "checked_divisor": _divisors,
    "scatter_along": _scatter,
    "refit": _refit,
    "spread": _spread,
    "checked_index": _checked,
    "take": _take,
    "put_sum": _put_sum,
    "put": _put,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "constrain": _of_meshes,
    "across": _of_meshes,
    "shard_map": _of_meshes,
    "to_part": _of_meshes,
    "from_parts": _of_meshes,
}
