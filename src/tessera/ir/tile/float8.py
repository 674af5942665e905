"""8-bit floats in Tile IR as integers: the pass of backends whose machine, or whose compiler, does not convert them.

A tile of 8-bit floats becomes one of `i8` patterns, conversions become arithmetic on 32-bit patterns, and products are
formed of `f16`, which holds every 8-bit float. What comes out is to the bit what `tessera.tile.cast` means (`dtypes`
says how numbers round); the method is that of SoftFloat and of torch's headers (`backend/llvm/tiles/float8.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import (
    DenseIntOrFPElementsAttr,
    Float8E4M3FNType,
    Float8E5M2Type,
    FloatAttr,
    IntegerAttr,
    IntegerType,
    MemRefType,
    ModuleOp,
    StringAttr,
    VectorType,
    f16,
    f32,
    i1,
    i32,
)
from xdsl.ir import Attribute, Operation, SSAValue

from tessera.errors import CompileError
from tessera.ir.tile import operations as tile
from tessera.ir.tile.float8_formats import FP8_E4M3, FP8_E5M2, SINGLE_MANTISSA, Float8Format

_I8: Final = IntegerType(8)
_INFINITY: Final = 0xFF << SINGLE_MANTISSA


_FORMATS: Final[Mapping[type[Attribute], Float8Format]] = {Float8E4M3FNType: FP8_E4M3, Float8E5M2Type: FP8_E5M2}
_TORCH: Final = {FP8_E4M3: torch.float8_e4m3fn, FP8_E5M2: torch.float8_e5m2}


def _format(kind: Attribute) -> Float8Format | None:
    """The format of a type's elements, None for those that are no 8-bit floats."""
    element = kind.element_type if isinstance(kind, (VectorType, MemRefType)) else kind
    return _FORMATS.get(type(element))


def _computes(op: Operation) -> bool:
    """Whether an operation looks at elements; all others only pass them on."""
    computes = op.name.startswith(("arith.", "math.")) or isinstance(op, (tile.ReduceOp, tile.CompareOp))
    return computes and not isinstance(op, arith.BitcastOp)


def _values(module: ModuleOp) -> Iterator[SSAValue]:
    for op in module.walk():
        yield from op.results
        for region in op.regions:
            for block in region.blocks:
                yield from block.args


def float8_to_integers(module: ModuleOp, native: bool, rounds: bool = True) -> ModuleOp:
    """The module without 8-bit floats, or, where the compiler is `native` to them, without roundings to `f8E5M2`:
    GPUs' instructions saturate where infinity is meant. Unless it `rounds` to `f8E4M3FN` as is meant, there are none of
    those either. A module that has none to begin with is given back itself.

    Raises CompileError for arithmetic on 8-bit floats, which kernels do in fp32.
    """
    if all(_format(value.type) is None for value in _values(module)):
        return module
    module = module.clone()
    for op in list(module.walk()):
        involved = any(_format(value.type) is not None for value in (*op.operands, *op.results))
        if not involved:
            continue
        if isinstance(op, tile.CastOp):
            _replace_cast(op, native, rounds)
        elif isinstance(op, tile.MmaOp):
            if not native:
                _widen_operands(op)
        elif isinstance(op, arith.ConstantOp):
            _replace_constant(op)
        elif _computes(op):
            raise CompileError(
                f"{op.name} on 8-bit floats: this backend computes in fp32", hints=["cast to f32 and back around it"]
            )
    if not native:
        _retype(module)
    return module


def _retype(module: ModuleOp) -> None:
    """Memory and tiles that were only passed on hold patterns; what they read outside buffers is one, too."""
    for op in module.walk():
        if isinstance(op, tile.LoadOp) and isinstance(op.fill, FloatAttr):
            form = _format(op.tile.type)
            if form is not None:
                op.fill = IntegerAttr(_pattern(op.fill.value.data, form), _I8)
    for value in _values(module):
        kind = value.type
        if _format(kind) is None:
            continue
        if isinstance(kind, MemRefType):
            value._type = MemRefType(_I8, kind.shape, kind.layout, kind.memory_space)
        else:
            value._type = VectorType(_I8, kind.shape) if isinstance(kind, VectorType) else _I8
    for op in list(module.walk()):
        if isinstance(op, arith.BitcastOp) and op.input.type == op.result.type:
            _replace(op, op.input)


def _pattern(number: float, form: Float8Format) -> int:
    """The signed pattern of a number."""
    return int(torch.tensor([number], dtype=torch.float64, device="cpu").to(_TORCH[form]).view(torch.int8).item())


class _Writer:
    """Puts arithmetic on tiles of one shape before an operation. Whole numbers stand for `i32` tiles of them."""

    def __init__(self, before: Operation, shape: Sequence[int]) -> None:
        self.before, self.shape = before, list(shape)

    def put(self, op: Operation) -> SSAValue:
        """The result of an operation, which is written."""
        block = self.before.parent
        assert block is not None
        block.insert_op_before(op, self.before)
        return op.results[0]

    def tile(self, element: Attribute) -> VectorType:
        """The type of a tile of `element`."""
        return VectorType(element, self.shape)

    def constant(self, number: int) -> SSAValue:
        """A tile of one `i32` number, of which the low 32 bits count."""
        signed = (number + (1 << 31)) % (1 << 32) - (1 << 31)
        return self.put(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(VectorType(i32, self.shape), [signed])))

    def on(self, make: Callable[..., Operation], a: SSAValue, b: SSAValue | int) -> SSAValue:
        """An operation of two `i32` tiles."""
        return self.put(make(a, self.constant(b) if isinstance(b, int) else b))

    def cast(self, value: SSAValue, element: Attribute) -> SSAValue:
        """`tessera.tile.cast`, where it changes something."""
        if value.type == self.tile(element):
            return value
        return self.put(tile.CastOp.create(operands=[value], result_types=[self.tile(element)]))

    def bits(self, value: SSAValue, element: Attribute) -> SSAValue:
        """The same bits as another element type."""
        return self.put(arith.BitcastOp(value, self.tile(element)))

    def choose(self, predicate: str, a: SSAValue, b: int, yes: SSAValue, no: SSAValue) -> SSAValue:
        """`yes` where `a predicate b`, else `no`."""
        holds = self.put(
            tile.CompareOp.create(
                operands=[a, self.constant(b)],
                result_types=[self.tile(i1)],
                attributes={"predicate": StringAttr(predicate)},
            )
        )
        return self.put(tile.SelectOp.create(operands=[holds, yes, no], result_types=[yes.type]))


