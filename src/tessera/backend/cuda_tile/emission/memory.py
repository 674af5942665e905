"""Loads, stores and stages: through views of buffers cut into tiles, or by addresses and masks.

A view needs a tile that begins at a multiple of its extents, and inside of the buffer: what a load of one that lies
outside altogether gives is not defined. The compiler then moves it as the GPU does that best: by the copy engine (TMA)
where strides and alignment allow. A stage is no memory here: what it would copy is computed where a tile of it is
loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import FloatAttr, IntegerAttr
from xdsl.ir import Operation, SSAValue

from tessera.backend.cuda_tile.emission.emitter import Handler, TileEmitter, element_of, shape_of
from tessera.backend.cuda_tile.program.operations import UNSIGNED, WEAK, Predicate
from tessera.backend.cuda_tile.program.program import TileValue
from tessera.backend.cuda_tile.program.types import (
    I1,
    I8,
    I64,
    ElementType,
    Padding,
    PartitionView,
    Pointer,
    TensorView,
    TileType,
    Token,
)
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import begins_inside, is_multiple, is_natural

_MASKED, _PADDED = 4, 8
"""Flags of loads and stores by addresses."""


@dataclass(frozen=True)
class BufferAccess:
    """A buffer argument: its address, its extents and strides as far as they are promised, and as indices."""

    element: ElementType
    address: TileValue
    extents: tuple[int | None, ...]
    strides: tuple[int | None, ...]
    sizes: tuple[TileValue, ...]
    steps: tuple[TileValue, ...]


class BufferAccesses:
    """The memory operations of one kernel, which know its buffer arguments."""

    def __init__(self, kernel: tile.KernelOp) -> None:
        self.known: dict[SSAValue, BufferAccess] = {}
        self._views: dict[tuple[SSAValue, tuple[int, ...]], TileValue] = {}
        self._multiplies = any(isinstance(op, tile.MmaOp) for op in kernel.walk())
        self._written = {kernel.body.block.args[index] for index in tile.integers(kernel.outputs)}
        loaded = {op.buffer for op in kernel.walk() if isinstance(op, tile.LoadOp)}
        if loaded & self._written:
            raise CompileError(
                "a kernel that reads what it writes: loads and stores of CUDA Tile IR have no order without tokens",
                hints=["leave the knob `backend` at 'triton'"],
            )

    def handlers(self) -> Mapping[type[Operation], Handler]:
        """What is written for each memory operation."""
        return cast(
            "Mapping[type[Operation], Handler]",
            {
                tile.LoadOp: self.load,
                tile.StoreOp: self.store,
                tile.StageOp: self.stage,
                tile.PrefetchOp: _nothing,
                memref.DimOp: self.extent,
            },
        )

    def open(self, e: TileEmitter, argument: SSAValue, buffer: BufferAccess, kernel: tile.KernelOp) -> None:
        """Makes a buffer known, and the views of it that the kernel's loads and stores take."""
        self.known[argument] = buffer
        for op in kernel.walk():
            if isinstance(op, (tile.LoadOp, tile.StoreOp)) and op.buffer is argument:
                dims = _viewed(op, buffer, self._multiplies)
                if dims is not None and (argument, dims) not in self._views:
                    self._views[argument, dims] = _view(e, buffer, dims)

    def extent(self, e: TileEmitter, op: memref.DimOp) -> None:
        """The extent of a buffer argument."""
        e.define(op.result, self._of(op.source).sizes[_constant_index(op.index)])

    def _of(self, buffer: SSAValue) -> BufferAccess:
        if buffer not in self.known:
            raise CompileError(
                "scratch memory is addressed by one worker at a time; CUDA Tile IR has none of that kind"
            )
        return self.known[buffer]

    def load(self, e: TileEmitter, op: tile.LoadOp) -> None:
        """A load through a view, a masked one, or the body of the stage that is loaded from."""
        if op.steps is not None:
            raise CompileError("CUDA Tile IR kernels have no loads of elements that are apart (`steps`)")
        if isinstance(op.buffer.owner, tile.StageOp):
            _load_staged(e, op, op.buffer.owner)
            return
        buffer = self._of(op.buffer)
        dims = _viewed(op, buffer, self._multiplies)
        if dims is not None:
            part, index = self._part(e, op, dims)
            kind = TileType(_stored(buffer.element), part.tile)
            view = e.build.one("make_partition_view", [self._views[op.buffer, dims]], part)
            loaded, _ = e.build.many("load_view_tko", [view, index, None], [kind, Token()], ordering=WEAK)
            loaded = _from_part(e, loaded, op, dims)
        else:
            at, mask = self._window(e, op, shape_of(op.tile.type))
            kind = at.tile.of(_stored(buffer.element))
            fill = None if mask is None or op.oob is not None else e.constant(_fill(op), kind)
            flags = (_MASKED if mask is not None else 0) | (_PADDED if fill is not None else 0)
            loaded, _ = e.build.many(
                "load_ptr_tko", [at, mask, fill, None], [kind, Token()], flags=flags, ordering=WEAK
            )
        e.define(op.tile, e.converted(loaded, I1) if buffer.element == I1 else loaded)

    def store(self, e: TileEmitter, op: tile.StoreOp) -> None:
        """A store through a view, or a masked one."""
        buffer, value = self._of(op.buffer), e.get(op.value)
        if buffer.element == I1:
            value = e.build.one("exti", [value], value.tile.of(I8), sign=UNSIGNED)
        dims = _viewed(op, buffer, self._multiplies)
        if dims is not None:
            part, index = self._part(e, op, dims)
            view = e.build.one("make_partition_view", [self._views[op.buffer, dims]], part)
            value = _to_part(e, value, op, dims, part.tile)
            e.build.many("store_view_tko", [value, view, index, None], [Token()], ordering=WEAK)
            return
        at, mask = self._window(e, op, shape_of(op.value.type))
        flags = _MASKED if mask is not None else 0
        e.build.many("store_ptr_tko", [at, value, mask, None], [Token()], flags=flags, ordering=WEAK)

    def _part(
        self, e: TileEmitter, op: tile.LoadOp | tile.StoreOp, dims: tuple[int, ...]
    ) -> tuple[PartitionView, tuple[TileValue, ...]]:
        """The view cut into tiles as an access takes them, and the number of the one that it takes."""
        sizes = _sizes(op)
        shape = tuple(sizes.get(dim, 1) for dim in dims)
        index = []
        for dim, size in zip(dims, shape, strict=True):
            at = e.get(op.indices[dim])
            index.append(at if size == 1 else e.divided(at, e.index(size)))
        tensor = self._views[op.buffer, dims].type
        assert isinstance(tensor, TensorView)
        return PartitionView(shape, tensor, _padding(op) or ""), tuple(index)

    def _window(
        self, e: TileEmitter, op: tile.LoadOp | tile.StoreOp, shape: tuple[int, ...]
    ) -> tuple[TileValue, TileValue | None]:
        """The addresses of a tile, and the mask of those that lie inside, None where all do."""
        buffer, rank = self._of(op.buffer), len(shape)
        dims, promised = tile.integers(op.dims), tile.integers(op.in_bounds)
        offset, mask = e.constant(0, TileType(I64, shape)), None
        for dim, index in enumerate(op.indices):
            axis = dims.index(dim) if dim in dims else -1
            at = e.get(index) if axis < 0 else e.positions(e.get(index), shape[axis], axis, rank)
            step = e.spread(buffer.steps[dim], at.tile.shape)
            if buffer.strides[dim] != 0:
                term = at if buffer.strides[dim] == 1 else e.arithmetic("mul", at, step)
                offset = e.add(offset, e.spread(term, shape))
            if axis >= 0 and not promised[axis]:
                inside = e.compared(Predicate.LT, at, e.spread(buffer.sizes[dim], at.tile.shape))
                mask = e.both(mask, e.spread(inside, shape))
                if not is_natural(index):
                    inside = e.compared(Predicate.GE, at, e.constant(0, at.tile))
                    mask = e.both(mask, e.spread(inside, shape))
        base = e.spread(buffer.address, shape)
        return e.build.one("offset", [base, offset], base.type), mask

    def stage(self, e: TileEmitter, op: tile.StageOp) -> None:
        """Nothing: see the loads. Raises CompileError where evaluating later could read something else."""
        for inner in op.body.walk():
            if isinstance(inner, tile.LoadOp) and inner.buffer in self._written:
                raise CompileError("a stage of a buffer that the kernel writes is a copy, which CUDA Tile IR lacks")


