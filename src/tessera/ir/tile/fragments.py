"""Functions of tiles as kernels, so that a few operations written by hand run on every backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects import arith, func
from xdsl.dialects.builtin import (
    DenseArrayBase,
    IndexType,
    IntegerAttr,
    MemRefType,
    ModuleOp,
    StringAttr,
    VectorType,
    i1,
    i64,
)
from xdsl.ir import Attribute, Block, Region, SSAValue

from tessera.errors import IRError
from tessera.ir.passes import Pass
from tessera.ir.tile import operations as tile


@dataclass(frozen=True)
class FunctionToKernelPass(Pass):
    """Makes a kernel of each function of tiles: it reads its arguments from buffers, and writes its results to more.

    Before: `func.func @f(%a: vector<16x16xbf16>) -> vector<16x16xf32> { ... func.return %d }`, after: a kernel `f` of
    `memref<16x16xbf16>` and `memref<16x16xf32>` that loads `%a`, computes `%d` in one program, and stores it.
    """

    name: ClassVar[str] = "function-to-kernel"

    def apply(self, module: ModuleOp) -> None:
        for op in list(module.walk()):
            if isinstance(op, func.FuncOp):
                _replace(op)


def _replace(function: func.FuncOp) -> None:
    blocks = list(function.body.blocks)
    last = blocks[0].last_op if len(blocks) == 1 else None
    if not isinstance(last, func.ReturnOp):
        raise IRError(f"function-to-kernel: @{function.sym_name.data} is no single block that returns tiles")
    arguments, results = list(blocks[0].args), list(last.arguments)
    kinds = [_tile_type(function, value) for value in (*arguments, *results)]
    body = Block(arg_types=[MemRefType(kind.element_type, kind.shape) for kind in kinds])
    for buffer, value in zip(body.args, (*arguments, *results), strict=True):
        buffer.name_hint = value.name_hint
    one, zero = _index(1), _index(0)
    work = Block(arg_types=[IndexType(), IndexType()])
    grid = tile.ParallelOp.create(
        operands=[one.result],
        attributes={"steps": DenseArrayBase.from_list(i64, [1]), "split": IntegerAttr(0, i64)},
        regions=[Region(work)],
    )
    body.add_ops([one, zero, grid])
    _fill(work, blocks[0], last, body.args, zero.result)
    kernel = tile.KernelOp.create(
        attributes={
            "sym_name": StringAttr(function.sym_name.data),
            "outputs": DenseArrayBase.from_list(i64, list(range(len(arguments), len(kinds)))),
        },
        regions=[Region(body)],
    )
    parent = function.parent
    assert parent is not None
    parent.insert_op_before(kernel, function)
    function.detach()
    function.erase()


def _fill(work: Block, written: Block, last: func.ReturnOp, buffers: Sequence[SSAValue], zero: SSAValue) -> None:
    """Loads, the function's own operations, stores."""
    for argument, buffer in zip(list(written.args), buffers, strict=False):
        kind = argument.type
        assert isinstance(kind, VectorType)
        rank = kind.get_num_dims()
        load = tile.LoadOp.create(operands=[buffer, *[zero] * rank], result_types=[kind], attributes=_access(rank))
        load.tile.name_hint = argument.name_hint
        argument.replace_all_uses_with(load.tile)
        work.add_op(load)
    results = list(last.arguments)
    for op in list(written.ops):
        op.detach()
        if op is not last:
            work.add_op(op)
    last.erase()
    for value, buffer in zip(results, buffers[len(buffers) - len(results) :], strict=True):
        assert isinstance(value.type, VectorType)
        rank = value.type.get_num_dims()
        work.add_op(tile.StoreOp.create(operands=[value, buffer, *[zero] * rank], attributes=_access(rank)))


def _access(rank: int) -> dict[str, Attribute]:
    """The whole of a buffer whose extents are the tile's."""
    return {
        "dims": DenseArrayBase.from_list(i64, list(range(rank))),
        "in_bounds": DenseArrayBase.from_list(i1, [1] * rank),
    }


def _tile_type(function: func.FuncOp, value: SSAValue) -> VectorType:
    if isinstance(value.type, VectorType):
        return value.type
    raise IRError(
        f"function-to-kernel: @{function.sym_name.data} takes or returns {value.type}",
        hints=["arguments and results are tiles: vector<16x16xf32>"],
    )


def _index(value: int) -> arith.ConstantOp:
    return arith.ConstantOp(IntegerAttr(value, IndexType()))
