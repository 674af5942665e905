"""One kernel of Tile IR as a program of CUDA Tile IR, and the parameters that it is launched with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import BlockArgument

from tessera.backend.cuda_tile.emission.arithmetic import ARITHMETIC
from tessera.backend.cuda_tile.emission.control import CONTROL
from tessera.backend.cuda_tile.emission.emitter import TileEmitter, element_of
from tessera.backend.cuda_tile.emission.memory import BufferAccess, BufferAccesses, pointer_of
from tessera.backend.cuda_tile.emission.tiles import TILES
from tessera.backend.cuda_tile.program.program import TileProgram, TileValue
from tessera.backend.cuda_tile.program.types import I32, I64, ElementType, TileType
from tessera.backend.gpu_objects import GpuParameter, Role
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.divisors import divisors_of
from tessera.ir.tile.facts import static_strides
from tessera.ir.tile.float8 import float8_to_integers
from tessera.ir.tile.operations import find_kernel
from tessera.target import Target
from tessera.target.float8 import rounds_float8

_MOST = {"size": 2**31 - 1, "stride": 2**36 - 1}
"""What an extent and a stride are at most: 32 bits are passed of one; no memory has 2^36 elements."""
_KINDS = {"bf16": "bf16", "f16": "fp16", "f32": "fp32", "f64": "fp64", "f8E4M3FN": "fp8e4nv", "f8E5M2": "fp8e5"}


@dataclass(frozen=True)
class Emitted:
    """A program, and the parameters of its entry in launch order."""

    program: TileProgram
    parameters: tuple[GpuParameter, ...]


def emit(module: ModuleOp, target: Target) -> Emitted:
    """The program of a module's kernel. Raises CompileError for what CUDA Tile IR cannot express."""
    # tileiras 13.4 refuses 8-bit floats where instructions do not round to them.
    kernel = find_kernel(float8_to_integers(module, native=rounds_float8(target)))
    if kernel.timed is not None:
        raise CompileError("CUDA Tile IR has no clock to time tiles by", hints=["time them by the backend 'triton'"])
    loose = [op for op in kernel.body.block.ops if isinstance(op, (tile.StoreOp, tile.ForOp))]
    grids = [op for op in kernel.body.block.ops if isinstance(op, tile.ParallelOp)]
    if len(grids) != 1 or loose:
        raise CompileError("a kernel for a GPU is one tessera.tile.parallel, which becomes the grid")
    parameters = _parameters(kernel)
    memory = BufferAccesses(kernel)
    kinds = [_type(kernel.body.block.args[each.argument], each) for each in parameters]
    name = kernel.sym_name.data.replace(".", "_")
    e = TileEmitter(name, kinds, {**TILES, **ARITHMETIC, **CONTROL, **memory.handlers()})
    given = dict(zip([(each.argument, each.role, each.dim) for each in parameters], e.build.parameters, strict=True))
    divisors = {(each.argument, each.role, each.dim): each.divisor for each in parameters}
    known = {key: _assumed(e, value, divisors[key], key[1]) for key, value in given.items()}
    for argument in kernel.body.block.args:
        if isinstance(argument.type, MemRefType):
            memory.open(e, argument, _buffer(e, argument, argument.type, known), kernel)
        else:
            e.define(argument, known[argument.index, "argument", 0])
    e.run(kernel.body.block)
    e.build.end("return")
    return Emitted(e.build.program, tuple(parameters))


def _parameters(kernel: tile.KernelOp) -> list[GpuParameter]:
    """Of a buffer its address, and the extents and strides that are not promised; scalars. Strides have 64 bits."""
    divisors, found = divisors_of(kernel), list[GpuParameter]()
    for number, argument in enumerate(kernel.body.block.args):
        label = f"{argument.name_hint or 'arg'}_{number}"
        kind = argument.type
        if not isinstance(kind, MemRefType):
            found.append(GpuParameter(label, _short(element_of(kind)), number))
            continue
        shape, strides = kind.get_shape(), static_strides(kind)
        address, *others = divisors[number]
        found.append(GpuParameter(f"{label}_ptr", f"*{_short(element_of(kind))}", number, divisor=address))
        for dim, extent in enumerate(shape):
            if extent < 0:
                found.append(GpuParameter(f"{label}_size_{dim}", "i32", number, "size", dim, divisor=others[dim]))
        for dim, stride in enumerate(strides):
            if stride is None:
                by = others[len(shape) + dim]
                found.append(GpuParameter(f"{label}_stride_{dim}", "i64", number, "stride", dim, divisor=by))
    return found


def _short(element: ElementType) -> str:
    """The name of an element type in signatures, which are Triton's."""
    return _KINDS.get(element.name, element.name)


def _type(argument: BlockArgument, parameter: GpuParameter) -> TileType:
    if parameter.kind.startswith("*"):
        return pointer_of(element_of(argument.type))
    if parameter.role == "size":
        return TileType(I32)
    return TileType(I64) if parameter.role == "stride" else TileType(element_of(argument.type))


def _assumed(e: TileEmitter, value: TileValue, divisor: int, role: Role) -> TileValue:
    """A parameter with what the kernel relies on of it. The copy engine is chosen only where sizes and strides are
    known to fit into its descriptors.
    """
    if role == "size":
        value = e.converted(value, I64)
    if role in _MOST:
        value = e.build.one("assume", [value], value.type, predicate=("bounded", _MOST[role]))
    if divisor > 1:
        value = e.build.one("assume", [value], value.type, predicate=("div_by", divisor))
    return value


def _buffer(
    e: TileEmitter, argument: BlockArgument, kind: MemRefType, known: Mapping[tuple[int, Role, int], TileValue]
) -> BufferAccess:
    number, extents = argument.index, [None if each < 0 else each for each in kind.get_shape()]
    strides = static_strides(kind)

    def all_of(role: Role, promised: Sequence[int | None]) -> tuple[TileValue, ...]:
        return tuple(known[number, role, dim] if each is None else e.index(each) for dim, each in enumerate(promised))

    return BufferAccess(
        element_of(kind),
        known[number, "argument", 0],
        tuple(extents),
        tuple(strides),
        all_of("size", extents),
        all_of("stride", strides),
    )
