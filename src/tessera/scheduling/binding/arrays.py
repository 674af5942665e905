"""Arrays of a kernel over its merged axes: what its descriptors say about the tensors that it reads and writes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import NamedTuple, Protocol, TypeAlias, TypeVar

from tessera.dtypes import DType
from tessera.rewrite.fusion.alignment import Alignment
from tessera.scheduling.binding.axes import Axes, Column, Strides, domain_strides
from tessera.scheduling.lowering.spec import Argument, Window
from tessera.system.caching import cached_property
from tessera.target import Target

Names: TypeAlias = tuple[str, ...]
Kinds: TypeAlias = tuple[tuple[DType, bool, bool], ...]
"""The dtype of each array, whether it is a scalar, and whether it is counted."""


class Tensor(Protocol):
    """A tensor that a kernel reads or writes: where it lies, in elements."""

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def strides(self) -> Strides:
        """Its strides."""

    @property
    def is_scalar(self) -> bool:
        """Whether it is one number, which lies nowhere."""

    @property
    def is_counted(self) -> bool:
        """Whether its elements are their row-major numbers, which lie nowhere."""


V = TypeVar("V", bound=Tensor)
Arrays: TypeAlias = Sequence[tuple[V, Alignment]]
"""What a kernel reads and then what it writes, and how each lies over its domain."""
Copy: TypeAlias = Callable[[V, Strides | None], V]
"""Makes a copy of a tensor in strides, contiguous by default."""


@dataclass(frozen=True)
class Limits:
    """What a device says about layouts: its facts, and the largest extent that a kernel takes along an axis."""

    target: Target
    largest_axis: int


@dataclass(frozen=True)
class Pattern:
    """What a kernel is generated for, beside its operations: its arguments as they walk the merged axes.

    `outer` are the outer (or batch) axes; `reduced` and `lanes` are those of `MapReduceSpec`, `one_block` that of
    `ContractionSpec`, `window` that of `ConvolutionSpec`; `heads_as_queries` says that the queries of attention are
    heads that share keys; `turned` that a product is made as its transpose, whose operands are the other way round.
    """

    arguments: tuple[Argument, ...]
    outer: tuple[str, ...]
    reduced: str | None
    lanes: str
    one_block: bool
    heads_as_queries: bool = False
    window: Window | None = None
    turned: bool = False

    def __hash__(self) -> int:
        """Computed once: patterns are looked up at every binding."""
        return self._hash

    def __reduce__(self) -> tuple[type[Pattern], tuple[object, ...]]:
        """The fields alone: hashes of text differ between processes."""
        return Pattern, tuple([getattr(self, field.name) for field in fields(self)])

    @cached_property
    def _hash(self) -> int:
        return hash(tuple([getattr(self, field.name) for field in fields(self)]))


class ShapedArrays(NamedTuple):
    """A kernel's arrays over merged axes: the pattern to generate code for, and the numbers for its descriptors."""

    pattern: Pattern
    extents: Mapping[str, int]
    axes: tuple[tuple[str, ...], ...]
    strides: tuple[tuple[int, ...], ...]


class ArrayLayout(NamedTuple):
    """What a kernel's arrays are but for numbers: all that is the same for other extents and strides."""

    pattern: Pattern
    axes: tuple[Names, ...]
    """The axes that each array walks."""
    picks: tuple[tuple[int, ...], ...]
    """For each of those axes, the column that holds the stride; past the last column, 0 and 1."""


LayoutFacts: TypeAlias = tuple[Names, tuple[bool, ...], tuple[Column, ...], Kinds]
"""What code may depend on of a kernel's arrays over its axes: names, which extents are 1, of strides the class (2 for
those that are not told apart), and of arrays dtype and kind. A plain tuple: made, and looked up, at every binding.
"""


def layout_facts(names: Names, axes: Axes, arrays: Arrays[Tensor], told: tuple[int, ...] = (0, 1)) -> LayoutFacts:
    """The facts of arrays over axes of these names; `told` are the strides that are told apart."""
    ones = tuple([extent == 1 for extent in axes.extents])
    classes = tuple([tuple([stride if stride in told else 2 for stride in column]) for column in axes.columns])
    kinds = tuple([(tensor.dtype, tensor.is_scalar, tensor.is_counted) for tensor, _ in arrays])
    return names, ones, classes, kinds


