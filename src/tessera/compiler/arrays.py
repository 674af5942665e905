"""Arrays of a kernel over its merged axes: where tensors lie, and what a kernel's descriptors say about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tessera.compiler.layout import Axes, Strides, domain_strides, merge_axes
from tessera.compiler.program import Alignment, KernelItem
from tessera.compiler.specs import Pattern
from tessera.dtypes import DType
from tessera.scheduling.spec import Argument

Shape = tuple[int, ...]


@dataclass(eq=False)
class Storage:
    """Memory of the plan: a leaf's (`leaf` is its number), a temporary, or a result."""

    nbytes: int
    leaf: int | None = None
    first: int = -1
    last: int = -1
    slot: int = -1
    offset: int = 0


@dataclass(frozen=True)
class View:
    """A tensor: where it lies, in elements."""

    storage: Storage
    dtype: DType
    shape: Shape
    strides: Strides
    offset_bytes: int = 0
    is_scalar: bool = False


@dataclass(frozen=True)
class ShapedArrays:
    """A kernel's arrays over merged axes: the pattern to generate code for, and the numbers for its descriptors."""

    pattern: Pattern
    extents: Mapping[str, int]
    axes: tuple[tuple[str, ...], ...]
    strides: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Call:
    """A kernel of the program applied to arrays: what is scheduled, tuned and compiled."""

    item: KernelItem
    arguments: tuple[tuple[View, tuple[int, ...]], ...]
    """Each argument's view and the extents and strides that its descriptor holds."""
    shaped: ShapedArrays


@dataclass
class _Walk:
    """The axes of a map or reduction as they are collected: name, extent, and each array's stride along it."""

    alignments: Sequence[Alignment]
    names: list[str] = field(default_factory=list)
    extents: list[int] = field(default_factory=list)
    columns: list[list[int]] = field(default_factory=list)

    def take(self, prefix: str, merged: Axes, count: int) -> None:
        """The first `count` of some merged axes, as `prefix0`, `prefix1`, ..."""
        for axis in range(count):
            self._add(f"{prefix}{axis}", merged.extents[axis], [own[axis] for own in merged.strides])

    def take_last(self, name: str, merged: Axes, dimensions: range) -> None:
        """The last merged axis; where all of `dimensions` have extent 1, one that is walked by who has them."""
        if merged.extents:
            self._add(name, merged.extents[-1], [own[-1] for own in merged.strides])
        else:
            self._add(name, 1, [int(any(d in alignment for d in dimensions)) for alignment in self.alignments])

    def _add(self, name: str, extent: int, column: list[int]) -> None:
        self.names.append(name)
        self.extents.append(extent)
        self.columns.append(column)


def map_reduce_arrays(
    domain: Sequence[int], reduced: tuple[int, int] | None, arrays: Sequence[tuple[View, Alignment]], loads: int
) -> ShapedArrays | None:
    """Merges the domain of a map or reduction; None when the reduced dimensions do not merge into one axis.

    `reduced` is a range of dimensions, `arrays` are the loads, `loads` of them, and then the results. Axes are called
    `o0, o1, ...` outside the reduced ones, `i0, ...` inside them, `r` reduced, and `c` is the one along lanes: the
    reduced axis itself when nothing follows it.
    """
    rank = len(domain)
    strides = [domain_strides(view.strides, alignment, rank) for view, alignment in arrays]
    first, last = reduced if reduced is not None else (rank, rank)
    before, middle, after = (
        merge_axes(domain[start:end], [own[start:end] for own in strides])
        for start, end in ((0, first), (first, last), (last, rank))
    )
    if len(middle.extents) > 1:
        return None
    walk = _Walk([alignment for _, alignment in arrays])
    if reduced is None:
        walk.take("o", before, max(len(before.extents) - 1, 0))
        outer = tuple(walk.names)
        walk.take_last("c", before, range(rank))
        return _shaped(walk, arrays, loads, outer, None)
    walk.take("o", before, len(before.extents))
    if last == rank:
        outer = tuple(walk.names)
        walk.take_last("c", middle, range(first, last))
        return _shaped(walk, arrays, loads, outer, "c")
    walk.take("i", after, max(len(after.extents) - 1, 0))
    outer = tuple(walk.names)
    walk.take_last("r", middle, range(first, last))
    walk.take_last("c", after, range(last, rank))
    return _shaped(walk, arrays, loads, outer, "r")


