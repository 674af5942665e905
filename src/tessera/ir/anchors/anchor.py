"""The anchor of an operator: its iteration space, and how each tensor is indexed by it.

    matmul   axes b0 m k n; a[b0, m, k], b[b0, k, n] -> c[b0, m, n]; k is summed over
    conv2d   axes n y x g o ky kx c; image[n, y sy + ky dy - top, x sx + kx dx - left, (g c)], w[(g o), c, ky, kx]
    softmax  axes d0 d1; x[d0, d1] -> y[d0, d1]; the rows lie along d1

Maps are functions of the operands' ranks and of the operator's attributes alone (`rules.py`). From extents of the
operands follow those of the axes, and from them the result's shape, the number of points to compute, and which
dimensions of operands and result have one extent. What splits an axis over devices, or differentiates a sum of
products, can be read off the same maps.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NoReturn, TypeAlias

from tessera.errors import ShapeMismatchError
from tessera.system.caching import cached_property

Extent: TypeAlias = int | None
"""The number of elements along a dimension; None where it is known only at run time, and not 1 where 1 repeats."""
Extents: TypeAlias = Sequence[Extent]
Place: TypeAlias = tuple[int, int]
"""The number of a tensor, and one of its dimensions."""

Reduction: TypeAlias = Literal["add", "mul", "max", "min", "row"]
"""What elements along an axis are reduced by; "row": by what the operator's body says, and the axis may stay."""

ADD: Final[Reduction] = "add"
MUL: Final[Reduction] = "mul"

Fit: TypeAlias = Literal["exact", "broadcast", "spread"]
"""How an extent of 1 fits an axis of another one: not at all; repeated, where it makes an axis what the largest of such
operands says; or repeated along an axis that others have said.
"""

DIFFERENT: Final = "extents {extent} and {known} of one axis differ"


class AnchorError(ShapeMismatchError):
    """Operands that the maps do not fit; its message is the reason."""


@dataclass(frozen=True)
class Index:
    """Where a tensor is read or written along one dimension, as a function of axes.

    Without `steps` the dimension holds its axes in row-major order: one axis is read element by element, none is a
    single element. With them it is read at `sum(step * axis) - before`, as if the tensor went on for `before` elements
    in front and `after` behind. `joined` dimensions hold their axes one behind the other.
    """

    axes: tuple[str, ...]
    steps: tuple[int, ...] = ()
    before: int = 0
    after: int = 0
    fit: Fit = "exact"
    joined: bool = False
    refusal: str = DIFFERENT
    """Why another extent does not fit: `{extent}` is that of the dimension, `{known}` what it should be; axes stand by
    their names for theirs.
    """

    @property
    def is_whole(self) -> bool:
        """Whether the dimension is its axes, no more and no less, so that equal indices mean equal extents."""
        return not self.steps and not self.joined and bool(self.axes)