def _stored(element: ElementType) -> ElementType:
    """What lies in memory: a byte for each i1."""
    return I8 if element == I1 else element


def _nothing(e: TileEmitter, op: tile.PrefetchOp) -> None:
    """A hint that CUDA Tile IR has no use for."""


def _sizes(op: tile.LoadOp | tile.StoreOp) -> dict[int, int]:
    """The extents of a tile by the dimensions of its buffer."""
    shape = shape_of((op.tile if isinstance(op, tile.LoadOp) else op.value).type)
    return {dim: shape[axis] for axis, dim in enumerate(tile.integers(op.dims)) if dim >= 0}


def _padding(op: tile.LoadOp | tile.StoreOp) -> Padding | None:
    """What a view gives outside of its buffer for an access; None where no view gives it."""
    if isinstance(op, tile.StoreOp) or op.oob is not None or all(tile.integers(op.in_bounds)):
        return ""
    fill = _fill(op)
    if fill == 0:
        return "zero"
    if element_of(op.tile.type).is_float and fill in (float("inf"), float("-inf")):
        return "pos_inf" if fill > 0 else "neg_inf"
    return None


def _viewed(op: tile.LoadOp | tile.StoreOp, buffer: BufferAccess, multiplies: bool) -> tuple[int, ...] | None:
    """The dimensions of the view that an access goes through; None for one by addresses."""
    sizes = _sizes(op)
    dims = tuple(dim for dim, stride in enumerate(buffer.strides) if stride != 0)
    if not dims or any(dim not in dims for dim in sizes) or _padding(op) is None:
        return None
    promised = dict(zip(tile.integers(op.dims), tile.integers(op.in_bounds), strict=True))
    for dim, size in sizes.items():
        at = op.indices[dim]
        if not (is_multiple(at, size) and is_natural(at) and (promised[dim] or begins_inside(at, multiplies))):
            return None
    return dims


