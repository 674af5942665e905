"""Arrays of a kernel over its merged axes: where tensors lie, and what a kernel's descriptors say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from tessera.compiler.bind.lane_order import map_order, reduction_order
from tessera.compiler.bind.layout import UNLIMITED, Axes, Column, Strides, domain_strides, merge_axes
from tessera.compiler.bind.specs import Pattern
from tessera.compiler.graph.program import Alignment, KernelItem
from tessera.dtypes import DType
from tessera.runtime.derived import Derivation
from tessera.scheduling.lowering.spec import Argument

Shape = tuple[int, ...]
Names: TypeAlias = tuple[str, ...]
Kinds: TypeAlias = tuple[tuple[DType, bool, bool], ...]
"""The dtype of each array, whether it is a scalar, and whether it is counted."""


@dataclass(eq=False, slots=True)
class Storage:
    """Memory of the plan: a leaf's (`leaf` is its number), a temporary, or a result.

    `guests` are temporaries that lie in the memory of a result, as they are dead before it is written. `frozen` says
    that a leaf's contents stay; with `derivation` this is a copy made of it, and no memory of the leaf's own.
    """

    nbytes: int
    leaf: int | None = None
    first: int = -1
    last: int = -1
    slot: int = -1
    offset: int = 0
    guests: tuple[Storage, ...] = ()
    frozen: bool = False
    derivation: Derivation | None = None


class View(NamedTuple):
    """A tensor: where it lies, in elements."""

    storage: Storage
    dtype: DType
    shape: Shape
    strides: Strides
    offset_bytes: int = 0
    is_scalar: bool = False
    is_counted: bool = False
    """Whether elements are their row-major numbers, of which none lies in memory: the shape and strides say it all."""

    @property
    def is_backwards(self) -> bool:
        """Whether memory is walked backwards along a dimension, which torch cannot do."""
        return any([stride < 0 for stride in self.strides])  # noqa: C419 - on the path of binding


class ShapedArrays(NamedTuple):
    """A kernel's arrays over merged axes: the pattern to generate code for, and the numbers for its descriptors."""

    pattern: Pattern
    extents: Mapping[str, int]
    axes: tuple[tuple[str, ...], ...]
    strides: tuple[tuple[int, ...], ...]


class Call(NamedTuple):
    """A kernel of the program applied to arrays: what is scheduled, tuned and compiled."""

    item: KernelItem
    arguments: tuple[tuple[View, tuple[int, ...]], ...]
    """Each argument's view and the extents and strides that its descriptor holds."""
    shaped: ShapedArrays


def over_others(call: Call, others: Mapping[int, tuple[Argument, View, tuple[int, ...]]]) -> Call:
    """The call over other memory: for some arguments what the kernel takes them for, the view, and the words of its
    descriptor.
    """
    arguments, kinds = list(call.arguments), list(call.shaped.pattern.arguments)
    for index, (kind, view, words) in others.items():
        arguments[index], kinds[index] = (view, words), kind
    pattern = replace(call.shaped.pattern, arguments=tuple(kinds))
    return Call(call.item, tuple(arguments), call.shaped._replace(pattern=pattern))


class ArrayLayout(NamedTuple):
    """What a kernel's arrays are but for numbers: all that is the same for other extents and strides."""

    pattern: Pattern
    axes: tuple[Names, ...]
    """The axes that each array walks."""
    picks: tuple[tuple[int, ...], ...]
    """For each of those axes, the column that holds the stride; past the last column, 0 and 1."""


