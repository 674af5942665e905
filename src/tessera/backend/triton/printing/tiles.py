"""Operations on whole tiles: the matrix product, reductions, broadcasts, masks, selections, casts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from xdsl.dialects.builtin import VectorType
from xdsl.ir import Operation, SSAValue

from tessera.backend.triton.printing.arithmetic import convert, operands
from tessera.backend.triton.printing.printer import Handler, Printer, Text, element_type, shape_of
from tessera.errors import CompileError
from tessera.ir.tile import operations as tile

SMALLEST_DOT = 16
"""`tl.dot` takes no smaller extent along any of its three axes."""

MOST_IMPRECISE = 128
"""Products of 8-bit floats that may be summed as Hopper's matrix units sum them, in 14 bits, before fp32 takes over.

DeepSeek-AI, "DeepSeek-V3 Technical Report" (2024), section 3.3.2, measures the error and settles on 128. Triton by
itself would sum all of K so; 0 makes it multiply in fp16 instead.
"""

HELPERS: Mapping[str, str] = {
    "maximum_or_nan": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "minimum_or_nan": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "larger": "tl.maximum(a, b)",
    "smaller": "tl.minimum(a, b)",
    "product": "a * b",
}
"""What the combining functions that reductions name compute of `a` and `b`. (`tl.max` and `tl.min` lose NaNs.)"""

_COMBINING: Mapping[tuple[str, bool], str] = {
    ("max", True): "maximum_or_nan",
    ("min", True): "minimum_or_nan",
    ("max", False): "larger",
    ("min", False): "smaller",
    ("mul", True): "product",
    ("mul", False): "product",
}
"""(kind of a reduction, whether its elements are floats) -> its combining function."""

_SYMBOLS: Mapping[str, str] = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def along(text: str, axis: int, rank: int) -> str:
    """A vector of lanes as a tile of `rank` dimensions that varies along `axis`."""
    if rank == 1:
        return text
    return f"{text}[{', '.join(':' if dim == axis else 'None' for dim in range(rank))}]"


def _spread(text: str, shape: tuple[int, ...], axis: int) -> str:
    """A tile of extent 1 along all axes but one, spread over `shape`."""
    is_whole = all(extent == 1 or dim == axis for dim, extent in enumerate(shape))
    return text if is_whole else f"tl.broadcast_to({text}, {shape})"


def _mma(p: Printer, op: tile.MmaOp) -> None:
    if op.unsigned_a is not None:
        raise CompileError("products of unsigned bytes have no code for GPUs", hints=["compile the kernel for a CPU"])
    a, b = p.operand(op.a), p.operand(op.b)
    types = [element_type(value) for value in (op.a, op.b, op.acc)]
    accumulator = types[2]
    eight_bits = all(element.is_float and element.bits == 8 for element in types[:2])
    mixed = types[0] != types[1] and not eight_bits
    if mixed:
        a, b = (f"{text}.to(tl.{accumulator.triton})" for text in (a, b))
    shapes = shape_of(op.a), shape_of(op.b)
    if op.k.value.data == 1:
        wide = [
            text if element == accumulator or mixed else f"{text}.to(tl.{accumulator.triton})"
            for text, element in zip((a, b), types, strict=False)
        ]
        p.bind(op.result, f"{p.operand(op.acc)} + {wide[0]} * {wide[1]}", inline=False)
        return
    if not accumulator.is_float:
        raise CompileError(
            f"products of integers ({types[0].triton}) have no kernel for GPUs yet",
            hints=["compute them on the CPU: x.to('cpu')", "or multiply as floats: x.to('fp32')"],
        )
    if min(*shapes[0], *shapes[1]) < SMALLEST_DOT:
        raise CompileError(
            f"tl.dot multiplies floats, {SMALLEST_DOT} and more along each axis, not {shapes[0]} by {shapes[1]}",
            hints=["lower the kernel for a GPU (the `gpu` folders of tessera.scheduling.families)"],
        )
    options = [] if types[0].is_narrow and not mixed else [f'input_precision="{_precision(op)}"']
    if eight_bits:
        options.append(f"max_num_imprecise_acc={min(op.k.value.data, MOST_IMPRECISE)}")
    if accumulator.triton != "float32":
        options.append(f"out_dtype=tl.{accumulator.triton}")
    p.bind(op.result, f"tl.dot({', '.join([a, b, p.text(op.acc), *options])})")


def _precision(op: tile.MmaOp) -> str:
    return "tf32" if op.dtype.data == "tf32" else "ieee"


def _reduce(p: Printer, op: tile.ReduceOp) -> None:
    element, axis, text = element_type(op.result), op.axis.value.data, p.text(op.tile)
    shape_of(op.tile)
    if op.kind.data == "add":
        if element.kind == "bool":
            raise CompileError("a sum of i1 counts modulo 2; cast to an integer first")
        total = f"tl.sum({text}, axis={axis}, keep_dims=True)"
        p.bind(op.result, f"{total}.to(tl.{element.triton})" if element.bits < 32 else total)
        return
    helper = _COMBINING[op.kind.data, element.is_float]
    p.helpers.add(helper)
    reduced = f"tl.reduce({text}, {axis}, {helper}, keep_dims=True)"
    p.bind(op.result, f"{reduced}.to(tl.{element.triton})" if element.is_narrow else reduced)


def _split(p: Printer, op: tile.SplitOp) -> None:
    """The axis as two, the halves and what is in them; `tl.split` takes the last apart."""
    shape, axis = shape_of(op.tile), op.axis.value.data
    apart = (*shape[:axis], 2, shape[axis] // 2, *shape[axis + 1 :])
    order = (*(dim for dim in range(len(apart)) if dim != axis), axis)
    halves = [p.name(result.name_hint or name) for result, name in zip(op.results, ("lower", "upper"), strict=True)]
    p.line(f"{', '.join(halves)} = tl.split(tl.permute(tl.reshape({p.text(op.tile)}, {apart}), {order}))")
    for result, half in zip(op.results, halves, strict=True):
        p.define(result, Text(half))


def _element(p: Printer, op: tile.ElementOp) -> None:
    """Triton takes scalars out of tiles by reductions only."""
    text, element = p.text(op.tile), element_type(op.result)
    wide = f"{p.operand(op.tile)}.to(tl.int32)" if element.kind == "bool" else text
    total = f"tl.sum(tl.reshape({wide}, (1,)), axis=0)"
    p.bind(op.result, f"{total} != 0" if element.kind == "bool" else f"{total}.to(tl.{element.triton})")


def _transpose(p: Printer, op: tile.TransposeOp) -> None:
    shape_of(op.tile)
    p.bind(op.result, f"tl.trans({p.text(op.tile)})")


def _broadcast(p: Printer, op: tile.BroadcastOp) -> None:
    shape = shape_of(op.result)
    text, element = p.text(op.value), element_type(op.result)
    if not isinstance(op.value.type, VectorType):
        p.bind(op.result, f"tl.full({shape}, {text}, tl.{element.triton})")
    elif tuple(op.value.type.get_shape()) == shape:
        p.define(op.result, p.get(op.value))
    else:
        p.bind(op.result, f"tl.broadcast_to({text}, {shape})")


def _mask(p: Printer, op: tile.MaskOp) -> None:
    shape, axis = shape_of(op.result), op.axis.value.data
    lanes = along(p.lanes(op.position, shape[axis]), axis, len(shape))
    p.bind(op.result, _spread(f"{lanes} < {p.operand(op.limit)}", shape, axis))


def _iota(p: Printer, op: tile.IotaOp) -> None:
    shape, axis = shape_of(op.result), op.axis.value.data
    lanes = along(p.lanes(op.offset, shape[axis]), axis, len(shape))
    p.bind(op.result, _spread(f"{lanes}.to(tl.int64)", shape, axis))


def _compare(p: Printer, op: tile.CompareOp) -> None:
    a, b = operands(p, op, calls=False)
    p.bind(op.result, f"{a} {_SYMBOLS[op.predicate.data]} {b}")


def _select(p: Printer, op: tile.SelectOp) -> None:
    takes_literals = element_type(op.result).takes_literals
    branches = [_branch(p, value, takes_literals) for value in (op.a, op.b)]
    if all(p.get(value).literal is not None for value in (op.a, op.b)):
        branches[0] = p.text(op.a)
    p.bind(op.result, f"tl.where({p.text(op.condition)}, {', '.join(branches)})")


def _branch(p: Printer, value: SSAValue, takes_literals: bool) -> str:
    text = p.get(value)
    return text.literal if takes_literals and text.literal is not None else text.text


def _cast(p: Printer, op: tile.CastOp) -> None:
    convert(p, op.value, op.result)


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
