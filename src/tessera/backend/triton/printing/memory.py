"""Loads, stores and stages: pointers from buffer arguments, masks from extents, or blocks through descriptors.

A stage is no memory here: what it would copy is computed where a tile of it is loaded, and Triton decides what goes
through shared memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from xdsl.dialects import arith, memref
from xdsl.dialects.builtin import FloatAttr, IntegerAttr, MemRefType
from xdsl.ir import Operation, SSAValue

from tessera.backend.triton.printing import descriptors
from tessera.backend.triton.printing.descriptors import Descriptor, Key
from tessera.backend.triton.printing.printer import Handler, Printer, Text, element_type, shape_of
from tessera.backend.triton.printing.tiles import along
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.facts import is_natural, static_strides


@dataclass(frozen=True)
class BufferNames:
    """How a buffer argument reaches the kernel: its extents and strides, as names or, where promised, numbers."""

    label: str
    sizes: tuple[str, ...]
    strides: tuple[str, ...]

    @property
    def pointer(self) -> str:
        """The name of the pointer to its first element."""
        return f"{self.label}_ptr"


def buffer_names(name: str, kind: MemRefType) -> BufferNames:
    """The names of a buffer argument called `name`."""
    sizes = [str(extent) if extent >= 0 else f"{name}_size_{dim}" for dim, extent in enumerate(kind.get_shape())]
    strides: list[str] = []
    for dim, stride in enumerate(static_strides(kind)):
        strides.append(f"{name}_stride_{dim}" if stride is None else str(stride))
    return BufferNames(name, tuple(sizes), tuple(strides))


class Buffers:
    """The memory operations of one kernel, which know its buffer arguments."""

    def __init__(
        self, kernel: tile.KernelOp, names: Mapping[SSAValue, BufferNames], made: Mapping[Key, Descriptor]
    ) -> None:
        self.names, self.descriptors = names, made
        self.written = {kernel.body.block.args[index] for index in tile.integers(kernel.outputs)}
        self.read = {op.buffer for op in kernel.walk() if isinstance(op, tile.LoadOp)}

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

    def extent(self, p: Printer, op: memref.DimOp) -> None:
        """The extent of a buffer argument."""
        p.define(op.result, Text(self._of(op.source).sizes[constant_index(op.index)]))

    def _of(self, buffer: SSAValue) -> BufferNames:
        if buffer not in self.names:
            raise CompileError("scratch memory is addressed by one worker at a time; Triton has none of that kind")
        return self.names[buffer]

    def load(self, p: Printer, op: tile.LoadOp) -> None:
        """A masked `tl.load`, one through a descriptor, or the body of the stage that is loaded from."""
        if op.steps is not None:
            raise CompileError("the Triton backend has no code for loads of elements that are apart (`steps`)")
        if isinstance(op.buffer.owner, tile.StageOp):
            _load_staged(p, op, op.buffer.owner)
            return
        name = p.name(op.tile.name_hint or f"{self._of(op.buffer).label}_tile")
        p.define(op.tile, Text(name))
        if op.access is not None:
            descriptor = descriptors.key_of(op, self.descriptors)
            block = f"{descriptor.name}.load({descriptors.offsets(p, descriptor, op.indices)})"
            p.line(f"{name} = {descriptors.loaded(descriptor, op, block)}")
            return
        pointer, mask = self._window(p, op, shape_of(op.tile))
        arguments = [pointer, *([f"mask={mask}"] if mask else [])]
        if mask and op.oob is None:
            arguments.append(f"other={_fill(op)}")
        p.call(f"{name} = tl.load", [*arguments, *_eviction(op)])

    def store(self, p: Printer, op: tile.StoreOp) -> None:
        """A masked `tl.store`, or one through a descriptor."""
        if op.access is not None:
            descriptor = descriptors.key_of(op, self.descriptors)
            block = descriptors.stored(descriptor, op, p.text(op.value))
            p.call(f"{descriptor.name}.store", [descriptors.offsets(p, descriptor, op.indices), block])
            return
        pointer, mask = self._window(p, op, shape_of(op.value))
        arguments = [pointer, p.text(op.value), *([f"mask={mask}"] if mask else [])]
        if op.nontemporal is not None:
            arguments.append('cache_modifier=".cs"')
        p.call("tl.store", [*arguments, *_eviction(op)])
        if op.buffer in self.read:
            # Another thread of the program may be the one that reads the element.
            p.line("tl.debug_barrier()")

    def _window(self, p: Printer, op: tile.LoadOp | tile.StoreOp, shape: tuple[int, ...]) -> tuple[str, str]:
        """The pointers of a tile, and the mask of those that lie inside, "" where all do."""
        names = self._of(op.buffer)
        dims, promised = tile.integers(op.dims), tile.integers(op.in_bounds)
        terms, conditions = [names.pointer], []
        for dim, index in enumerate(op.indices):
            axis = dims.index(dim) if dim in dims else -1
            wide = axis >= 0 and shape[axis] > 1
            at = along(p.lanes(index, shape[axis]), axis, len(shape)) if wide else p.operand(index)
            terms += _term(at, names.strides[dim], wide)
            if axis >= 0 and not promised[axis]:
                conditions.append(f"({at} < {names.sizes[dim]})")
                if not is_natural(index):
                    conditions.append(f"({at} >= 0)")
        if all(extent == 1 for extent in shape):
            terms.append(along("tl.arange(0, 1)", 0, len(shape)))
        mask = " & ".join(conditions)
        return " + ".join(terms), mask[1:-1] if len(conditions) == 1 else mask

    def stage(self, p: Printer, op: tile.StageOp) -> None:
        """Nothing: see the loads. Raises CompileError where evaluating later could read something else."""
        for inner in op.body.walk():
            if isinstance(inner, tile.LoadOp) and inner.buffer in self.written:
                raise CompileError("a stage of a buffer that the kernel writes is a copy, which Triton lacks")


def _eviction(op: tile.LoadOp | tile.StoreOp) -> list[str]:
    return [] if op.eviction is None else [f'eviction_policy="evict_{op.eviction.data}"']


def _nothing(p: Printer, op: tile.PrefetchOp) -> None:
    """A hint that Triton has no use for."""


def _term(at: str, stride: str, is_lanes: bool) -> list[str]:
    """The offset along one dimension; none where it is zero, but for lanes, which give the pointers their shape."""
    if not is_lanes and "0" in (at, stride):
        return []
    return [at if stride == "1" else f"{at} * {stride}"]


def _fill(op: tile.LoadOp) -> str:
    value = op.fill.value.data if isinstance(op.fill, (FloatAttr, IntegerAttr)) else 0
    return element_type(op.tile).literal(value)


def constant_index(value: SSAValue) -> int:
    """The value of an index constant. Raises CompileError for other indices."""
    owner = value.owner
    if isinstance(owner, arith.ConstantOp) and isinstance(owner.value, IntegerAttr):
        return owner.value.value.data
    raise CompileError("the dimension of memref.dim is a constant")


def _load_staged(p: Printer, op: tile.LoadOp, stage: tile.StageOp) -> None:
    """The stage's body at the place that a load addresses, whose tile must be the stage's own."""
    body = stage.body.block
    last = body.last_op
    assert isinstance(last, tile.YieldOp)
    (made,) = last.values
    shape, dims = shape_of(op.tile), tile.integers(op.dims)
    layout = stage.layout.data
    if made.type != op.tile.type or dims != _STAGE_DIMS.get(layout, ()):
        raise CompileError(
            f"a load of {op.tile.type} from a stage of {made.type} in layout {layout!r}: Triton computes staged tiles"
            " where they are loaded, one at a time",
            hints=["lower the kernel for a GPU (the `gpu` folders of tessera.scheduling.families)"],
        )
    indices = [p.operand(index) for index in op.indices]
    width = stage.staged.type.get_shape()[-1]
    if layout == "rows":
        row, column = indices
    elif layout == "panels":
        row, column = indices[1], _panel(indices[0], width, indices[2])
    else:
        row, column = _panel(indices[0], width, indices[2]), indices[1]
    for argument, text in zip(body.args, (row, column), strict=True):
        name = p.name(argument.name_hint or "i")
        p.line(f"{name} = {text}")
        p.define(argument, Text(name))
    p.run(body)
    p.bind(op.tile, p.text(made), inline=shape == ())


_STAGE_DIMS: Mapping[str, tuple[int, ...]] = {"rows": (0, 1), "panels": (1, 2), "row_panels": (2, 1)}
"""Layout -> the dims of a load that reads a tile as the stage's body made it."""


def _panel(number: str, width: int, within: str) -> str:
    return f"{number} * {width}" if within == "0" else f"{number} * {width} + {within}"