def _view(e: TileEmitter, buffer: BufferAccess, dims: Sequence[int]) -> TileValue:
    extents = tuple(buffer.extents[dim] for dim in dims)
    strides = tuple(buffer.strides[dim] for dim in dims)
    sizes = tuple(buffer.sizes[dim] for dim in dims if buffer.extents[dim] is None)
    steps = tuple(buffer.steps[dim] for dim in dims if buffer.strides[dim] is None)
    kind = TensorView(_stored(buffer.element), extents, strides)
    return e.build.one("make_tensor_view", [buffer.address, sizes, steps], kind)


def _from_part(e: TileEmitter, loaded: TileValue, op: tile.LoadOp, dims: Sequence[int]) -> TileValue:
    """A part of a view as the tile that a load gives."""
    shape, walked = shape_of(op.tile.type), [dim for dim in tile.integers(op.dims) if dim >= 0]
    kept = [dim for dim in dims if dim in walked]
    sizes = _sizes(op)
    loaded = e.reshape(loaded, [sizes[dim] for dim in kept])
    return e.reshape(e.permute(loaded, [kept.index(dim) for dim in walked]), shape)


def _to_part(e: TileEmitter, value: TileValue, op: tile.StoreOp, dims: Sequence[int], part: Sequence[int]) -> TileValue:
    """A tile as the part of a view that a store takes."""
    walked, sizes = [dim for dim in tile.integers(op.dims) if dim >= 0], _sizes(op)
    value = e.reshape(value, [sizes[dim] for dim in walked])
    return e.reshape(e.permute(value, [walked.index(dim) for dim in dims if dim in walked]), part)


def _fill(op: tile.LoadOp) -> float:
    return op.fill.value.data if isinstance(op.fill, (FloatAttr, IntegerAttr)) else 0


def _constant_index(value: SSAValue) -> int:
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    raise CompileError("the dimension of memref.dim is a constant")


_STAGE_DIMS: Mapping[str, tuple[int, ...]] = {"rows": (0, 1), "panels": (1, 2), "row_panels": (2, 1)}
"""Layout -> the dims of a load that reads a tile as the stage's body made it."""


def _load_staged(e: TileEmitter, op: tile.LoadOp, stage: tile.StageOp) -> None:
    """The stage's body at the place that a load addresses, whose tile must be the stage's own."""
    body, layout = stage.body.block, stage.layout.data
    last = body.last_op
    assert isinstance(last, tile.YieldOp)
    (made,) = last.values
    if made.type != op.tile.type or tile.integers(op.dims) != _STAGE_DIMS.get(layout, ()):
        raise CompileError(
            f"a load of {op.tile.type} from a stage of {made.type} in layout {layout!r}: staged tiles are computed"
            " where they are loaded, one at a time"
        )
    at = [e.get(index) for index in op.indices]
    if layout != "rows":
        width = e.index(stage.staged.type.get_shape()[-1])
        panel = e.add(e.arithmetic("mul", at[0], width), at[2])
        at = [at[1], panel] if layout == "panels" else [panel, at[1]]
    for argument, value in zip(body.args, at, strict=True):
        e.define(argument, value)
    e.run(body)
    e.define(op.tile, e.get(made))


def pointer_of(element: ElementType) -> TileType:
    """The type of a buffer's address."""
    return TileType(Pointer(_stored(element)))