@dataclass(frozen=True)
class Anchor:
    """The iteration space of an operator over operands of certain ranks, and its maps."""

    operands: tuple[tuple[Index, ...], ...]
    """For each operand the index along each of its dimensions."""
    result: tuple[Index, ...]
    reduced: Mapping[str, Reduction] = field(default_factory=dict)
    given: Mapping[str, Extent] = field(default_factory=dict)
    """Extents of axes that attributes say."""
    placed: frozenset[str] = frozenset()
    """Axes along which an element depends on its place, so that part of an axis is no such axis."""

    def extents(self, shapes: Sequence[Extents]) -> dict[str, Extent]:
        """The extents of the axes, by name, over operands of these shapes. Raises AnchorError for others."""
        known = dict(self.given)
        for operand, dimension, axis, index in self._plain:
            extent = shapes[operand][dimension]
            if axis not in known:
                known[axis] = extent
            elif known[axis] != extent:
                known[axis] = _met(index, extent, known[axis])
        for operand, dimension, index in self._composed:
            extent = shapes[operand][dimension]
            if index.steps:
                _slide(index, extent, known)
            else:
                _split(index, extent, known)
        return known

    def shape(self, shapes: Sequence[Extents]) -> tuple[Extent, ...]:
        """The result's shape, of operands of these shapes. Raises AnchorError where they do not fit."""
        if (axes := self._axes) is None:
            return self._result_of(self.extents(shapes))
        # On the path of binding: every dimension is an axis, and where all extents of each are equal, nothing is to be
        # decided.
        known = dict(self.given) if self.given else {}
        for names, extents in zip(axes[0], shapes):  # noqa: B905  (lengths are those of the ranks)
            for axis, extent in zip(names, extents):  # noqa: B905
                if known.setdefault(axis, extent) != extent:
                    return self._result_of(self.extents(shapes))
        return tuple([known[axis] for axis in axes[1]])

    def _result_of(self, known: Mapping[str, Extent]) -> tuple[Extent, ...]:
        return tuple([known[index.axes[0]] if len(index.axes) == 1 else _held(index, known) for index in self.result])

    def may_be(self, expected: Extents, actual: Extents) -> bool:
        """Whether a result of an `expected` shape may have the `actual` one: what both know is equal. That an extent is
        1 stands in every shape, but where a window or a sum of extents makes it.
        """
        if len(expected) != len(actual):
            return False
        for index, wanted, extent in zip(self.result, expected, actual, strict=True):
            both = (wanted, extent)
            if wanted != extent and (None not in both or (1 in both and not self._is_made(index))):
                return False
        return True

    def _is_made(self, index: Index) -> bool:
        return index.joined or any(axis in self._made for axis in index.axes)

    @cached_property
    def _made(self) -> frozenset[str]:
        """Axes whose extents windows decide."""
        return frozenset(index.axes[0] for _, _, index in self._places() if index.steps)

    def points(self, shapes: Sequence[Extents]) -> int:
        """The number of points of the iteration space; all extents are known."""
        return math.prod([extent for extent in self.extents(shapes).values() if extent is not None])

    @cached_property
    def equal_dimensions(self) -> tuple[tuple[Place, ...], ...]:
        """Dimensions that have one extent, but for a 1 that is repeated: groups of (tensor, dimension), where the
        result is the tensor after the operands.
        """
        groups: dict[tuple[str, ...], list[Place]] = {}
        for tensor, indices in enumerate((*self.operands, self.result)):
            for dimension, index in enumerate(indices):
                if index.is_whole:
                    groups.setdefault(index.axes, []).append((tensor, dimension))
        return tuple(tuple(group) for group in groups.values() if len(group) > 1)

    @cached_property
    def _axes(self) -> tuple[tuple[tuple[str, ...], ...], tuple[str, ...]] | None:
        """The axis of each dimension of the operands, and of the result; None where a dimension is not just one."""
        if any(len(index.axes) != 1 or index.steps for index in (*itertools.chain(*self.operands), *self.result)):
            return None
        operands = [tuple([index.axes[0] for index in indices]) for indices in self.operands]
        return tuple(operands), tuple([index.axes[0] for index in self.result])

    @cached_property
    def _plain(self) -> tuple[tuple[int, int, str, Index], ...]:
        """Dimensions of one axis, those first that are not spread over what others say."""
        found = [
            (operand, dimension, index.axes[0], index)
            for operand, dimension, index in self._places()
            if len(index.axes) == 1 and not index.steps
        ]
        return tuple(sorted(found, key=lambda each: each[3].fit == "spread"))

    @cached_property
    def _composed(self) -> tuple[tuple[int, int, Index], ...]:
        found = [each for each in self._places() if len(each[2].axes) != 1 or each[2].steps]
        return tuple(sorted(found, key=lambda each: each[2].fit == "spread"))

    def _places(self) -> Iterator[tuple[int, int, Index]]:
        for operand, indices in enumerate(self.operands):
            for dimension, index in enumerate(indices):
                yield operand, dimension, index


AnchorRule: TypeAlias = Callable[[tuple[int, ...], Mapping[str, Any]], Anchor]
"""(ranks of the operands, attributes) -> the anchor; raises AnchorError for ranks that the operator does not take."""


