"""Interprets programs of CUDA Tile IR on torch tensors, as "Tile IR", 8. Operations says what each does.

What a program must not rely on is made to show: reads outside of a view without padding are NaN; an access outside of
a buffer's memory is an error, and so are a tile that lies outside of a view and an assumption that does not hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from tessera.backend.cuda_tile.program.operations import SIGNED
from tessera.backend.cuda_tile.program.program import TileBlock, TileOperation, TileProgram, TileValue
from tessera.backend.cuda_tile.program.types import ElementType, PartitionView, TensorView, TileType

Tensor = torch.Tensor

DTYPES: Mapping[str, torch.dtype] = {
    "i1": torch.bool,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "tf32": torch.float32,
    "f64": torch.float64,
    "f8E4M3FN": torch.float8_e4m3fn,
    "f8E5M2": torch.float8_e5m2,
}


@dataclass(frozen=True)
class Addresses:
    """Addresses of elements: where they lie in all of a storage's memory."""

    memory: Tensor
    at: Tensor

    @staticmethod
    def of(tensor: Tensor) -> Addresses:
        """The address of a tensor's first element."""
        length = tensor.untyped_storage().nbytes() // tensor.element_size()
        whole = torch.as_strided(tensor.view(torch.int8) if tensor.dtype == torch.bool else tensor, (length,), (1,), 0)
        return Addresses(whole, torch.tensor(tensor.storage_offset()))


@dataclass(frozen=True)
class View:
    """A tensor in memory."""

    base: Addresses
    shape: tuple[int, ...]
    strides: tuple[int, ...]


Frame = dict[TileValue, Any]


def run(program: TileProgram, arguments: Sequence[Tensor | int | float], grid: int) -> None:
    """Runs all tile blocks of an entry, the last one first. Raises AssertionError for what a program must not do."""
    for number in reversed(range(grid)):
        frame: Frame = {}
        for parameter, given in zip(program.body.arguments, arguments, strict=True):
            kind = parameter.tile.element
            if isinstance(kind, ElementType):
                frame[parameter] = torch.tensor(given, dtype=DTYPES[kind.name])
            else:
                assert isinstance(given, Tensor)
                frame[parameter] = Addresses.of(given)
        _Block(frame, number, grid).run(program.body)


