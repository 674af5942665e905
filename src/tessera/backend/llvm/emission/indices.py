"""`arith` on `index`: done while writing where values are known, else as far out as they allow."""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.ir import Operation

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.llvm.emission.values import IndexValue, constant_index

INTEGER_PREDICATES = ("eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge")
"""LLVM's names of the predicates of arith.cmpi, by number."""


def divide(emitter: FunctionEmitter, a: IndexValue, divisor: int) -> IndexValue:
    """a / divisor, towards zero."""
    if a.known is not None:
        quotient = abs(a.known) // divisor
        return constant_index(quotient if a.known >= 0 else -quotient)
    if divisor == 1:
        return a
    division = "udiv" if a.natural else "sdiv"
    return IndexValue(emitter.pure(f"{division} i64 {emitter.operand(a)}, {divisor}"), 0, a.natural)


def _index_quotient(emitter: FunctionEmitter, a: IndexValue, b: IndexValue) -> IndexValue:
    if b.known is not None and b.known > 0:
        return divide(emitter, a, b.known)
    # A division by zero traps, so it stays where it stands.
    return IndexValue(emitter.emit(f"sdiv i64 {emitter.operand(a)}, {emitter.operand(b)}"), 0, a.natural and b.natural)


def _index_floor(emitter: FunctionEmitter, a: IndexValue, b: IndexValue) -> IndexValue:
    if a.natural and b.natural:
        return _index_quotient(emitter, a, b)
    down = emitter.subtract(a, _index_modulus(emitter, a, b))
    return _index_quotient(emitter, down, b)


def _index_modulus(emitter: FunctionEmitter, a: IndexValue, b: IndexValue) -> IndexValue:
    """The remainder with the divisor's sign."""
    rest = _index_remainder(emitter, a, b)
    shifted = emitter.emit(f"add i64 {emitter.operand(rest)}, {emitter.operand(b)}")
    again = emitter.emit(f"srem i64 {shifted}, {emitter.operand(b)}")
    return IndexValue(again, 0, b.natural)


def _index_ceiling(emitter: FunctionEmitter, a: IndexValue, b: IndexValue) -> IndexValue:
    if a.natural and b.natural:
        return _index_quotient(emitter, emitter.add(a, emitter.subtract(b, constant_index(1))), b)
    return emitter.subtract(constant_index(0), _index_floor(emitter, emitter.subtract(constant_index(0), a), b))


def _index_remainder(emitter: FunctionEmitter, a: IndexValue, b: IndexValue) -> IndexValue:
    return emitter.subtract(a, emitter.multiply(_index_quotient(emitter, a, b), b))


INDEX_ARITHMETIC: dict[type[Operation], Callable[[FunctionEmitter, IndexValue, IndexValue], IndexValue]] = {
    arith.AddiOp: FunctionEmitter.add,
    arith.SubiOp: FunctionEmitter.subtract,
    arith.MuliOp: FunctionEmitter.multiply,
    arith.MinSIOp: FunctionEmitter.minimum,
    arith.MaxSIOp: FunctionEmitter.maximum,
    arith.DivSIOp: _index_quotient,
    arith.FloorDivSIOp: _index_floor,
    arith.CeilDivSIOp: _index_ceiling,
    arith.RemSIOp: _index_remainder,
}


def compare_indices(emitter: FunctionEmitter, a: IndexValue, b: IndexValue, predicate: int) -> str:
    if predicate in (0, 1):
        return emitter.pure(f"icmp {INTEGER_PREDICATES[predicate]} i64 {emitter.operand(a)}, {emitter.operand(b)}")
    if predicate in (2, 4):  # a < b, a > b
        return emitter.below(a, b) if predicate == 2 else emitter.below(b, a)
    if predicate in (3, 5):  # a <= b, a >= b
        return emitter.below(a, b.plus(1)) if predicate == 3 else emitter.below(b, a.plus(1))
    return emitter.pure(f"icmp {INTEGER_PREDICATES[predicate]} i64 {emitter.operand(a)}, {emitter.operand(b)}")