def _refuse(index: Index, extent: Extent, known: Extent, axes: Mapping[str, Extent] | None = None) -> NoReturn:
    raise AnchorError(index.refusal.format(extent=extent, known=known, **(axes or {})))


def _met(index: Index, extent: Extent, known: Extent) -> Extent:
    """The extent of an axis that is `known` and meets another `extent` along a dimension."""
    if index.fit != "exact" and extent == 1:
        return known
    if index.fit == "broadcast" and known == 1:
        return extent
    if known is None or extent is None:
        if index.fit == "spread" and known == 1:
            _refuse(index, extent, known)
        # That an extent is 1 stands in every type; one that is not known is not 1.
        return extent if known is None and extent != 1 else known
    _refuse(index, extent, known)


def _held(index: Index, known: Mapping[str, Extent]) -> Extent:
    """How many elements a dimension of whole axes has."""
    extents = [extent for axis in index.axes if (extent := known[axis]) is not None]
    if len(extents) < len(index.axes):
        return None
    return sum(extents) if index.joined else math.prod(extents)


def _split(index: Index, extent: Extent, known: dict[str, Extent]) -> None:
    """Divides a dimension into its axes, of which at most one is new."""
    if index.fit == "spread" and extent == 1:
        return
    new = [axis for axis in index.axes if axis not in known]
    assert len(new) <= 1, "a dimension of several unknown axes"
    if not new:
        held = _held(index, known)
        if held is not None and extent is not None and held != extent:
            _refuse(index, extent, held, known)
        return
    others = _held(Index(tuple(axis for axis in index.axes if axis != new[0])), known)
    if others is None or extent is None:
        known[new[0]] = None
    elif others == 0 and extent == 0:
        known[new[0]] = 1
    elif others == 0 or extent % others:
        _refuse(index, extent, others, known)
    else:
        known[new[0]] = extent // others


def _slide(index: Index, extent: Extent, known: dict[str, Extent]) -> None:
    """Finds how many places the first axis of a dimension has, or checks that those it has lie within."""
    place, step = index.axes[0], index.steps[0]
    window = [known[axis] for axis in index.axes[1:]]
    inner = [count for count in window if count is not None]
    if 0 in inner:
        raise AnchorError("the window has no elements")
    if extent is None or len(inner) < len(window):
        known.setdefault(place, None)
        return
    reach = 1 + sum(apart * (count - 1) for apart, count in zip(index.steps[1:], inner, strict=True))
    room = extent + index.before + index.after - reach
    if place not in known:
        if room < 0 and inner:
            _refuse(index, room + reach, reach, known)
        known[place] = room // step + 1
        return
    count = known[place]
    if count:
        first, last = -index.before, (count - 1) * step - index.before
        if min(first, last) < 0 or max(first, last) >= extent:
            _refuse(index, extent, count, known)


class ExtentClasses:
    """Which dimensions of values have one extent: union-find, in which the least place stands for all.

    A place is (number of a value, dimension). A static 1 among the values' `shapes` may be repeated, so that it is
    equal to nothing.
    """

    def __init__(self, shapes: Sequence[Extents]) -> None:
        self._shapes = shapes
        self._parent: dict[Place, Place] = {}

    def root(self, place: Place) -> Place:
        """The place that stands for all that have this one's extent."""
        while (above := self._parent.get(place)) is not None:
            place = above
        return place

    def apply(self, anchor: Anchor, operands: Sequence[int], result: int) -> None:
        """Unifies what an operator over these operands needs to be equal."""
        values = (*operands, result)
        for group in anchor.equal_dimensions:
            places = [(values[tensor], dimension) for tensor, dimension in group]
            wide = [(value, dimension) for value, dimension in places if self._shapes[value][dimension] != 1]
            for place in wide[1:]:
                self._unify(wide[0], place)

    def _unify(self, first: Place, second: Place) -> None:
        least, other = sorted((self.root(first), self.root(second)))
        if least != other:
            self._parent[other] = least