def map_reduce_arrays(
    domain: Sequence[int],
    reduced: tuple[int, int] | None,
    arrays: Sequence[tuple[View, Alignment]],
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
    is_free = not any([view.is_counted for view, _ in arrays])  # noqa: C419 - on the path of binding
    if reduced is None:
        turned = map_order(domain, columns, loads) if is_free else None
        if turned is not None:
            domain, columns = [domain[d] for d in turned], tuple([columns[d] for d in turned])
        axes = merge_axes(domain, columns, largest)
        axes = axes if axes.extents else _line(arrays, range(rank))
        return _map_reduce(axes, numbered("o", len(axes.extents) - 1, "c"), None, arrays, loads, largest)
    first, last = reduced
    lanes = reduction_order(domain, reduced, columns, loads) if is_free and largest == UNLIMITED else None
    if lanes is not None:
        order, (first, last) = lanes
        domain, columns = [domain[d] for d in order], tuple([columns[d] for d in order])
        places = {dimension: place for place, dimension in enumerate(order)}
        arrays = [(view, tuple([None if a is None else places[a] for a in way])) for view, way in arrays]
    before, middle = (
        merge_axes(domain[:first], columns[:first], largest),
        merge_axes(domain[first:last], columns[first:last]),
    )
    if len(middle.extents) > 1:
        return None
    middle = middle if middle.extents else _line(arrays, range(first, last))
    outer = len(before.extents)
    if last == rank:
        axes = Axes(before.extents + middle.extents, before.columns + middle.columns)
        return _map_reduce(axes, numbered("o", outer, "c"), "c", arrays, loads, largest)
    after = merge_axes(domain[last:], columns[last:], largest)
    after = after if after.extents else _line(arrays, range(last, rank))
    axes = Axes(
        before.extents + after.extents[:-1] + middle.extents + after.extents[-1:],
        before.columns + after.columns[:-1] + middle.columns + after.columns[-1:],
    )
    names = numbered("o", outer) + numbered("i", len(after.extents) - 1, "r", "c")
    return _map_reduce(axes, names, "r", arrays, loads, largest)


def contraction_arrays(
    domain: Sequence[int], arrays: Sequence[tuple[View, Alignment]], loads: int, turned: bool = False
) -> ShapedArrays:
    """Merges the batch dimensions of a matrix product; its last three domain dimensions are m, n and k. With `turned`
    its columns are called m and its rows n.
    """
    batch = len(domain) - 3
    if turned:
        domain = (*domain[:batch], domain[batch + 1], domain[batch], domain[-1])
        arrays = [(view, _exchanged(alignment, batch, batch + 1)) for view, alignment in arrays]
    columns = columns_of(arrays, len(domain))
    merged = merge_axes(domain[:batch], columns[:batch])
    axes = Axes(merged.extents + tuple(domain[batch:]), merged.columns + columns[batch:])
    names = numbered("b", len(merged.extents), "m", "n", "k")
    alignments = tuple([alignment for _, alignment in arrays])
    ones, classes = axes_classes(axes)
    layout = _contraction_layout(names, ones, classes, kinds_of(arrays), loads, alignments, batch, turned)
    return shaped_arrays(layout, names, axes)


def _exchanged(alignment: Alignment, one: int, other: int) -> Alignment:
    """An alignment over a domain with two dimensions exchanged."""
    return tuple([other if axis == one else one if axis == other else axis for axis in alignment])


def attention_arrays(domain: Sequence[int], arrays: Sequence[tuple[View, Alignment]], loads: int) -> ShapedArrays:
    """Merges the batch dimensions of attention, heads among them; the others are called q, v, k and d.

    The domain is that of the result and then keys, size of a key, heads of K and V. Heads that share keys and values
    are a dimension of their own, which K and V do not walk: no kernel divides by how many they are.
    """
    rank = len(domain) - 3
    columns = columns_of(arrays, len(domain))
    extents, batch = tuple(domain[: rank - 2]), columns[: rank - 2]
    inner, inner_columns = tuple(domain[rank - 2 : -1]), columns[rank - 2 : -1]
    joined = False
    if rank > 2:
        shared = domain[-1]
        group = domain[rank - 3] // max(shared, 1)
        own = columns[rank - 3]
        apart = tuple([stride * group + other for stride, other in zip(own, columns[-1], strict=True)])
        extents, batch = (*extents[:-1], shared, group), (*batch[:-1], apart, own)
        joined = group > 1 and inner[0] == 1
        if joined:
            extents, inner = extents[:-1], (group, *inner[1:])
            batch, inner_columns = batch[:-1], (own, *inner_columns[1:])
    merged = merge_axes(extents, batch)
    axes = Axes(merged.extents + inner, merged.columns + inner_columns)
    names = numbered("b", len(merged.extents), "q", "v", "k", "d")
    ones, classes = axes_classes(axes)
    roles = tuple([_role(alignment, rank, place >= loads) for place, (_, alignment) in enumerate(arrays)])
    return shaped_arrays(_attention_layout(names, ones, classes, kinds_of(arrays), roles, joined), names, axes)


def _role(alignment: Alignment, rank: int, is_output: bool) -> str:
    """The axes that an array of attention is a matrix over, the usual contiguous one first; "" of mask and scale."""
    if is_output:
        return "vq"
    if rank + 1 in alignment:
        return "dq" if rank - 2 in alignment else "dk"
    return "vk" if rank - 1 in alignment else ""


def columns_of(arrays: Sequence[tuple[View, Alignment]], rank: int) -> tuple[Column, ...]:
    """The strides of all arrays along each dimension of the domain."""
    return tuple(zip(*[domain_strides(view.strides, alignment, rank) for view, alignment in arrays], strict=True))


def _line(arrays: Sequence[tuple[View, Alignment]], dimensions: range) -> Axes:
    """The axis that stands for `dimensions`, all of extent 1: it is walked by who has them."""
    return Axes((1,), (tuple([int(any(d in alignment for d in dimensions)) for _, alignment in arrays]),))


@lru_cache(maxsize=256)
def numbered(prefix: str, count: int, *last: str) -> Names:
    """The names prefix0, prefix1, ... of `count` axes, and those of the axes after them."""
    return (*[f"{prefix}{axis}" for axis in range(count)], *last)


def kinds_of(arrays: Sequence[tuple[View, Alignment]]) -> Kinds:
    """The dtype of each array, whether it is a scalar, and whether it is counted."""
    return tuple([(view.dtype, view.is_scalar, view.is_counted) for view, _ in arrays])


def axes_classes(axes: Axes, told: tuple[int, ...] = (0, 1)) -> tuple[tuple[bool, ...], tuple[Column, ...]]:
    """What code may depend on: which extents are 1, and which strides are among those `told` (2 stands for others)."""
    ones = tuple([extent == 1 for extent in axes.extents])
    return ones, tuple([tuple([s if s in told else 2 for s in column]) for column in axes.columns])


def _map_reduce(
    axes: Axes,
    names: Names,
    reduced: str | None,
    arrays: Sequence[tuple[View, Alignment]],
    loads: int,
    largest: int,
) -> ShapedArrays:
    # CPUs turn around vectors of what is walked backwards.
    ones, classes = axes_classes(axes, (-1, 0, 1) if largest == UNLIMITED else (0, 1))
    return shaped_arrays(_map_reduce_layout(names, ones, classes, kinds_of(arrays), loads, reduced), names, axes)


def shaped_arrays(layout: ArrayLayout, names: Names, axes: Axes) -> ShapedArrays:
    """A layout with the numbers of its axes."""
    count = len(layout.picks)
    rows = zip(*axes.columns, (0,) * count, (1,) * count, strict=True)
    strides = tuple([tuple([row[pick] for pick in picks]) for row, picks in zip(rows, layout.picks, strict=True)])
    return ShapedArrays(layout.pattern, dict(zip(names, axes.extents, strict=True)), layout.axes, strides)


@lru_cache(maxsize=1 << 12)
def _map_reduce_layout(
    names: Names, ones: tuple[bool, ...], classes: tuple[Column, ...], kinds: Kinds, loads: int, reduced: str | None
) -> ArrayLayout:
    arguments: list[Argument] = []
    axes: list[Names] = []
    picks: list[tuple[int, ...]] = []
    for index, (dtype, is_scalar, is_counted) in enumerate(kinds):
        walked: dict[str, int] = {}
        if not is_scalar:
            walked = {name: place for place, name in enumerate(names) if classes[place][index]}
            # Lowerings read an axis' extent from an argument that walks it; an extent of 1 may be walked by none.
            # Nor is one along which every operand repeats itself.
            for place, name in enumerate(names):
                if index == (0 if name == reduced else loads) and not any(classes[place]):
                    walked[name] = len(names) + ones[place]
        unit = _unit_axis(walked, classes, index, reduced)
        backwards = "c" in walked and _class(classes, walked["c"], index) == -1
        static = tuple(1 if name == unit else -1 if name == "c" and backwards else None for name in walked)
        counted = _counted(walked, len(names)) if is_counted else None
        arguments.append(Argument(dtype, tuple(walked), static, is_scalar, counted=counted))
        axes.append(tuple(walked))
        picks.append(tuple(walked.values()))
    outer = names[: -2 if reduced == "r" else -1]
    return ArrayLayout(Pattern(tuple(arguments), outer, reduced, "c", True), tuple(axes), tuple(picks))


def _unit_axis(walked: Mapping[str, int], classes: tuple[Column, ...], array: int, reduced: str | None) -> str | None:
    """The axis whose stride is promised to be 1: the one along lanes, or in a map any other."""
    units = [name for name, pick in walked.items() if _class(classes, pick, array) == 1]
    return "c" if "c" in units else units[-1] if units and reduced is None else None


def _counted(walked: Mapping[str, int], columns: int) -> Names:
    """The axes that a counted array walks, in the order of its dimensions, without those that it walks for others."""
    own = [name for name, pick in walked.items() if pick < columns]
    return tuple(sorted(own, key=lambda name: (_ORDER.index(name[0]), int(name[1:] or 0))))


_ORDER = "bormnic"
"""Initials of axes in the order of the domain: batch or outer ones, the reduced one, those inside it, lanes."""


def _class(classes: tuple[Column, ...], pick: int, array: int) -> int:
    """The class of the stride that a pick stands for."""
    return classes[pick][array] if pick < len(classes) else pick - len(classes)


@lru_cache(maxsize=1 << 12)
def _contraction_layout(
    names: Names,
    ones: tuple[bool, ...],
    classes: tuple[Column, ...],
    kinds: Kinds,
    loads: int,
    alignments: tuple[Alignment, ...],
    batch: int,
    turned: bool,
) -> ArrayLayout:
    """`batch`: the number of batch dimensions before they were merged, after which m, n and k stand."""
    arguments: list[Argument] = []
    axes: list[Names] = []
    picks: list[tuple[int, ...]] = []
    carried_k = any(classes[-1])
    # A first operand that an epilogue reads, too, is two arrays, of which the product's alone has a k.
    first_operand = next((index for index in range(loads) if batch + 2 in alignments[index]), 0)
    for index, (dtype, is_scalar, is_counted) in enumerate(kinds):
        walked: dict[str, int] = {}
        forced = {"m", "n"} if index >= loads else {"k"} if index == first_operand and not carried_k else set()
        single = {name for place, name in enumerate("mnk", batch) if place in alignments[index]}
        for place, name in enumerate(() if is_scalar else names):
            if classes[place][index]:
                walked[name] = place
            elif name in forced or (name in single and ones[place]):
                walked[name] = len(names) + ones[place]
        unit = _unit_label(tuple(walked), tuple(_class(classes, pick, index) for pick in walked.values()))
        static = tuple(1 if name == unit else None for name in walked)
        counted = _counted(walked, len(names)) if is_counted else None
        arguments.append(Argument(dtype, tuple(walked), static, is_scalar, counted=counted))
        axes.append(tuple(walked))
        picks.append(tuple(walked.values()))
    pattern = Pattern(tuple(arguments), names[:-3], None, "n", True, turned=turned)
    return ArrayLayout(pattern, tuple(axes), tuple(picks))


@lru_cache(maxsize=1 << 12)
def _attention_layout(
    names: Names,
    ones: tuple[bool, ...],
    classes: tuple[Column, ...],
    kinds: Kinds,
    roles: tuple[str, ...],
    joined: bool,
) -> ArrayLayout:
    arguments: list[Argument] = []
    axes: list[Names] = []
    picks: list[tuple[int, ...]] = []
    for index, ((dtype, is_scalar, _), role) in enumerate(zip(kinds, roles, strict=True)):
        walked: dict[str, int] = {}
        for place, name in enumerate(() if is_scalar else names):
            if classes[place][index] and not ones[place]:
                walked[name] = place
            elif name in role:
                walked[name] = len(names) + ones[place]
        units = [name for name, pick in walked.items() if _class(classes, pick, index) == 1]
        unit = next((name for name in role or "kq" if name in units), None)
        arguments.append(
            Argument(dtype, tuple(walked), tuple(1 if name == unit else None for name in walked), is_scalar)
        )
        axes.append(tuple(walked))
        picks.append(tuple(walked.values()))
    pattern = Pattern(tuple(arguments), names[:-4], None, "v", True, joined)
    return ArrayLayout(pattern, tuple(axes), tuple(picks))


def _unit_label(labels: Names, strides: tuple[int, ...]) -> str | None:
    """The axis that code may treat as contiguous: k before n before m, as each operand's inner axis comes last."""
    contiguous = [label for label, stride in zip(labels, strides, strict=True) if stride == 1]
    order = ("n", "k", "m") if "n" in labels else ("k", "m")
    return next((label for label in order if label in contiguous), None)
