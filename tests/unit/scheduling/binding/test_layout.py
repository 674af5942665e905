"""Merging of dimensions: the walk over memory stays the same, with as few axes as strides allow."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tessera.scheduling.binding.axes import Axes, Column, Strides, domain_strides, merge_axes


@st.composite
def domains(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Strides]]:
    """Extents, and up to three arrays over them: contiguous, permuted, broadcast, or with gaps."""
    extents = tuple(draw(st.lists(st.integers(1, 4), max_size=4)))
    arrays = []
    for _ in range(draw(st.integers(1, 3))):
        order = draw(st.permutations(range(len(extents))))
        if draw(st.booleans()):
            order = sorted(order)
        strides, step = [0] * len(extents), 1
        for dimension in reversed(order):
            strides[dimension] = step
            step *= extents[dimension] * draw(st.sampled_from((1, 1, 1, 2)))
        for dimension in range(len(extents)):
            if draw(st.integers(0, 4)) == 0:
                strides[dimension] = 0
        arrays.append(tuple(strides))
    return extents, arrays


def walk(extents: Sequence[int], strides: Strides) -> list[int]:
    """The elements that a row-major walk over `extents` visits."""
    return [
        sum(index * stride for index, stride in zip(indices, strides, strict=True))
        for indices in itertools.product(*map(range, extents))
    ]


def columns(arrays: Sequence[Strides]) -> list[Column]:
    """The strides of all arrays along each dimension."""
    return list(zip(*arrays, strict=True))


def rows(axes: Axes, arrays: int) -> list[Strides]:
    """The strides of each array along all axes."""
    return [tuple(column[array] for column in axes.columns) for array in range(arrays)]


@given(domains())
def test_merged_axes_visit_the_same_elements_in_the_same_order(domain: tuple[tuple[int, ...], list[Strides]]) -> None:
    extents, arrays = domain
    merged = merge_axes(extents, columns(arrays))
    assert [walk(merged.extents, own) for own in rows(merged, len(arrays))] == [walk(extents, own) for own in arrays]


@given(domains())
def test_nothing_is_left_to_merge(domain: tuple[tuple[int, ...], list[Strides]]) -> None:
    extents, arrays = domain
    merged = merge_axes(extents, columns(arrays))
    assert 1 not in merged.extents
    assert merge_axes(*merged) == merged


def test_contiguous_arrays_merge_into_one_axis() -> None:
    assert merge_axes((2, 3, 4), columns([(12, 4, 1), (12, 4, 1)])) == ((24,), ((1, 1),))


def test_a_bias_keeps_its_dimension_apart() -> None:
    assert merge_axes((2, 3, 4), columns([(12, 4, 1), (0, 0, 1)])) == ((6, 4), ((4, 0), (1, 1)))


def test_an_array_has_stride_0_along_dimensions_that_it_does_not_walk() -> None:
    assert domain_strides((5, 1), (2, None), 3) == (0, 0, 5)
    assert domain_strides((), (), 2) == (0, 0)