def _replace_cast(op: tile.CastOp, native: bool, rounds: bool) -> None:
    source, target = _format(op.value.type), _format(op.result.type)
    if source is target:
        _replace(op, op.value)
        return
    writer = _Writer(op, op.result.type.get_shape())
    if native and (target is None or (rounds and target is _FORMATS[Float8E4M3FNType])):
        return
    number = op.value
    if source is not None:
        number = writer.cast(number, f32) if native else _widened(writer, writer.bits(number, _I8), source)
    if target is None:
        result = writer.cast(number, op.result.type.element_type)
    else:
        # As torch does, through fp32, wherever the number comes from.
        pattern = writer.cast(_rounded(writer, writer.cast(number, f32), target), _I8)
        result = writer.bits(pattern, op.result.type.element_type)
    _replace(op, result)


def _widen_operands(op: tile.MmaOp) -> None:
    for index, operand in enumerate((op.a, op.b)):
        form = _format(operand.type)
        if form is not None and isinstance(operand.type, VectorType):
            writer = _Writer(op, operand.type.get_shape())
            op.operands[index] = writer.cast(_widened(writer, writer.bits(operand, _I8), form), f16)


def _replace_constant(op: arith.ConstantOp) -> None:
    """Patterns are constants that every backend writes."""
    form, kind = _format(op.result.type), op.result.type
    if form is None or not isinstance(op.value, DenseIntOrFPElementsAttr) or not isinstance(kind, VectorType):
        raise CompileError(f"{op.value} is no tile of 8-bit floats")
    patterns = [_pattern(float(number), form) for number in op.value.get_values()]
    writer = _Writer(op, kind.get_shape())
    made = writer.put(arith.ConstantOp(DenseIntOrFPElementsAttr.from_list(VectorType(_I8, writer.shape), patterns)))
    _replace(op, writer.bits(made, kind.element_type))


def _replace(op: Operation, result: SSAValue) -> None:
    result.name_hint = op.results[0].name_hint or result.name_hint
    op.results[0].replace_all_uses_with(result)
    op.detach()
    op.erase()


def _widened(writer: _Writer, pattern: SSAValue, form: Float8Format) -> SSAValue:
    """A tile of patterns as `f32`, exactly. Numbers below the smallest normal one come of a subtraction, never of a
    number that is below fp32's: the machine may take those as zero.
    """
    word = writer.cast(pattern, i32)
    code = writer.on(arith.AndIOp, word, 0x7F)
    shifted = writer.on(arith.ShLIOp, code, form.dropped)
    normal = writer.on(arith.AddiOp, shifted, form.offset)
    one = writer.constant(form.smallest_normal)
    above = writer.bits(writer.on(arith.AddiOp, shifted, form.smallest_normal), f32)
    small = writer.bits(writer.put(arith.SubfOp(above, writer.bits(one, f32))), i32)
    magnitude = writer.choose("lt", code, 1 << form.mantissa, small, normal)
    beyond = writer.on(arith.OrIOp, shifted, _INFINITY)
    magnitude = writer.choose("ge", code, form.special, beyond, magnitude)
    sign = writer.on(arith.ShLIOp, writer.on(arith.AndIOp, word, 0x80), 24)
    return writer.bits(writer.on(arith.OrIOp, magnitude, sign), f32)


def _rounded(writer: _Writer, number: SSAValue, form: Float8Format) -> SSAValue:
    """A tile of `f32` rounded to nearest, ties to even, as `i32` patterns; NaN is 0x7F with its sign."""
    bits = writer.bits(number, i32)
    magnitude = writer.on(arith.AndIOp, bits, 0x7FFF_FFFF)
    clamped = writer.choose("lt", magnitude, form.saturates, magnitude, writer.constant(form.saturates))
    odd = writer.on(arith.AndIOp, writer.on(arith.ShRSIOp, clamped, form.dropped), 1)
    up = writer.on(arith.AddiOp, clamped, form.rebias)
    normal = writer.on(arith.ShRSIOp, writer.on(arith.AddiOp, up, odd), form.dropped)
    # The unit in the last place of this power of two is the smallest number of the format.
    added = arith.AddfOp(writer.bits(clamped, f32), writer.bits(writer.constant(form.adder), f32))
    small = writer.on(arith.SubiOp, writer.bits(writer.put(added), i32), form.adder)
    rounded = writer.choose("lt", clamped, form.smallest_normal, small, normal)
    rounded = writer.choose("gt", magnitude, _INFINITY, writer.constant(0x7F), rounded)
    sign = writer.on(arith.AndIOp, writer.on(arith.ShRSIOp, bits, 24), 0x80)
    return writer.on(arith.OrIOp, rounded, sign)