def _shaped(
    walk: _Walk,
    arrays: Sequence[tuple[View, Alignment]],
    loads: int,
    outer: tuple[str, ...],
    reduced: str | None,
) -> ShapedArrays:
    arguments: list[Argument] = []
    axes: list[tuple[str, ...]] = []
    strides: list[tuple[int, ...]] = []
    for index, (view, _) in enumerate(arrays):
        if view.is_scalar:
            arguments.append(Argument(view.dtype, is_scalar=True))
            axes.append(())
            strides.append(())
            continue
        walked = {name: column[index] for name, column in zip(walk.names, walk.columns, strict=True) if column[index]}
        # Lowerings read an axis' extent from an argument that walks it; an extent of 1 may be walked by none.
        # Nor is one along which every operand repeats itself.
        for name, extent, column in zip(walk.names, walk.extents, walk.columns, strict=True):
            if index == (0 if name == reduced else loads) and not any(column):
                walked[name] = int(extent == 1)
        labels, own = tuple(walked), tuple(walked.values())
        static = tuple(1 if label == "c" and stride == 1 else None for label, stride in walked.items())
        arguments.append(Argument(view.dtype, labels, static))
        axes.append(labels)
        strides.append(own)
    pattern = Pattern(tuple(arguments), outer, reduced, "c", True)
    return ShapedArrays(pattern, dict(zip(walk.names, walk.extents, strict=True)), tuple(axes), tuple(strides))


def contraction_arrays(domain: Sequence[int], arrays: Sequence[tuple[View, Alignment]], loads: int) -> ShapedArrays:
    """Merges the batch dimensions of a matrix product; its last three domain dimensions are m, n and k."""
    rank = len(domain)
    strides = [domain_strides(view.strides, alignment, rank) for view, alignment in arrays]
    batch = merge_axes(domain[: rank - 3], [s[: rank - 3] for s in strides])
    names = [f"b{i}" for i in range(len(batch.extents))]
    extents = dict(zip((*names, "m", "n", "k"), (*batch.extents, *domain[rank - 3 :]), strict=True))
    carried_k = any(s[rank - 1] for s in strides)
    arguments: list[Argument] = []
    axes: list[tuple[str, ...]] = []
    numbers: list[tuple[int, ...]] = []
    for index, ((view, alignment), own) in enumerate(zip(arrays, strides, strict=True)):
        if view.is_scalar:
            arguments.append(Argument(view.dtype, is_scalar=True))
            axes.append(())
            numbers.append(())
            continue
        row = dict(zip((*names, "m", "n", "k"), (*batch.strides[index], *own[rank - 3 :]), strict=True))
        forced = {"m", "n"} if index >= loads else {"k"} if index == 0 and not carried_k else set()
        single = {
            name
            for name, place in (("m", rank - 3), ("n", rank - 2), ("k", rank - 1))
            if place in alignment and extents[name] == 1
        }
        labels = tuple(name for name in row if row[name] != 0 or name in forced or name in single)
        values = tuple(row[name] or int(extents[name] == 1) for name in labels)
        unit = _unit_label(labels, values)
        arguments.append(Argument(view.dtype, labels, tuple(1 if label == unit else None for label in labels)))
        axes.append(labels)
        numbers.append(values)
    pattern = Pattern(tuple(arguments), tuple(names), None, "n", True)
    return ShapedArrays(pattern, extents, tuple(axes), tuple(numbers))


def _unit_label(labels: tuple[str, ...], strides: tuple[int, ...]) -> str | None:
    """The axis that code may treat as contiguous: k before n before m, as each operand's inner axis comes last."""
    contiguous = [label for label, stride in zip(labels, strides, strict=True) if stride == 1]
    order = ("n", "k", "m") if "n" in labels else ("k", "m")
    return next((label for label in order if label in contiguous), None)
