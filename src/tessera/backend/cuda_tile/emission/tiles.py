"""Operations on whole tiles: the matrix product, reductions, broadcasts, masks, selections, casts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from xdsl.ir import Operation

from tessera.backend.cuda_tile.emission.arithmetic import PROPAGATE_NAN, convert
from tessera.backend.cuda_tile.emission.emitter import Handler, TileEmitter, element_of, shape_of
from tessera.backend.cuda_tile.program.operations import SIGNED, UNSIGNED, Predicate
from tessera.backend.cuda_tile.program.program import TileValue
from tessera.backend.cuda_tile.program.types import F32, I1, I8, I32, TF32, ElementType, TileType
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile


def _mma(e: TileEmitter, op: tile.MmaOp) -> None:
    a, b, acc = e.get(op.a), e.get(op.b), e.get(op.acc)
    if op.k.value.data == 1:
        wide = [e.spread(e.converted(value, acc.number), acc.tile.shape) for value in (a, b)]
        e.define(op.result, e.add(acc, e.arithmetic("mul", *wide)))
        return
    if not acc.number.is_float:
        e.define(op.result, _integer_mma(e, op, a, b, acc))
        return
    if a.number != b.number:
        a, b = (e.converted(value, acc.number) for value in (a, b))
    if op.dtype.data == "tf32" and a.number == F32:
        a, b = (e.converted(value, TF32) for value in (a, b))
    e.define(op.result, e.build.one("mmaf", [a, b, acc], acc.type))


def _integer_mma(e: TileEmitter, op: tile.MmaOp, a: TileValue, b: TileValue, acc: TileValue) -> TileValue:
    if (a.number, b.number, acc.number) != (I8, I8, I32):
        raise CompileError(f"CUDA Tile IR has no product of {a.number.name} and {b.number.name} in {acc.number.name}")
    sign = SIGNED if op.unsigned_a is None else UNSIGNED
    return e.build.one("mmai", [a, b, acc], acc.type, sign_a=sign, sign_b=SIGNED)


_NEUTRAL: Mapping[str, float] = {"add": 0.0, "mul": 1.0, "max": float("-inf"), "min": float("inf")}


def _identity(kind: str, element: ElementType) -> float:
    if element == I1:
        return float(kind in ("mul", "min"))
    if element.is_float or kind in ("add", "mul"):
        return _NEUTRAL[kind]
    top = 1 << element.bits - 1
    return -top if kind == "max" else top - 1


def _combined(e: TileEmitter, op: tile.ReduceOp, a: TileValue, b: TileValue) -> TileValue:
    kind, element = op.kind.data, a.number
    if element == I1:
        return e.build.one("ori" if kind in ("add", "max") else "andi", [a, b], a.type)
    if kind in ("add", "mul"):
        return e.arithmetic(kind, a, b)
    if element.is_float:
        flags = 0 if op.nan is not None else PROPAGATE_NAN
        return e.build.one(f"{kind}f", [a, b], a.type, flags=flags)
    return e.build.one(f"{kind}i", [a, b], a.type, sign=SIGNED)


def _reduce(e: TileEmitter, op: tile.ReduceOp) -> None:
    given, axis = e.get(op.tile), op.axis.value.data
    own = given.number
    if own == I1 and op.kind.data == "add":
        raise CompileError("a sum of i1 counts modulo 2; cast to an integer first")
    wide = e.converted(given, F32) if own.is_narrow else given
    scalar, shape = TileType(wide.number), wide.tile.shape
    with e.build.block([scalar, scalar]) as body:
        e.build.end("yield", [_combined(e, op, *body.arguments)])
    (reduced,) = e.build.many(
        "reduce",
        [(wide,)],
        [TileType(wide.number, (*shape[:axis], *shape[axis + 1 :]))],
        blocks=[body],
        dim=axis,
        identities=((_identity(op.kind.data, wide.number), wide.number),),
    )
    e.define(op.result, e.converted(e.reshape(reduced, shape_of(op.result.type)), own))


def _split(e: TileEmitter, op: tile.SplitOp) -> None:
    """The halves along an axis: tiles of a tile are numbered by how many of them lie before."""
    given, axis = e.get(op.tile), op.axis.value.data
    for half, result in enumerate(op.results):
        at = [e.constant(half if dim == axis else 0, TileType(I32)) for dim in range(len(given.tile.shape))]
        (made,) = e.build.many("extract", [(given, *at)], [e.type_of(result)])
        e.define(result, made)


def _element(e: TileEmitter, op: tile.ElementOp) -> None:
    e.define(op.result, e.reshape(e.get(op.tile), ()))


def _transpose(e: TileEmitter, op: tile.TransposeOp) -> None:
    e.define(op.result, e.permute(e.get(op.tile), (1, 0)))


def _broadcast(e: TileEmitter, op: tile.BroadcastOp) -> None:
    e.define(op.result, e.spread(e.get(op.value), shape_of(op.result.type)))


def _mask(e: TileEmitter, op: tile.MaskOp) -> None:
    shape, axis = shape_of(op.result.type), op.axis.value.data
    at = e.positions(e.get(op.position), shape[axis], axis, len(shape))
    inside = e.compared(Predicate.LT, at, e.spread(e.get(op.limit), at.tile.shape))
    e.define(op.result, e.spread(inside, shape))


def _iota(e: TileEmitter, op: tile.IotaOp) -> None:
    shape, axis = shape_of(op.result.type), op.axis.value.data
    at = e.positions(e.get(op.offset), shape[axis], axis, len(shape))
    e.define(op.result, e.spread(e.converted(at, element_of(op.result.type)), shape))


_PREDICATES: Mapping[str, Predicate] = {each.name.lower(): each for each in Predicate}


def _compare(e: TileEmitter, op: tile.CompareOp) -> None:
    e.define(op.result, e.compared(_PREDICATES[op.predicate.data], e.get(op.a), e.get(op.b)))


def _select(e: TileEmitter, op: tile.SelectOp) -> None:
    e.define(op.result, e.select(e.get(op.condition), e.get(op.a), e.get(op.b)))


def _cast(e: TileEmitter, op: tile.CastOp) -> None:
    convert(e, op.value, op.result)


TILES = cast(
    "Mapping[type[Operation], Handler]",
    {
        tile.MmaOp: _mma,
        tile.ReduceOp: _reduce,
        tile.SplitOp: _split,
        tile.ElementOp: _element,
        tile.TransposeOp: _transpose,
        tile.BroadcastOp: _broadcast,
        tile.MaskOp: _mask,
        tile.IotaOp: _iota,
        tile.CompareOp: _compare,
        tile.SelectOp: _select,
        tile.CastOp: _cast,
    },
)
"""What is written for each operation on tiles."""
