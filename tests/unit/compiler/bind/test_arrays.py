"""Kernels over merged axes: descriptors visit what the tensors hold, and every axis is walked by an argument."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from tessera.compiler.bind.arrays import Storage, View
from tessera.dtypes import fp32
from tessera.lazy.structures.structure import contiguous_strides
from tessera.rewrite.fusion.alignment import Alignment
from tessera.scheduling.binding.arrays import ShapedArrays
from tessera.scheduling.families.product.binding import contraction_arrays
from tessera.scheduling.families.rows.binding import map_reduce_arrays


def view(*shape: int, strides: tuple[int, ...] | None = None) -> View:
    own = contiguous_strides(shape) if strides is None else strides
    return View(Storage(0, leaf=0), fp32, shape, own)


def scalar() -> View:
    return View(Storage(0, leaf=0), fp32, (), (), is_scalar=True)


def same(rank: int) -> Alignment:
    return tuple(range(rank))


def visited(extents: Mapping[str, int], shaped: ShapedArrays, index: int, axes: Sequence[str]) -> list[int]:
    """The elements of argument `index` that a loop nest over `axes` visits."""
    strides = dict(zip(shaped.axes[index], shaped.strides[index], strict=True))
    return [
        sum(position * strides.get(axis, 0) for axis, position in zip(axes, positions, strict=True))
        for positions in itertools.product(*(range(extents[axis]) for axis in axes))
    ]


def expected(domain: Sequence[int], array: View, alignment: Alignment) -> list[int]:
    """The elements of a tensor that a walk over the domain visits."""
    return [
        sum(positions[axis] * stride for axis, stride in zip(alignment, array.strides, strict=True) if axis is not None)
        for positions in itertools.product(*map(range, domain))
    ]


def test_a_map_over_contiguous_tensors_is_one_line() -> None:
    shaped = map_reduce_arrays((3, 4), None, [(view(3, 4), same(2)), (view(3, 4), same(2))], 1)
    assert shaped is not None
    assert shaped.extents == {"c": 12}
    assert shaped.axes == (("c",), ("c",))
    assert [argument.strides for argument in shaped.pattern.arguments] == [(1,), (1,)]


def test_each_operand_of_a_map_promises_the_axis_that_it_is_contiguous_along() -> None:
    transposed = view(4, 3, strides=(1, 4))
    shaped = map_reduce_arrays((4, 3), None, [(transposed, same(2)), (view(4, 3), same(2))], 1)
    assert shaped is not None
    assert shaped.extents == {"o0": 4, "c": 3}
    assert [argument.strides for argument in shaped.pattern.arguments] == [(1, None), (None, 1)]


def test_a_reduction_promises_a_contiguous_lane_axis_only() -> None:
    transposed = view(4, 3, strides=(1, 4))
    arrays = [(transposed, same(2)), (view(4, 3), same(2)), (view(4), (0,))]
    shaped = map_reduce_arrays((4, 3), (1, 2), arrays, 2)
    assert shaped is not None
    assert [argument.strides for argument in shaped.pattern.arguments] == [(None, None), (None, 1), (None,)]


def test_a_reduction_over_rows_runs_along_lanes() -> None:
    shaped = map_reduce_arrays((2, 3, 4), (2, 3), [(view(2, 3, 4), same(3)), (view(2, 3), (0, 1))], 1)
    assert shaped is not None
    assert shaped.pattern.reduced == shaped.pattern.lanes == "c"
    assert shaped.extents == {"o0": 6, "c": 4}
    assert shaped.axes == (("o0", "c"), ("o0",))


def test_a_reduction_over_columns_has_an_axis_of_its_own() -> None:
    shaped = map_reduce_arrays((2, 3, 4), (1, 2), [(view(2, 3, 4), same(3)), (view(2, 4), (0, 2))], 1)
    assert shaped is not None
    assert shaped.pattern.reduced == "r"
    assert shaped.pattern.outer == ("o0",)
    assert shaped.extents == {"o0": 2, "r": 3, "c": 4}


def test_reduced_dimensions_that_do_not_merge_are_refused() -> None:
    gaps = view(2, 3, 4, strides=(40, 10, 1))
    assert map_reduce_arrays((2, 3, 4), (1, 3), [(gaps, same(3)), (view(2), (0,))], 1) is None


def test_scalars_walk_nothing() -> None:
    shaped = map_reduce_arrays((3,), None, [(view(3), (0,)), (scalar(), ()), (view(3), (0,))], 2)
    assert shaped is not None
    assert shaped.axes == (("c",), (), ("c",))
    assert [argument.is_scalar for argument in shaped.pattern.arguments] == [False, True, False]


def test_one_pattern_serves_all_extents() -> None:
    small = map_reduce_arrays((2, 3), (1, 2), [(view(2, 3), same(2)), (view(2), (0,))], 1)
    large = map_reduce_arrays((50, 70), (1, 2), [(view(50, 70), same(2)), (view(50), (0,))], 1)
    assert small is not None
    assert large is not None
    assert small.pattern == large.pattern


SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=4)


@given(SIZES, st.data())
def test_maps_and_reductions_visit_what_their_tensors_hold(domain: list[int], data: st.DataObject) -> None:
    rank = len(domain)
    order = data.draw(st.permutations(range(rank)))
    dense = contiguous_strides(tuple(domain[axis] for axis in order))
    permuted = view(*domain, strides=tuple(dense[order.index(axis)] for axis in range(rank)))
    first = data.draw(st.integers(0, rank - 1))
    reduced = (first, data.draw(st.integers(first + 1, rank))) if data.draw(st.booleans()) else None
    rest = [axis for axis in range(rank) if reduced is None or not reduced[0] <= axis < reduced[1]]
    result = view(*(domain[axis] for axis in rest))
    arrays: list[tuple[View, Alignment]] = [(permuted, same(rank)), (view(domain[-1]), (rank - 1,))]
    arrays.append((result, tuple(rest)))
    shaped = map_reduce_arrays(domain, reduced, arrays, 2)
    if shaped is None:
        assert reduced is not None
        assert reduced[1] - reduced[0] > 1
        return
    names = list(shaped.extents)
    if reduced is not None and reduced[1] < rank:
        # The reduced axis stands before the lanes, and inner axes are counted among the outer ones.
        names = [*[n for n in names if n[0] == "o"], "r", *[n for n in names if n[0] == "i"], "c"]
    for index, (array, alignment) in enumerate(arrays):
        assert visited(shaped.extents, shaped, index, names) == expected(domain, array, alignment)
    assert set(names) == {axis for axes in shaped.axes for axis in axes}


@given(batch=st.lists(st.integers(1, 3), max_size=2), m=st.integers(1, 3), n=st.integers(1, 3), k=st.integers(1, 3))
def test_products_visit_what_their_tensors_hold(batch: list[int], m: int, n: int, k: int) -> None:
    domain = (*batch, m, n, k)
    rank = len(domain)
    outer = tuple(range(rank - 3))
    arrays: list[tuple[View, Alignment]] = [
        (view(*batch, m, k), (*outer, rank - 3, rank - 1)),
        (view(n, k, strides=(k, 1)), (rank - 2, rank - 1)),
        (view(*batch, m, n), (*outer, rank - 3, rank - 2)),
    ]
    shaped = contraction_arrays(domain, arrays, 2)
    for index, (array, alignment) in enumerate(arrays):
        assert visited(shaped.extents, shaped, index, list(shaped.extents)) == expected(domain, array, alignment)
    assert {axis for axes in shaped.axes for axis in axes} == set(shaped.extents)


def test_batch_dimensions_merge_and_the_inner_axis_of_each_operand_is_promised() -> None:
    arrays: list[tuple[View, Alignment]] = [
        (view(2, 3, 4, 5), (0, 1, 2, 4)),
        (view(2, 3, 5, 6), (0, 1, 4, 3)),
        (view(2, 3, 4, 6), (0, 1, 2, 3)),
    ]
    shaped = contraction_arrays((2, 3, 4, 6, 5), arrays, 2)
    assert shaped.extents == {"b0": 6, "m": 4, "n": 6, "k": 5}
    assert shaped.axes == (("b0", "m", "k"), ("b0", "n", "k"), ("b0", "m", "n"))
    assert [argument.strides for argument in shaped.pattern.arguments] == [
        (None, None, 1),
        (None, 1, None),
        (None, None, 1),
    ]
