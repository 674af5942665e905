"""Interprets Tile IR on torch tensors: the oracle of every backend.

Tiles and scalars are tensors of the element type, `index` values are Python integers, memrefs are tensors of any
strides. Whatever a kernel must not rely on is made to show: what is undefined reads as poison (NaN), the boxes of a
`parallel` are cut and ordered at random, and a broken promise (`in_bounds`, a static stride, `outputs`, a stage's
`maximum`) is an error.

A kernel is translated first: each operation becomes a function of the frame, which has the values so far by place.
Loops run these again and again, and look at no attribute or type of an operation twice.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, TypeAlias, cast

import torch
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, NoneAttr, StridedLayoutAttr, VectorType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tessera.errors import IRError
from tessera.ir.attributes import shape_text
from tessera.ir.interpreter.arithmetic import ARITHMETIC, arithmetic
from tessera.ir.interpreter.memory import (
    TilePlace,
    TileRegion,
    assemble_stage,
    read_tile,
    torch_dtype,
    write_tile,
)
from tessera.ir.interpreter.tiles import TILES
from tessera.ir.tile import operations as tile
from tessera.ir.tile.access import vector
from tessera.ir.tile.divisors import divisors_of

Value: TypeAlias = "torch.Tensor | int"
Frame: TypeAlias = "list[Any]"
"""The `Value`s so far, by place: tensors of tiles, memrefs and scalars, integers of `index`."""
Step: TypeAlias = "Callable[[Frame], None]"
Translate: TypeAlias = "Callable[[Translation, Operation], Step]"


def run_kernel(
    module: ModuleOp,
    arguments: Sequence[torch.Tensor | int | float],
    *,
    name: str | None = None,
    partition: random.Random | None = None,
) -> None:
    """Runs a kernel of `module` on `arguments`, writing its output tensors in place.

    `arguments` has one tensor per memref, in element type and rank, and one number per scalar. `name` chooses the
    kernel where there are several. `partition` draws how each `parallel` is cut and in which order its boxes run.
    Raises `IRError` for unknown operations, arguments that do not fit, and broken promises.
    """
    kernel = _find_kernel(module, name)
    parameters = kernel.body.block.args
    if len(arguments) != len(parameters):
        raise IRError(f"kernel {kernel.sym_name.data} takes {len(parameters)} arguments, not {len(arguments)}")
    values = [_argument(parameter, value) for parameter, value in zip(parameters, arguments, strict=True)]
    if kernel.divisors is not None:
        for index, (buffer, divisors) in enumerate(zip(values, divisors_of(kernel), strict=True)):
            if divisors and isinstance(buffer, torch.Tensor) and buffer.numel():
                _check_divisors(index, buffer, divisors)
    translation = Translation(kernel, partition or random.Random(0))
    body = translation.body(kernel.body.block)
    body.run([None] * translation.size, values)


def _find_kernel(module: ModuleOp, name: str | None) -> tile.KernelOp:
    kernels = [op for op in module.walk() if isinstance(op, tile.KernelOp)]
    chosen = [kernel for kernel in kernels if name in (None, kernel.sym_name.data)]
    if len(chosen) != 1:
        names = [kernel.sym_name.data for kernel in kernels]
        raise IRError(f"the module has kernels {names}; {'none or several' if name is None else name!r} cannot be run")
    return chosen[0]


def _argument(parameter: BlockArgument, value: torch.Tensor | int | float) -> Value:
    kind: Attribute = parameter.type
    if isinstance(kind, MemRefType):
        if not isinstance(value, torch.Tensor):
            raise IRError(f"argument {parameter.index} should be a tensor for {kind}")
        _check_buffer(parameter.index, kind, value)
        return value
    if isinstance(value, torch.Tensor):
        raise IRError(f"argument {parameter.index} should be a number for {kind}")
    return int(value) if isinstance(kind, IndexType) else torch.tensor(value, dtype=torch_dtype(kind))


def _check_buffer(index: int, kind: MemRefType[Attribute], buffer: torch.Tensor) -> None:
    described = f"argument {index}, {buffer.dtype} of shape {tuple(buffer.shape)} and strides {buffer.stride()},"
    if buffer.dtype != torch_dtype(kind.element_type) or buffer.dim() != kind.get_num_dims():
        raise IRError(f"{described} does not fit {kind}")
    for promised, extent in zip(kind.get_shape(), buffer.shape, strict=True):
        if promised >= 0 and promised != extent:
            raise IRError(f"{described} does not have the extents {shape_text(kind.get_shape())} that {kind} promises")
    if isinstance(kind.layout, StridedLayoutAttr):
        for dim, stride in enumerate(kind.layout.strides.data):
            # The stride of a dimension of one element is never used.
            if not isinstance(stride, NoneAttr) and buffer.shape[dim] > 1 and buffer.stride(dim) != stride.data:
                raise IRError(f"{described} does not have the stride {stride.data} that {kind} promises")


def _check_divisors(index: int, buffer: torch.Tensor, divisors: Sequence[int]) -> None:
    """Raises IRError unless `divisors` divide a buffer's address, extents and strides."""
    # The stride of a dimension of one element is never used.
    strides = [stride if extent > 1 else 0 for extent, stride in zip(buffer.shape, buffer.stride(), strict=True)]
    words = (buffer.data_ptr(), *buffer.shape, *strides)
    for word, divisor in zip(words, divisors, strict=True):
        if word % divisor:
            raise IRError(
                f"argument {index} of shape {tuple(buffer.shape)} and strides {buffer.stride()} at address "
                f"{buffer.data_ptr():#x}: {word} is no multiple of {divisor}, as divisors promises"
            )


