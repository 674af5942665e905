"""Maps and reductions of a program over merged axes, and what they compute there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from tessera.scheduling.binding.arrays import (
    ArrayLayout,
    ArrayRole,
    Arrays,
    Copy,
    LayoutFacts,
    Limits,
    Names,
    Pattern,
    ShapedArrays,
    Tensor,
    V,
    array_layout,
    columns_of,
    layout_facts,
    line_of,
    numbered,
    shaped_arrays,
)
from tessera.scheduling.binding.axes import UNLIMITED, Axes, merge_axes
from tessera.scheduling.binding.lane_order import map_order, reduction_order
from tessera.scheduling.binding.regions import Region, read_region
from tessera.scheduling.language.expression import Recorder
from tessera.scheduling.lowering.spec import Argument, MapReduceSpec


def lay_out(
    region: Region, domain: Sequence[int], arrays: Arrays[V], limits: Limits, copied: Copy[V]
) -> tuple[Arrays[V], ShapedArrays] | None:
    """The arrays of a kernel; None where the reduced dimensions do not merge into one axis."""
    shaped = map_reduce_arrays(domain, region.reduced, arrays, len(region.loads), limits.largest_axis)
    return None if shaped is None else (arrays, shaped)


def map_reduce_arrays(
    domain: Sequence[int],
    reduced: tuple[int, int] | None,
    arrays: Arrays[Tensor],
    loads: int,
    largest: int = UNLIMITED,
) -> ShapedArrays | None:
    """Merges the domain of a map or reduction; None when the reduced dimensions do not merge into one axis.

    `reduced` is a range of dimensions, `arrays` are the loads, `loads` of them, and then the results. Axes are called
    `o0, o1, ...` outside the reduced ones, `i0, ...` inside them, `r` reduced, and `c` is the one along lanes: the
    reduced axis itself when nothing follows it. Merged axes have at most `largest` elements, but for the reduced one,
    which is one or none.
    """
    rank = len(domain)
    columns = columns_of(arrays, rank)
    # Numbers of elements are counted in the order of the dimensions.
    is_free = not any([tensor.is_counted for tensor, _ in arrays])  # noqa: C419 - on the path of binding
    if reduced is None:
        turned = map_order(domain, columns, loads) if is_free else None
        if turned is not None:
            domain, columns = [domain[d] for d in turned], tuple([columns[d] for d in turned])
        axes = merge_axes(domain, columns, largest)
        axes = axes if axes.extents else line_of(arrays, range(rank))
        return reduction_layout(axes, numbered("o", len(axes.extents) - 1, "c"), None, arrays, loads, largest)
    first, last = reduced
    lanes = reduction_order(domain, reduced, columns, loads) if is_free and largest == UNLIMITED else None
    if lanes is not None:
        order, (first, last) = lanes
        domain, columns = [domain[d] for d in order], tuple([columns[d] for d in order])
        places = {dimension: place for place, dimension in enumerate(order)}
        arrays = [(tensor, tuple([None if a is None else places[a] for a in way])) for tensor, way in arrays]
    before, middle = (
        merge_axes(domain[:first], columns[:first], largest),
        merge_axes(domain[first:last], columns[first:last]),
    )
    if len(middle.extents) > 1:
        return None
    middle = middle if middle.extents else line_of(arrays, range(first, last))
    outer = len(before.extents)
    if last == rank:
        axes = Axes(before.extents + middle.extents, before.columns + middle.columns)
        return reduction_layout(axes, numbered("o", outer, "c"), "c", arrays, loads, largest)
    after = merge_axes(domain[last:], columns[last:], largest)
    after = after if after.extents else line_of(arrays, range(last, rank))
    axes = Axes(
        before.extents + after.extents[:-1] + middle.extents + after.extents[-1:],
        before.columns + after.columns[:-1] + middle.columns + after.columns[-1:],
    )
    names = numbered("o", outer) + numbered("i", len(after.extents) - 1, "r", "c")
    return reduction_layout(axes, names, "r", arrays, loads, largest)


def reduction_layout(
    axes: Axes,
    names: Names,
    reduced: str | None,
    arrays: Arrays[Tensor],
    loads: int,
    largest: int,
) -> ShapedArrays:
    """The arrays of a kernel over merged axes of these names, which reduces one of them or none."""
    # CPUs turn around vectors of what is walked backwards.
    facts = layout_facts(names, axes, arrays, (-1, 0, 1) if largest == UNLIMITED else (0, 1))
    return shaped_arrays(_map_reduce_layout(facts, loads, reduced), names, axes)


@lru_cache(maxsize=1 << 12)
def _map_reduce_layout(facts: LayoutFacts, loads: int, reduced: str | None) -> ArrayLayout:
    names, _, classes, kinds = facts
    # Lowerings read an axis' extent from an argument that walks it; an extent of 1 may be walked by none. Nor is one
    # along which every operand repeats itself. The first load lends the reduced axis, the first result the others.
    lent = frozenset([name for place, name in enumerate(names) if not any(classes[place])])
    everything = frozenset(names)
    reduced_axis = frozenset[str]() if reduced is None else frozenset([reduced])
    # Promised is the axis along lanes, or in a map any other, the innermost first.
    contiguous = ("c", *reversed(names)) if reduced is None else ("c",)

    def role(index: int) -> ArrayRole:
        required = lent & reduced_axis if index == 0 else frozenset[str]()
        required |= lent - reduced_axis if index == loads else frozenset[str]()
        return ArrayRole(required, everything, required, contiguous)

    def pattern(arguments: tuple[Argument, ...]) -> Pattern:
        return Pattern(arguments, names[: -2 if reduced == "r" else -1], reduced, "c", True)

    return array_layout(pattern, facts, [role(index) for index in range(len(kinds))], "c")


def map_reduce_spec(region: Region, pattern: Pattern) -> MapReduceSpec:
    """The specification of a map or reduction kernel."""
    recorder = Recorder(pattern.reduced)
    outputs = read_region(region, pattern, recorder)
    return MapReduceSpec(region.name, pattern.arguments, pattern.outer, pattern.reduced, pattern.lanes, outputs)