class _Block:
    """One tile block."""

    def __init__(self, frame: Frame, number: int, grid: int) -> None:
        self.frame, self.number, self.grid = frame, number, grid
        self.many = False
        """Whether operations on scalars compute many at once: those of a reduction's body."""

    def run(self, block: TileBlock) -> list[Any]:
        """What the block ends with."""
        for op in block.operations[:-1]:
            found = self._one(op)
            for result, value in zip(op.results, found, strict=True):
                self.frame[result] = value
        (last,) = block.operations[-1].operands
        assert isinstance(last, tuple)
        return [self.frame[value] for value in last]

    def _one(self, op: TileOperation) -> Sequence[Any]:
        own: Callable[[TileOperation, list[Any]], Sequence[Any]] | None = getattr(self, f"_{op.name}", None)
        given = [self._get(each) for each in op.operands]
        if own is not None:
            return own(op, given)
        result = op.results[0]
        values = [each for each in given if each is not None]
        made = _PURE[op.name](op, *values)
        kind = result.type
        assert isinstance(kind, TileType)
        assert self.many or tuple(made.shape) == kind.shape, (op.name, made.shape, kind)
        assert made.dtype == DTYPES[kind.number.name], (op.name, made.dtype, kind)
        return [made]

    def _get(self, operand: Any) -> Any:
        if operand is None:
            return None
        return [self.frame[each] for each in operand] if isinstance(operand, tuple) else self.frame[operand]

    # -- control ------------------------------------------------------------------------------------------------------

    def _get_tile_block_id(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return [torch.tensor(each, dtype=torch.int32) for each in (self.number, 0, 0)]

    def _get_num_tile_blocks(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return [torch.tensor(each, dtype=torch.int32) for each in (self.grid, 1, 1)]

    def _for(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        (lower, upper, step, *carried), (body,) = given[0], op.blocks
        for at in range(int(lower), int(upper), int(step)):
            self.frame.update(zip(body.arguments, [torch.tensor(at), *carried], strict=True))
            carried = self.run(body)
        return list(carried)

    def _if(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return self.run(op.blocks[0 if bool(given[0]) else 1])

    def _reduce(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        ((tile,),), dim = given, op.attributes["dim"]
        ((identity, element),) = op.attributes["identities"]
        assert element == op.results[0].number
        neutral = torch.full_like(tile.select(dim, 0), identity)
        a, b = op.blocks[0].arguments
        self.many = True
        while tile.shape[dim] > 1:
            self.frame[a], self.frame[b] = tile.chunk(2, dim)
            (tile,) = self.run(op.blocks[0])
        self.frame[a], self.frame[b] = tile.squeeze(dim), neutral
        found = self.run(op.blocks[0])
        self.many = False
        return found

    # -- memory -------------------------------------------------------------------------------------------------------

    def _assume(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        (value,), (name, number) = given, op.attributes["predicate"]
        if isinstance(value, Addresses):
            size = value.memory.element_size()
            where = value.memory.data_ptr() + int(value.at) * size
        else:
            where = int(value)
        assert (where % number == 0) if name == "div_by" else (0 <= where <= number), (name, number, where)
        return [value]

    def _reshape(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return [_moved(given[0], lambda at: at.reshape(op.results[0].tile.shape))]

    def _broadcast(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return [_moved(given[0], lambda at: at.broadcast_to(op.results[0].tile.shape))]

    def _offset(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        base, by = given
        return [Addresses(base.memory, base.at + by)]

    def _load_ptr_tko(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        address, mask, fill, token = given
        assert token is None
        assert op.flags == 4 * (mask is not None) + 8 * (fill is not None)
        inside = torch.ones_like(address.at, dtype=torch.bool) if mask is None else mask
        found = _poison(address.at.shape, address.memory.dtype) if fill is None else fill.clone()
        found[inside] = address.memory[_checked(address.at[inside], address.memory)]
        return [found, None]

    def _store_ptr_tko(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        address, value, mask, token = given
        assert token is None
        assert op.flags == 4 * (mask is not None)
        inside = torch.ones_like(address.at, dtype=torch.bool) if mask is None else mask
        address.memory[_checked(address.at[inside], address.memory)] = value[inside]
        return [None]

    def _make_tensor_view(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        base, sizes, steps = given
        kind = op.results[0].type
        assert isinstance(kind, TensorView)
        return [View(base, _filled(kind.shape, sizes), _filled(kind.strides, steps))]

    def _make_partition_view(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        return list(given)

    def _part(self, kind: PartitionView, view: View, index: list[Tensor]) -> tuple[Tensor, Tensor]:
        """Where the elements of a tile of a view lie, and which of them are inside."""
        at, inside = torch.tensor(int(view.base.at)), torch.tensor(True)
        for dim, (size, extent, stride) in enumerate(zip(kind.tile, view.shape, view.strides, strict=True)):
            shape = [size if axis == dim else 1 for axis in range(len(kind.tile))]
            assert 0 <= int(index[dim]) * size < extent, "a tile that lies outside of a view"
            lanes = (int(index[dim]) * size + torch.arange(size)).reshape(shape)
            at, inside = at + lanes * stride, inside & (lanes >= 0) & (lanes < extent)
        return at.broadcast_to(kind.tile), inside.broadcast_to(kind.tile)

    def _load_view_tko(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        view, index, token = given
        assert token is None
        kind = _viewed(op.operands[0])
        at, inside = self._part(kind, view, index)
        memory = view.base.memory
        fills = {"zero": 0.0, "neg_inf": -math.inf, "pos_inf": math.inf}
        found = _poison(kind.tile, memory.dtype)
        if kind.padding:
            found = torch.full(kind.tile, fills[kind.padding]).to(memory.dtype)
        found[inside] = memory[_checked(at[inside], memory)]
        return [found, None]

    def _store_view_tko(self, op: TileOperation, given: list[Any]) -> Sequence[Any]:
        value, view, index, token = given
        assert token is None
        at, inside = self._part(_viewed(op.operands[1]), view, index)
        view.base.memory[_checked(at[inside], view.base.memory)] = value[inside]
        return [None]


def _viewed(operand: Any) -> PartitionView:
    assert isinstance(operand, TileValue)
    assert isinstance(operand.type, PartitionView)
    return operand.type


def _moved(value: Any, move: Callable[[Tensor], Tensor]) -> Any:
    return Addresses(value.memory, move(value.at)) if isinstance(value, Addresses) else move(value)


def _filled(promised: Sequence[int | None], given: list[Tensor]) -> tuple[int, ...]:
    rest = iter(given)
    return tuple(int(next(rest)) if each is None else each for each in promised)


def _poison(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    return (
        torch.full(tuple(shape), math.nan).to(dtype) if dtype.is_floating_point else torch.full(shape, 113, dtype=dtype)
    )


def _checked(at: Tensor, memory: Tensor) -> Tensor:
    assert bool(((at >= 0) & (at < memory.numel())).all()), "an access outside of a buffer's memory"
    return at


# -- operations without memory ------------------------------------------------------------------------------------


def _dtype(op: TileOperation) -> torch.dtype:
    return DTYPES[op.results[0].number.name]


def _constant(op: TileOperation) -> Tensor:
    kind, data = op.results[0].tile, op.attributes["value"]
    if kind.number.name == "i1":
        return torch.full(kind.shape, bool(data[0]))
    one = torch.frombuffer(bytearray(data), dtype=torch.uint8).view(DTYPES[kind.number.name])
    return one.reshape([1] * len(kind.shape)).expand(kind.shape)


def _wide(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Arithmetic of narrow floats: computed in f32, rounded once."""
    return lambda op, *values: (
        compute(*(value.float() for value in values)).to(values[0].dtype)
        if values[0].dtype in (torch.float16, torch.bfloat16)
        else compute(*values)
    )


def _extreme(op: TileOperation, a: Tensor, b: Tensor) -> Tensor:
    largest = op.name == "maxf"
    if op.flags & 1:
        return torch.maximum(a, b) if largest else torch.minimum(a, b)
    return torch.fmax(a, b) if largest else torch.fmin(a, b)


def _compare(op: TileOperation, a: Tensor, b: Tensor) -> Tensor:
    if op.name == "cmpf":
        assert op.attributes["ordering"] == int(op.attributes["predicate"] != 1)
    elif a.dtype != torch.bool:
        assert op.attributes["sign"] == SIGNED
    return (torch.eq, torch.ne, torch.lt, torch.le, torch.gt, torch.ge)[op.attributes["predicate"]](a, b)


def _convert(op: TileOperation, value: Tensor) -> Tensor:
    if op.results[0].number.name == "tf32":
        bits = value.view(torch.int32)
        return ((bits + 0xFFF + (bits >> 13 & 1)) & ~0x1FFF).view(torch.float32)
    if op.name == "ftoi" and op.attributes["sign"] != SIGNED:
        assert _dtype(op) == torch.int8
        return value.to(torch.int64).to(torch.int8)
    if op.name in ("exti", "itof") and op.attributes["sign"] != SIGNED and value.dtype != torch.bool:
        value = value.view(torch.uint8)
    return value.to(_dtype(op))


def _mma(op: TileOperation, a: Tensor, b: Tensor, acc: Tensor) -> Tensor:
    assert a.dtype == b.dtype
    wide = torch.float64 if acc.dtype == torch.float64 else torch.float32
    return acc + (a.to(wide) @ b.to(wide)).to(acc.dtype)


def _extract(op: TileOperation, values: list[Tensor]) -> Tensor:
    tile, *index = values
    shape = op.results[0].tile.shape
    return tile[tuple(slice(int(at) * size, (int(at) + 1) * size) for at, size in zip(index, shape, strict=True))]


_PURE: Mapping[str, Callable[..., Tensor]] = {
    "absf": _wide(torch.abs),
    "absi": lambda op, a: a.abs(),
    "addf": _wide(torch.add),
    "addi": lambda op, a, b: a + b,
    "andi": lambda op, a, b: a & b,
    "bitcast": lambda op, a: a.view(_dtype(op)),
    "ceil": _wide(torch.ceil),
    "cmpf": _compare,
    "cmpi": _compare,
    "constant": _constant,
    "cos": _wide(torch.cos),
    "divf": _wide(torch.div),
    "divi": lambda op, a, b: torch.div(a, b, rounding_mode="trunc"),
    "exp": _wide(torch.exp),
    "exp2": _wide(torch.exp2),
    "exti": _convert,
    "extract": _extract,
    "floor": _wide(torch.floor),
    "fma": lambda op, a, b, c: (a.double() * b.double() + c.double()).to(a.dtype),
    "ftof": _convert,
    "ftoi": _convert,
    "iota": lambda op: torch.arange(op.results[0].tile.shape[0], dtype=_dtype(op)),
    "itof": _convert,
    "log": _wide(torch.log),
    "log2": _wide(torch.log2),
    "maxf": _extreme,
    "maxi": lambda op, a, b: torch.maximum(a, b),
    "minf": _extreme,
    "mini": lambda op, a, b: torch.minimum(a, b),
    "mmaf": _mma,
    "mmai": lambda op, a, b, acc: acc + (a.int() @ b.int()),
    "mulf": _wide(torch.mul),
    "muli": lambda op, a, b: a * b,
    "negf": _wide(torch.neg),
    "ori": lambda op, a, b: a | b,
    "permute": lambda op, a: a.permute(op.attributes["order"]),
    "pow": _wide(torch.pow),
    "remi": lambda op, a, b: torch.fmod(a, b),
    "rsqrt": _wide(torch.rsqrt),
    "select": lambda op, condition, a, b: torch.where(condition, a, b),
    "shli": lambda op, a, b: a << b,
    "shri": lambda op, a, b: a >> b,
    "sin": _wide(torch.sin),
    "sqrt": _wide(torch.sqrt),
    "subf": _wide(torch.sub),
    "subi": lambda op, a, b: a - b,
    "tan": _wide(torch.tan),
    "tanh": _wide(torch.tanh),
    "trunci": _convert,
    "xori": lambda op, a, b: a ^ b,
}