@dataclass(frozen=True, slots=True)
class TranslatedBlock:
    """A translated block: where its arguments go, its steps, and where the operands of its terminator are."""

    arguments: tuple[int, ...]
    steps: tuple[Step, ...]
    results: tuple[int, ...]

    def run(self, frame: Frame, arguments: Sequence[Value]) -> list[Value]:
        """Runs the block; gives back the operands of its terminator (nothing when it has none)."""
        for place, value in zip(self.arguments, arguments, strict=True):
            frame[place] = value
        for step in self.steps:
            step(frame)
        return [frame[place] for place in self.results]


class Translation:
    """One kernel on its way to steps: the place of each value, and the draw of every partition."""

    def __init__(self, kernel: tile.KernelOp, partition: random.Random) -> None:
        self.kernel = kernel
        self.partition = partition
        self.outputs = tile.integers(kernel.outputs)
        self._places: dict[SSAValue, int] = {}

    @property
    def size(self) -> int:
        """The number of places so far."""
        return len(self._places)

    def place(self, ssa: SSAValue) -> int:
        """Where a value is in the frame."""
        return self._places.setdefault(ssa, len(self._places))

    def places(self, values: Sequence[SSAValue]) -> tuple[int, ...]:
        """Where each of some values is."""
        return tuple(map(self.place, values))

    def body(self, block: Block) -> TranslatedBlock:
        """The steps of a block."""
        arguments = self.places(block.args)
        steps: list[Step] = []
        for op in block.ops:
            if isinstance(op, (tile.YieldOp, scf.YieldOp)):
                return TranslatedBlock(arguments, tuple(steps), self.places(op.operands))
            steps.append(self._step(op))
        return TranslatedBlock(arguments, tuple(steps), ())

    def _step(self, op: Operation) -> Step:
        if type(op) in ARITHMETIC:
            return self.call(arithmetic(op), op)
        if op.name in TILES:
            return self.call(TILES[op.name](op), op)
        translate = _TRANSLATIONS.get(op.name)
        return _refused(f"the interpreter does not know {op.name}") if translate is None else translate(self, op)

    def call(self, function: Callable[..., Any], op: Operation) -> Step:
        """The step that has `function` make the one result of an operation from its operands."""
        result, operands = self.place(op.results[0]), self.places(op.operands)
        if len(operands) == 1:
            return self._unary(function, operands[0], result)
        if len(operands) == 2:
            return self._binary(function, *operands, result)

        def step(frame: Frame) -> None:
            frame[result] = function(*[frame[operand] for operand in operands])

        return step

    def _unary(self, function: Callable[..., Any], operand: int, result: int) -> Step:
        def step(frame: Frame) -> None:
            frame[result] = function(frame[operand])

        return step

    def _binary(self, function: Callable[..., Any], a: int, b: int, result: int) -> Step:
        def step(frame: Frame) -> None:
            frame[result] = function(frame[a], frame[b])

        return step


def _parallel(translation: Translation, op: tile.ParallelOp) -> Step:
    body, partition = translation.body(op.body.block), translation.partition
    extents, steps = translation.places(op.extents), tile.integers(op.steps)

    def step(frame: Frame) -> None:
        pieces = [_cut(frame[extent], width, partition) for extent, width in zip(extents, steps, strict=True)]
        boxes = list(product(*pieces))
        partition.shuffle(boxes)
        for box in boxes:
            body.run(frame, [bound for piece in box for bound in piece])

    return step


def _cut(extent: int, step: int, draw: random.Random) -> list[tuple[int, int]]:
    """Cuts `0..extent` at random multiples of `step` into `(lower, upper)` pieces."""
    inner = [cut for cut in range(step, extent, step) if draw.random() < 0.5]
    cuts = [0, *inner, extent]
    return list(pairwise(cuts)) if extent > 0 else []


def _for(translation: Translation, op: tile.ForOp) -> Step:
    lower, upper, width = translation.place(op.lower), translation.place(op.upper), op.step.value.data
    initial, body = translation.places(op.initial), translation.body(op.body.block)
    results = translation.places(op.results)

    def step(frame: Frame) -> None:
        carried = [frame[place] for place in initial]
        for iv in range(frame[lower], frame[upper], width):
            carried = body.run(frame, [iv, *carried])
        for place, value in zip(results, carried, strict=True):
            frame[place] = value

    return step


