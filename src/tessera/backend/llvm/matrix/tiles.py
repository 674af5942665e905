"""Tiles of the matrix unit under Tile IR: which values live there, and how they get there and back.

Operands and sums of the products that ask for it (`matrix_unit`) stay there through loops and conditionals; whatever
else uses one of them reads it from scratch memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseIntOrFPElementsAttr, VectorType
from xdsl.ir import Attribute, Block, Operation, SSAValue

from tessera.backend.llvm.emission.emitter import zero
from tessera.backend.llvm.emission.generator import Generator
from tessera.backend.llvm.emission.values import GROUP_BYTES, MatrixTile, element_of, shape_of
from tessera.backend.llvm.matrix import amx
from tessera.backend.llvm.memory.access import bring_back, detour
from tessera.backend.llvm.memory.addressing import TileAddress, window
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile


def unit_values(block: Block) -> frozenset[SSAValue]:
    """The values of a kernel that live in the matrix unit: of its products, and whatever is merged with these."""
    products = [op for op in block.walk() if isinstance(op, tile.MmaOp) and op.matrix_unit is not None]
    if not products:
        return frozenset()
    merged: dict[SSAValue, list[SSAValue]] = {}
    for op in block.walk():
        for group in _merges(op):
            for value in group:
                merged.setdefault(value, []).extend(group)
    found: set[SSAValue] = set()
    waiting = [value for op in products for value in (op.a, op.b, op.acc, op.result)]
    while waiting:
        value = waiting.pop()
        if value not in found:
            found.add(value)
            waiting += merged.get(value, ())
    return frozenset(found)


def _merges(op: Operation) -> Iterator[tuple[SSAValue, ...]]:
    """The values that are one where control passes through an operation."""
    if isinstance(op, tile.ForOp):
        last = op.body.block.last_op
        assert last is not None
        yield from zip(op.initial, op.body.block.args[1:], last.operands, op.final, strict=True)
    elif isinstance(op, scf.IfOp) and op.results:
        ends = [region.block.last_op for region in op.regions]
        yield from zip(op.results, *[end.operands for end in ends if end is not None], strict=True)


def unit_shape(kind: Attribute) -> tuple[int, int]:
    """The rows of a tile, and the bytes of each; groups of columns lie side by side."""
    size = element_of(kind).size
    if isinstance(kind, VectorType) and kind.get_num_dims() == 3:
        rows, columns, group = kind.get_shape()
        return rows, columns * group * size
    rows, columns = shape_of(kind)
    return rows, columns * size


def multiply(generator: Generator, op: tile.MmaOp) -> MatrixTile:
    """A product of the matrix unit. Raises CompileError where the CPU has none for its dtypes."""
    emitter, target = generator.emitter, generator.emitter.target
    a, b, acc = (generator.value(operand) for operand in (op.a, op.b, op.acc))
    assert isinstance(a, MatrixTile)
    assert isinstance(b, MatrixTile)
    assert isinstance(acc, MatrixTile)
    if not (target.has_amx_bf16 if a.element.kind == "float" else target.has_amx_int8):
        raise CompileError(f"{target.arch} has no matrix unit for tiles of {a.element.name}")
    return amx.multiply_add(emitter, a, b, acc, op.unsigned_a is not None)


def constant(generator: Generator, op: arith.ConstantOp) -> MatrixTile | None:
    """A constant of zeros in the matrix unit; None where it is another one."""
    value, kind = op.value, op.result.type
    if not isinstance(value, DenseIntOrFPElementsAttr) or any(value.get_values()):
        return None
    return amx.zeros(generator.emitter, element_of(kind), *unit_shape(kind))


def read(generator: Generator, op: tile.LoadOp) -> MatrixTile:
    """A tile straight from memory; where it overhangs its buffer, by way of scratch memory."""
    emitter, element = generator.emitter, element_of(op.tile.type)
    rows, row_bytes = unit_shape(op.tile.type)
    at = _window(generator, op)
    whole = at.whole(emitter)
    if whole != "true":
        at = detour(generator, at, whole, fill=zero(element, 1), fetch=True)
    return amx.load(emitter, element, rows, row_bytes, at.first_pointer(emitter), at.rows.stride)


def write(generator: Generator, op: tile.StoreOp, value: MatrixTile) -> None:
    """A tile straight to memory; where it overhangs its buffer, by way of scratch memory."""
    emitter = generator.emitter
    at = _window(generator, op)
    whole = at.whole(emitter)
    if whole == "true":
        amx.store(emitter, value, at.first_pointer(emitter), at.rows.stride)
        return
    place = detour(generator, at, whole, fill=None, fetch=False)
    amx.store(emitter, value, place.first_pointer(emitter), place.rows.stride)
    emitter.branch(whole, list, lambda: bring_back(generator, at))


def _window(generator: Generator, op: tile.LoadOp | tile.StoreOp) -> TileAddress:
    """Where a tile lies, with groups of columns as one dimension. Raises CompileError where a row is not contiguous."""
    buffer, kind = generator.buffer(op.buffer), (op.tile if isinstance(op, tile.LoadOp) else op.value).type
    indices = [generator.index(index) for index in op.indices]
    dims, in_bounds = tile.integers(op.dims), tile.integers(op.in_bounds)
    shape, size = kind.get_shape() if isinstance(kind, VectorType) else (), buffer.element.size
    contiguous = buffer.strides[dims[-1]] == size
    if len(shape) == 3:
        contiguous &= shape[2] * size == GROUP_BYTES == buffer.strides[dims[1]] and all(in_bounds)
        dims, in_bounds = (dims[0], dims[2]), (1, 1)
    if not contiguous or min(dims) < 0:
        raise CompileError(f"the matrix unit takes no tile {kind} over dimensions {dims} of {op.buffer.type}")
    rows, row_bytes = unit_shape(kind)
    return window(generator.emitter, buffer, indices, dims, in_bounds, (rows, row_bytes // size))
