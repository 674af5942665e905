"""Interprets Tile IR on torch tensors: the oracle of every backend.

Tiles and scalars are tensors of the element type, `index` values are Python integers, memrefs are tensors of any
strides. Whatever a kernel must not rely on is made to show: what is undefined reads as poison (NaN), the boxes of a
`parallel` are cut and ordered at random, and a broken promise (`in_bounds`, a static stride, `outputs`, a stage's
`maximum`) is an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise, product
from typing import TypeAlias, cast

import torch
from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, MemRefType, ModuleOp, NoneAttr, StridedLayoutAttr
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tessera.errors import IRError
from tessera.ir.attributes import shape_text
from tessera.ir.interpreter.arithmetic import ARITHMETIC, apply_arithmetic, computed
from tessera.ir.interpreter.memory import TileRegion, allocate, assemble_stage, read_tile, torch_dtype, write_tile
from tessera.ir.tile import operations as tile
from tessera.ir.tile.divisors import divisors_of

Value: TypeAlias = "torch.Tensor | int"
Handler: TypeAlias = "Callable[[Interpreter, Operation], Sequence[Value]]"


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
    interpreter = Interpreter(kernel, partition or random.Random(0))
    values = [_argument(parameter, value) for parameter, value in zip(parameters, arguments, strict=True)]
    if kernel.divisors is not None:
        for index, (buffer, divisors) in enumerate(zip(values, divisors_of(kernel), strict=True)):
            if divisors and isinstance(buffer, torch.Tensor) and buffer.numel():
                _check_divisors(index, buffer, divisors)
    interpreter.run_block(kernel.body.block, values)


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


class Interpreter:
    """One run of one kernel: the values so far, and the draw of every partition."""

    def __init__(self, kernel: tile.KernelOp, partition: random.Random) -> None:
        self.kernel = kernel
        self.partition = partition
        self.outputs = tile.integers(kernel.outputs)
        self._values: dict[SSAValue, Value] = {}

    def value(self, ssa: SSAValue) -> Value:
        """What an SSA value stands for at this moment."""
        return self._values[ssa]

    def index(self, ssa: SSAValue) -> int:
        """The value of an `index`."""
        return cast(int, self._values[ssa])

    def tensor(self, ssa: SSAValue) -> torch.Tensor:
        """The value of a tile, a memref or a scalar that is no index."""
        return cast(torch.Tensor, self._values[ssa])

    def run_block(self, block: Block, arguments: Sequence[Value]) -> list[Value]:
        """Runs a block; gives back the operands of its terminator (nothing when it has none)."""
        self._values.update(zip(block.args, arguments, strict=True))
        for op in block.ops:
            if isinstance(op, (tile.YieldOp, scf.YieldOp)):
                return [self._values[operand] for operand in op.operands]
            self._values.update(zip(op.results, self._run(op), strict=True))
        return []

    def _run(self, op: Operation) -> Sequence[Value]:
        if type(op) in ARITHMETIC:
            return (apply_arithmetic(op, [self._values[operand] for operand in op.operands]),)
        handler = _HANDLERS.get(op.name)
        if handler is None:
            raise IRError(f"the interpreter does not know {op.name}")
        return handler(self, op)


def _parallel(interpreter: Interpreter, op: tile.ParallelOp) -> Sequence[Value]:
    pieces = []
    for extent, step in zip(op.extents, tile.integers(op.steps), strict=True):
        pieces.append(_cut(interpreter.index(extent), step, interpreter.partition))
    boxes = list(product(*pieces))
    interpreter.partition.shuffle(boxes)
    for box in boxes:
        interpreter.run_block(op.body.block, [bound for piece in box for bound in piece])
    return ()


def _cut(extent: int, step: int, draw: random.Random) -> list[tuple[int, int]]:
    """Cuts `0..extent` at random multiples of `step` into `(lower, upper)` pieces."""
    inner = [cut for cut in range(step, extent, step) if draw.random() < 0.5]
    cuts = [0, *inner, extent]
    return list(pairwise(cuts)) if extent > 0 else []


def _for(interpreter: Interpreter, op: tile.ForOp) -> Sequence[Value]:
    carried: Sequence[Value] = [interpreter.value(initial) for initial in op.initial]
    for iv in range(interpreter.index(op.lower), interpreter.index(op.upper), op.step.value.data):
        carried = interpreter.run_block(op.body.block, [iv, *carried])
    return carried


def _if(interpreter: Interpreter, op: scf.IfOp) -> Sequence[Value]:
    region = op.true_region if bool(interpreter.value(op.cond)) else op.false_region
    return interpreter.run_block(region.block, []) if region.blocks else ()


def _window(interpreter: Interpreter, op: tile.LoadOp | tile.StoreOp, shape: Sequence[int]) -> TileRegion:
    indices = [interpreter.index(index) for index in op.indices]
    dims = tile.integers(op.dims)
    steps = tile.integers(op.steps) if isinstance(op, tile.LoadOp) and op.steps is not None else (1,) * len(dims)
    window = TileRegion.of(interpreter.tensor(op.buffer).shape, indices, dims, shape, steps)
    for promised, whole, dim in zip(tile.integers(op.in_bounds), window.whole, tile.integers(op.dims), strict=True):
        if promised and not whole and dim >= 0:
            extents = tuple(interpreter.tensor(op.buffer).shape)
            raise IRError(
                f"{op.name} of a tile {tuple(shape)} at {indices} leaves the extents {extents} along dimension {dim}, "
                "although in_bounds promises that it does not"
            )
    return window


def _load(interpreter: Interpreter, op: tile.LoadOp) -> Sequence[Value]:
    window = _window(interpreter, op, op.tile.type.get_shape())
    return (read_tile(interpreter.tensor(op.buffer), window, op.fill, poisoned=op.oob is not None),)


def _store(interpreter: Interpreter, op: tile.StoreOp) -> Sequence[Value]:
    owner = op.buffer.owner
    if owner is interpreter.kernel.body.block and cast(BlockArgument, op.buffer).index not in interpreter.outputs:
        raise IRError(f"store to argument {cast(BlockArgument, op.buffer).index}, which is not among the outputs")
    value = interpreter.tensor(op.value)
    write_tile(interpreter.tensor(op.buffer), _window(interpreter, op, value.shape), value)
    return ()


def _stage(interpreter: Interpreter, op: tile.StageOp) -> Sequence[Value]:
    extents = [interpreter.index(extent) for extent in op.extents]
    maximum = tile.integers(op.maximum)
    if any(extent > most for extent, most in zip(extents, maximum, strict=True)):
        raise IRError(f"stage of a sub-block {tuple(extents)} exceeds its maximum {maximum}")

    def tile_at(row: int, column: int) -> torch.Tensor:
        return cast(torch.Tensor, interpreter.run_block(op.body.block, [row, column])[0])

    return (assemble_stage(op, extents, tile_at),)


def _alloc(interpreter: Interpreter, op: tile.AllocOp) -> Sequence[Value]:
    kind = op.memory.type
    shape, dtype = kind.get_shape(), torch_dtype(kind.element_type)
    if not isinstance(kind.layout, StridedLayoutAttr):
        return (allocate(shape, dtype),)
    strides = [stride.data for stride in kind.layout.strides.data if not isinstance(stride, NoneAttr)]
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return (allocate([size], dtype).as_strided(shape, strides),)


def _dim(interpreter: Interpreter, op: Operation) -> Sequence[Value]:
    buffer, dimension = op.operands
    return (interpreter.tensor(buffer).shape[interpreter.index(dimension)],)


def _mma(interpreter: Interpreter, op: tile.MmaOp) -> Sequence[Value]:
    a, b, acc = (interpreter.tensor(operand) for operand in (op.a, op.b, op.acc))
    if op.unsigned_a is not None:
        a = a.view(torch.uint8)
    if b.dim() == 3:  # groups of rows side by side
        b = b.mT.flatten(0, 1)
    return (acc + a.to(acc.dtype) @ b.to(acc.dtype),)


_REDUCTIONS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": lambda value, axis: value.sum(axis, keepdim=True, dtype=value.dtype),
    "mul": lambda value, axis: value.prod(axis, keepdim=True, dtype=value.dtype),
    "max": lambda value, axis: value.amax(axis, keepdim=True),
    "min": lambda value, axis: value.amin(axis, keepdim=True),
}


def _reduce(interpreter: Interpreter, op: tile.ReduceOp) -> Sequence[Value]:
    value = interpreter.tensor(op.tile)
    return (_REDUCTIONS[op.kind.data](computed(value), op.axis.value.data).to(value.dtype),)


def _element(interpreter: Interpreter, op: tile.ElementOp) -> Sequence[Value]:
    return (interpreter.tensor(op.tile).reshape(()),)


def _split(interpreter: Interpreter, op: tile.SplitOp) -> Sequence[Value]:
    return interpreter.tensor(op.tile).chunk(2, op.axis.value.data)


def _join(interpreter: Interpreter, op: tile.JoinOp) -> Sequence[Value]:
    return (torch.cat([interpreter.tensor(part) for part in op.parts], op.axis.value.data),)


def _broadcast(interpreter: Interpreter, op: tile.BroadcastOp) -> Sequence[Value]:
    return (torch.as_tensor(interpreter.value(op.value)).expand(op.result.type.get_shape()).clone(),)


def _lanes(op: tile.MaskOp | tile.IotaOp) -> torch.Tensor:
    """Each element's position along `axis`, in the result's shape."""
    shape, axis = op.result.type.get_shape(), op.axis.value.data
    along = [size if dim == axis else 1 for dim, size in enumerate(shape)]
    return torch.arange(shape[axis]).reshape(along).expand(shape)


def _mask(interpreter: Interpreter, op: tile.MaskOp) -> Sequence[Value]:
    return (interpreter.index(op.position) + _lanes(op) < interpreter.index(op.limit),)


def _iota(interpreter: Interpreter, op: tile.IotaOp) -> Sequence[Value]:
    return (interpreter.index(op.offset) + _lanes(op),)


_COMPARISONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def _compare(interpreter: Interpreter, op: tile.CompareOp) -> Sequence[Value]:
    a, b = (computed(interpreter.tensor(operand)) for operand in (op.a, op.b))
    return (_COMPARISONS[op.predicate.data](a, b),)


def _select(interpreter: Interpreter, op: tile.SelectOp) -> Sequence[Value]:
    condition, a, b = (interpreter.tensor(operand) for operand in (op.condition, op.a, op.b))
    return (torch.where(condition, a, b),)


def _cast(interpreter: Interpreter, op: tile.CastOp) -> Sequence[Value]:
    return (interpreter.tensor(op.value).to(torch_dtype(op.result.type.element_type)),)


def _nothing(interpreter: Interpreter, op: Operation) -> Sequence[Value]:
    return ()


# Each handler knows the class of the operation whose name it stands under.
_HANDLERS = cast(
    "Mapping[str, Handler]",
    {
        tile.ParallelOp.name: _parallel,
        tile.ForOp.name: _for,
        scf.IfOp.name: _if,
        tile.LoadOp.name: _load,
        tile.StoreOp.name: _store,
        tile.StageOp.name: _stage,
        tile.AllocOp.name: _alloc,
        "memref.dim": _dim,
        tile.MmaOp.name: _mma,
        tile.ReduceOp.name: _reduce,
        tile.SplitOp.name: _split,
        tile.JoinOp.name: _join,
        tile.ElementOp.name: _element,
        tile.BroadcastOp.name: _broadcast,
        tile.MaskOp.name: _mask,
        tile.IotaOp.name: _iota,
        tile.CompareOp.name: _compare,
        tile.SelectOp.name: _select,
        tile.CastOp.name: _cast,
        tile.PrefetchOp.name: _nothing,
    },
)
