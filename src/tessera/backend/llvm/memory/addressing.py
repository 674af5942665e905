"""Where a tile lies over a buffer: addresses, and which of its elements are inside.

Indices along dimensions that no tile dimension walks must lie inside the buffer; the others are checked unless the
operation promises that they do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.indices import divide
from tessera.backend.llvm.emission.values import BufferValue, Element, IndexValue, constant_index, vector_type

_UNWALKED = -1


@dataclass(frozen=True, slots=True)
class Axis:
    """One dimension of a tile over a buffer: how many elements, the stride in bytes, where they may leave the buffer.

    `position` and `extent` are of the buffer dimension it walks; `checked` says that elements may lie outside. `step`
    is the distance of neighbours in that dimension, which `stride` contains.
    """

    size: int
    stride: int | str
    position: IndexValue
    extent: IndexValue
    checked: bool
    step: int = 1

    def inside(self, emitter: FunctionEmitter, element: int) -> str:
        """The i1 that one element along the axis lies inside."""
        if not self.checked:
            return "true"
        at = self.position.plus(element * self.step)
        if not at.natural and at.base is not None:  # one comparison: a negative position is a large number
            return emitter.pure(f"icmp ult i64 {emitter.operand(at)}, {emitter.operand(self.extent)}")
        return emitter.both(self._not_before(emitter, at), emitter.below(at, self.extent))

    def whole(self, emitter: FunctionEmitter) -> str:
        """The i1 that all elements along the axis lie inside."""
        if not self.checked:
            return "true"
        last = self.position.plus((self.size - 1) * self.step)
        return emitter.both(self._not_before(emitter, self.position), emitter.below(last, self.extent))

    @staticmethod
    def _not_before(emitter: FunctionEmitter, at: IndexValue) -> str:
        return "true" if at.natural else emitter.below(constant_index(-1), at)

    def mask(self, emitter: FunctionEmitter, first: int, lanes: int, condition: str = "true") -> str | None:
        """The mask of `lanes` elements from `first` on: those inside, if `condition` holds at all. None: all are."""
        if not self.checked and condition == "true":
            return None
        upper = self._lanes_before(emitter, self.extent, first, lanes) if self.checked else str(lanes)
        if condition != "true":
            upper = emitter.pure(f"select i1 {condition}, i32 {upper}, i32 0")
        mask = lanes_below(emitter, upper, lanes)
        if not self.checked or self.position.plus(first * self.step).natural:
            return mask
        kind = vector_type("i1", lanes)
        before = lanes_below(emitter, self._lanes_before(emitter, constant_index(0), first, lanes), lanes)
        not_before = emitter.pure(f"xor {kind} {before}, {emitter.splat('i1', 'true', lanes)}")
        return emitter.pure(f"and {kind} {mask}, {not_before}")

    def _lanes_before(self, emitter: FunctionEmitter, limit: IndexValue, first: int, lanes: int) -> str:
        """How many of the lanes lie before `limit`, as an i32."""
        rest = emitter.subtract(limit, self.position.plus(first * self.step))
        if self.step > 1:  # a quotient below 0 counts as 0, whichever way it is rounded
            rest = divide(emitter, rest.plus(self.step - 1), self.step)
        clamped = emitter.minimum(emitter.maximum(rest, constant_index(0)), constant_index(lanes))
        if clamped.known is not None:
            return str(clamped.known)
        return emitter.pure(f"trunc i64 {emitter.operand(clamped)} to i32")


def lanes_below(emitter: FunctionEmitter, count: str, lanes: int) -> str:
    """The mask whose first `count` (an i32) lanes are set; one lane gives an i1."""
    if lanes == 1:
        return emitter.pure(f"icmp sgt i32 {count}, 0")
    steps = ", ".join(f"i32 {lane}" for lane in range(lanes))
    return emitter.pure(f"icmp slt <{lanes} x i32> <{steps}>, {emitter.splat('i32', count, lanes)}")


def single() -> Axis:
    """The axis of a dimension that walks nothing."""
    return Axis(1, 0, constant_index(0), constant_index(1), False)


@dataclass(frozen=True, slots=True)
class TileAddress:
    """A tile over a buffer: two axes, and the address of its first element as a pointer plus terms plus a constant.

    The terms are byte offsets, those defined furthest out first.
    """

    element: Element
    rows: Axis
    columns: Axis
    pointer: str
    terms: tuple[str, ...]
    constant: int

    @property
    def transposed(self) -> TileAddress:
        """The same elements with rows and columns exchanged."""
        return TileAddress(self.element, self.columns, self.rows, self.pointer, self.terms, self.constant)

    def whole(self, emitter: FunctionEmitter) -> str:
        """The i1 that the whole tile lies inside."""
        return emitter.both(self.rows.whole(emitter), self.columns.whole(emitter))

    def row(self, emitter: FunctionEmitter, number: IndexValue) -> TileAddress:
        """One row of the tile, whose number is known at run time only."""
        at = emitter.add(self.rows.position, number)
        assert self.rows.step == 1, "rows of a tile that are apart are read in one go"
        rows = Axis(1, self.rows.stride, at, self.rows.extent, self.rows.checked)
        further = emitter.scaled(emitter.operand(number), self.rows.stride)
        return TileAddress(self.element, rows, self.columns, self.pointer, (*self.terms, further), self.constant)

    def first_pointer(self, emitter: FunctionEmitter) -> str:
        """The address of the first element."""
        return self._at(emitter, self.pointer, self.terms)

    def row_pointers(self, emitter: FunctionEmitter, offsets: Sequence[int | str] = ()) -> list[str]:
        """The address of the first element of each row.

        Where the rows' stride is not known, the addresses follow from each other by addition, as far out as their
        position allows; `offsets` in bytes replaces these steps by given distances from the first row.
        """
        if offsets:
            return [self._at(emitter, self.pointer, (offset, *self.terms)) for offset in offsets]
        stride = self.rows.stride
        if isinstance(stride, int):
            start = self._at(emitter, self.pointer, self.terms, constant=False)
            return [advance(emitter, start, self.constant + row * stride) for row in range(self.rows.size)]
        outer = [term for term in self.terms if emitter.depth(term) < emitter.current_depth]
        inner = [term for term in self.terms if emitter.depth(term) >= emitter.current_depth]
        start = self._at(emitter, self.pointer, outer, constant=False)
        pointers = []
        for row in range(self.rows.size):
            start = emitter.pure(f"getelementptr i8, ptr {start}, i64 {stride}") if row else start
            pointers.append(self._at(emitter, start, inner))
        return pointers

    def _at(self, emitter: FunctionEmitter, start: str, terms: Sequence[int | str], constant: bool = True) -> str:
        for term in terms:
            if term != 0:
                start = emitter.pure(f"getelementptr i8, ptr {start}, i64 {term}")
        return advance(emitter, start, self.constant) if constant else start


def advance(emitter: FunctionEmitter, pointer: str, offset: int | str) -> str:
    """The address `offset` bytes further, written here, so that it becomes a displacement."""
    return pointer if offset == 0 else emitter.emit(f"getelementptr i8, ptr {pointer}, i64 {offset}")


def window(
    emitter: FunctionEmitter,
    buffer: BufferValue,
    indices: Sequence[IndexValue],
    dims: Sequence[int],
    in_bounds: Sequence[int],
    shape: tuple[int, int],
    steps: Sequence[int] = (),
) -> TileAddress:
    """The window of a tile of `shape`; `dims`, `in_bounds` and `steps` (1 by default) have an entry for each of its
    one or two dimensions.
    """
    axes = []
    for dim, promised, size, step in zip(
        dims, in_bounds, shape[2 - len(dims) :], steps or [1] * len(dims), strict=True
    ):
        if dim == _UNWALKED:
            axes.append(Axis(size, 0, constant_index(0), constant_index(size), False))
            continue
        stride = buffer.strides[dim]
        apart = stride * step if isinstance(stride, int) else emitter.scaled(stride, step)
        axes.append(Axis(size, apart, indices[dim], buffer.extents[dim], not promised, step))
    while len(axes) < 2:
        axes.insert(0, single())
    terms, constant = _byte_offset(emitter, buffer, indices)
    terms.sort(key=emitter.depth)
    return TileAddress(buffer.element, axes[0], axes[1], buffer.pointer, tuple(terms), constant)


def _byte_offset(emitter: FunctionEmitter, buffer: BufferValue, indices: Sequence[IndexValue]) -> tuple[list[str], int]:
    terms: list[str] = []
    constant = 0
    for index, stride in zip(indices, buffer.strides, strict=True):
        if isinstance(stride, int):
            constant += index.offset * stride
            if index.base is not None and stride:
                terms.append(emitter.scaled(index.base, stride))
            continue
        if index.base is not None:
            terms.append(emitter.scaled(index.base, stride))
        if index.offset:
            terms.append(emitter.pure(f"mul nsw i64 {stride}, {index.offset}"))
    return terms, constant