def _if(translation: Translation, op: scf.IfOp) -> Step:
    condition, results = translation.place(op.cond), translation.places(op.results)
    nothing = TranslatedBlock((), (), ())
    then, otherwise = (
        translation.body(region.block) if region.blocks else nothing for region in (op.true_region, op.false_region)
    )

    def step(frame: Frame) -> None:
        values = (then if bool(frame[condition]) else otherwise).run(frame, ())
        for place, value in zip(results, values, strict=True):
            frame[place] = value

    return step


def _tile_place(op: tile.LoadOp | tile.StoreOp, kind: VectorType[Attribute]) -> TilePlace:
    dims = tile.integers(op.dims)
    steps = tile.integers(op.steps) if isinstance(op, tile.LoadOp) and op.steps is not None else (1,) * len(dims)
    return TilePlace(len(op.indices), dims, kind.get_shape(), steps)


def _window(
    op: tile.LoadOp | tile.StoreOp, place: TilePlace, buffer: torch.Tensor, indices: Sequence[int]
) -> TileRegion:
    """Where a tile lies that leaves the buffer, which must not have been promised not to happen."""
    window = TileRegion.of(buffer.shape, indices, place.dims, place.shape, place.steps)
    for promised, whole, dim in zip(tile.integers(op.in_bounds), window.whole, place.dims, strict=True):
        if promised and not whole and dim >= 0:
            raise IRError(
                f"{op.name} of a tile {place.shape} at {list(indices)} leaves the extents {tuple(buffer.shape)} along "
                f"dimension {dim}, although in_bounds promises that it does not"
            )
    return window


def _load(translation: Translation, op: tile.LoadOp) -> Step:
    source, at, result = translation.place(op.buffer), translation.places(op.indices), translation.place(op.tile)
    place, fill, poisoned = _tile_place(op, op.tile.type), op.fill, op.oob is not None

    def step(frame: Frame) -> None:
        buffer, indices = frame[source], [frame[index] for index in at]
        view = place.inside(buffer, indices)
        if view is None:
            frame[result] = read_tile(buffer, _window(op, place, buffer, indices), fill, poisoned)
        else:
            frame[result] = view.clone(memory_format=torch.contiguous_format)

    return step


def _store(translation: Translation, op: tile.StoreOp) -> Step:
    owner, target, at = op.buffer.owner, translation.place(op.buffer), translation.places(op.indices)
    if owner is translation.kernel.body.block and cast(BlockArgument, op.buffer).index not in translation.outputs:
        return _refused(f"store to argument {cast(BlockArgument, op.buffer).index}, which is not among the outputs")
    place, stored = _tile_place(op, vector(op.value)), translation.place(op.value)
    # All elements along what is no dimension of the buffer go to one place, where the last one stays.
    unwalked = [position for position, dim in enumerate(place.dims) if dim < 0 and place.shape[position] > 1]

    def step(frame: Frame) -> None:
        buffer, indices, value = frame[target], [frame[index] for index in at], frame[stored]
        view = place.inside(buffer, indices)
        if view is None:
            write_tile(buffer, _window(op, place, buffer, indices), value)
            return
        for position in unwalked:
            view, value = view.narrow(position, -1, 1), value.narrow(position, -1, 1)
        view.copy_(value)

    return step


def _refused(message: str) -> Step:
    def step(frame: Frame) -> None:
        raise IRError(message)

    return step


def _stage(translation: Translation, op: tile.StageOp) -> Step:
    places, maximum = translation.places(op.extents), tile.integers(op.maximum)
    body, result = translation.body(op.body.block), translation.place(op.staged)

    def step(frame: Frame) -> None:
        extents = [frame[place] for place in places]
        if any(extent > most for extent, most in zip(extents, maximum, strict=True)):
            raise IRError(f"stage of a sub-block {tuple(extents)} exceeds its maximum {maximum}")
        frame[result] = assemble_stage(
            op, extents, lambda row, column: cast(torch.Tensor, body.run(frame, (row, column))[0])
        )

    return step


def _split(translation: Translation, op: tile.SplitOp) -> Step:
    whole, axis = translation.place(op.tile), op.axis.value.data
    lower, upper = translation.places(op.results)

    def step(frame: Frame) -> None:
        frame[lower], frame[upper] = frame[whole].chunk(2, axis)

    return step


def _nothing(translation: Translation, op: Operation) -> Step:
    return lambda frame: None


# Each function knows the class of the operation whose name it stands under.
_TRANSLATIONS = cast(
    "Mapping[str, Translate]",
    {
        tile.ParallelOp.name: _parallel,
        tile.ForOp.name: _for,
        scf.IfOp.name: _if,
        tile.LoadOp.name: _load,
        tile.StoreOp.name: _store,
        tile.StageOp.name: _stage,
        tile.SplitOp.name: _split,
        tile.PrefetchOp.name: _nothing,
    },
)