class ArrayRole(NamedTuple):
    """What a kernel asks of the layout of one array, beside that its buffer walks the axes along which it has a stride.

    It walks `required` axes even where the array repeats itself along them. Axes of extent 1 along which it has a
    stride it walks where they are `kept`; those that are `single` it walks, too, as if they were contiguous. Of those
    `contiguous` the first one that is, if any, is promised to be so.
    """

    required: frozenset[str] = frozenset()
    kept: frozenset[str] = frozenset()
    single: frozenset[str] = frozenset()
    contiguous: Names = ()


def array_layout(
    pattern: Callable[[tuple[Argument, ...]], Pattern],
    facts: LayoutFacts,
    roles: Sequence[ArrayRole],
    backwards: str = "",
) -> ArrayLayout:
    """The layout of a kernel's arrays over its axes. Along the axis `backwards` a stride of -1 is promised, too."""
    names, ones, classes, kinds = facts
    arguments: list[Argument] = []
    axes: list[Names] = []
    picks: list[tuple[int, ...]] = []
    for index, ((dtype, is_scalar, is_counted), role) in enumerate(zip(kinds, roles, strict=True)):
        walked: dict[str, int] = {}
        for place, name in enumerate(() if is_scalar else names):
            is_single = ones[place] and name in role.single
            if classes[place][index] and (not ones[place] or name in role.kept):
                walked[name] = place
            elif is_single or name in role.required:
                walked[name] = len(names) + is_single
        known = {name: class_of(classes, pick, index) for name, pick in walked.items()}
        unit = next((name for name in role.contiguous if known.get(name) == 1), None)
        static = tuple(1 if name == unit else -1 if (name, known[name]) == (backwards, -1) else None for name in walked)
        counted = counted_axes(walked, len(names)) if is_counted else None
        arguments.append(Argument(dtype, tuple(walked), static, is_scalar, counted=counted))
        axes.append(tuple(walked))
        picks.append(tuple(walked.values()))
    return ArrayLayout(pattern(tuple(arguments)), tuple(axes), tuple(picks))


def in_memory(arrays: Arrays[V], copied: Copy[V]) -> list[tuple[V, Alignment]]:
    """The arrays, with copies in memory of numbers of elements."""
    return [(copied(tensor, None) if tensor.is_counted else tensor, place) for tensor, place in arrays]


def columns_of(arrays: Arrays[Tensor], rank: int) -> tuple[Column, ...]:
    """The strides of all arrays along each dimension of the domain."""
    return tuple(zip(*[domain_strides(tensor.strides, alignment, rank) for tensor, alignment in arrays], strict=True))


def line_of(arrays: Arrays[Tensor], dimensions: range) -> Axes:
    """The axis that stands for `dimensions`, all of extent 1: it is walked by who has them."""
    return Axes((1,), (tuple([int(any(d in alignment for d in dimensions)) for _, alignment in arrays]),))


@lru_cache(maxsize=256)
def numbered(prefix: str, count: int, *last: str) -> Names:
    """The names prefix0, prefix1, ... of `count` axes, and those of the axes after them."""
    return (*[f"{prefix}{axis}" for axis in range(count)], *last)


def shaped_arrays(layout: ArrayLayout, names: Names, axes: Axes) -> ShapedArrays:
    """A layout with the numbers of its axes."""
    count = len(layout.picks)
    rows = zip(*axes.columns, (0,) * count, (1,) * count, strict=True)
    strides = tuple([tuple([row[pick] for pick in picks]) for row, picks in zip(rows, layout.picks, strict=True)])
    return ShapedArrays(layout.pattern, dict(zip(names, axes.extents, strict=True)), layout.axes, strides)


def counted_axes(walked: Mapping[str, int], columns: int) -> Names:
    """The axes that a counted array walks, in the order of its dimensions, without those that it walks for others."""
    own = [name for name, pick in walked.items() if pick < columns]
    return tuple(sorted(own, key=lambda name: (_ORDER.index(name[0]), int(name[1:] or 0))))


_ORDER = "bormnicqk"
"""Initials of axes in the order of the domain: batch or outer ones, the reduced one, those inside it, lanes; of
attention, queries and keys."""


def class_of(classes: tuple[Column, ...], pick: int, array: int) -> int:
    """The class of the stride that a pick stands for."""
    return classes[pick][array] if pick < len(classes) else pick - len(classes)
