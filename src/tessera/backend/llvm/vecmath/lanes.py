"""LLVM IR arithmetic on one vector type, one method per instruction: what the functions of `vecmath` are written in."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from tessera.system.caching import cached_property

FloatType = Literal["f32", "f64"]


class MathTarget(Protocol):
    """What the expansions ask of a CPU."""

    @property
    def has_avx512(self) -> bool:
        """Whether AVX-512 F instructions may be used."""


class InstructionWriter(Protocol):
    """Where the instructions go."""

    @property
    def target(self) -> MathTarget:
        """The CPU that the code is for."""

    def emit(self, text: str) -> str:
        """Appends an instruction that has a result and gives back its fresh SSA name."""

    def declare(self, signature: str) -> None:
        """Makes sure that the module has this declaration, `declare` left out, once."""


@dataclass(frozen=True)
class FloatFormat:
    """An IEEE format in LLVM's words.

    `shifter` is 1.5 * 2^mantissa_bits: a number added to it is rounded to an integer, which stands in the low bits.
    """

    scalar: str
    integer: str
    mantissa_bits: int
    bias: int
    shifter: float


FORMATS: dict[FloatType, FloatFormat] = {
    "f32": FloatFormat("float", "i32", 23, 127, float(3 << 22)),
    "f64": FloatFormat("double", "i64", 52, 1023, float(3 << 51)),
}


def literal(value: float, dtype: FloatType) -> str:
    """`value` as LLVM writes it, rounded to nearest in `dtype`."""
    if dtype == "f32":
        value = struct.unpack("f", struct.pack("f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


@dataclass(frozen=True)
class Lanes:
    """Instructions on `<lanes x dtype>`; one lane is the scalar type. Values and constants are both operand texts."""

    emitter: InstructionWriter
    lanes: int
    dtype: FloatType

    @property
    def format(self) -> FloatFormat:
        """The element format."""
        return FORMATS[self.dtype]

    def _vector(self, scalar: str) -> str:
        return scalar if self.lanes == 1 else f"<{self.lanes} x {scalar}>"

    @cached_property
    def type(self) -> str:
        """The LLVM type of values."""
        return self._vector(self.format.scalar)

    @cached_property
    def bits_type(self) -> str:
        """The LLVM type of their bit patterns."""
        return self._vector(self.format.integer)

    def _splat(self, scalar: str, text: str) -> str:
        return text if self.lanes == 1 else f"splat ({scalar} {text})"

    def constant(self, value: float) -> str:
        """`value` in every lane."""
        return self._splat(self.format.scalar, literal(value, self.dtype))

    def bits_constant(self, value: int) -> str:
        """The integer in every lane."""
        return self._splat(self.format.integer, str(value))

    def _binary(self, operation: str, a: str, b: str) -> str:
        return self.emitter.emit(f"{operation} {self.type} {a}, {b}")

    def add(self, a: str, b: str) -> str:
        """a + b"""
        return self._binary("fadd", a, b)

    def sub(self, a: str, b: str) -> str:
        """a - b"""
        return self._binary("fsub", a, b)

    def mul(self, a: str, b: str) -> str:
        """a * b"""
        return self._binary("fmul", a, b)

    def div(self, a: str, b: str) -> str:
        """a / b"""
        return self._binary("fdiv", a, b)

    def neg(self, a: str) -> str:
        """-a"""
        return self.emitter.emit(f"fneg {self.type} {a}")

    def intrinsic(self, name: str, *arguments: str) -> str:
        """A call of `llvm.NAME` of this vector type."""
        suffix = self.dtype if self.lanes == 1 else f"v{self.lanes}{self.dtype}"
        function = f"@llvm.{name}.{suffix}"
        self.emitter.declare(f"{self.type} {function}({', '.join([self.type] * len(arguments))})")
        return self.emitter.emit(f"call {self.type} {function}({', '.join(f'{self.type} {a}' for a in arguments)})")

    def fma(self, a: str, b: str, c: str) -> str:
        """a * b + c, rounded once"""
        return self.intrinsic("fma", a, b, c)

    def magnitude(self, a: str) -> str:
        """|a|"""
        return self.intrinsic("fabs", a)

    def with_sign(self, a: str, sign: str) -> str:
        """|a| with the sign of `sign`"""
        return self.intrinsic("copysign", a, sign)

    def compare(self, predicate: str, a: str, b: str) -> str:
        """`fcmp PREDICATE`"""
        return self.emitter.emit(f"fcmp {predicate} {self.type} {a}, {b}")

    def select(self, condition: str, a: str, b: str) -> str:
        """a where the condition holds, else b"""
        mask = self._vector("i1")
        return self.emitter.emit(f"select {mask} {condition}, {self.type} {a}, {self.type} {b}")

    def mask(self, operation: str, a: str, b: str) -> str:
        """`and`, `or` or `xor` of two conditions"""
        return self.emitter.emit(f"{operation} {self._vector('i1')} {a}, {b}")

    def at_most(self, a: str, bound: float) -> str:
        """The smaller of a and the bound; NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare("ogt", a, limit), limit, a)

    def at_least(self, a: str, bound: float) -> str:
        """The larger of a and the bound; NaN stays NaN."""
        limit = self.constant(bound)
        return self.select(self.compare("olt", a, limit), limit, a)

    def bits(self, a: str) -> str:
        """The bit pattern of a"""
        return self.emitter.emit(f"bitcast {self.type} {a} to {self.bits_type}")

    def from_bits(self, pattern: str) -> str:
        """The number with that bit pattern"""
        return self.emitter.emit(f"bitcast {self.bits_type} {pattern} to {self.type}")

    def on_bits(self, operation: str, a: str, value: int) -> str:
        """An integer instruction with a constant in every lane"""
        return self.emitter.emit(f"{operation} {self.bits_type} {a}, {self.bits_constant(value)}")

    def polynomial(self, coefficients: Sequence[float], x: str) -> str:
        """Horner's rule, coefficients in rising powers."""
        total = self.constant(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            total = self.fma(total, x, self.constant(coefficient))
        return total

    def converted(self, a: str, dtype: FloatType) -> tuple[Lanes, str]:
        """The same lanes in the other format, and `a` converted to it."""
        other = Lanes(self.emitter, self.lanes, dtype)
        operation = "fpext" if dtype == "f64" else "fptrunc"
        return other, self.emitter.emit(f"{operation} {self.type} {a} to {other.type}")

    def each_register(self, name: str, lanes: int, a: str, *constants: tuple[str, str]) -> str:
        """An instruction that exists for `lanes` lanes only, a power of two less than these, on all such parts of a.

        `constants` are the `(type, operand)` of what it takes behind the part.
        """
        kind = f"<{lanes} x {self.format.scalar}>"
        rest = "".join(f", {constant} {operand}" for constant, operand in constants)
        self.emitter.declare(f"{kind} @{name}({', '.join([kind, *(constant for constant, _ in constants)])})")
        parts = []
        for first in range(0, self.lanes, lanes):
            part = a if lanes == self.lanes else self._shuffled(self.type, a, "poison", first, lanes)
            parts.append(self.emitter.emit(f"call {kind} @{name}({kind} {part}{rest})"))
        while len(parts) > 1:
            lanes, kind = 2 * lanes, f"<{lanes} x {self.format.scalar}>"
            pairs = zip(parts[::2], parts[1::2], strict=True)
            parts = [self._shuffled(kind, low, high, 0, lanes) for low, high in pairs]
        return parts[0]

    def _shuffled(self, kind: str, a: str, b: str, first: int, count: int) -> str:
        picks = ", ".join(f"i32 {lane}" for lane in range(first, first + count))
        return self.emitter.emit(f"shufflevector {kind} {a}, {kind} {b}, <{count} x i32> <{picks}>")

    def each_lane(self, signature: str, *arguments: str) -> str:
        """A scalar function, `"double @erf"`, called on every lane: correct where speed does not matter."""
        scalar = self.format.scalar
        self.emitter.declare(f"{signature}({', '.join([scalar] * len(arguments))})")
        if self.lanes == 1:
            return self.emitter.emit(f"call {signature}({', '.join(f'{scalar} {a}' for a in arguments)})")
        total = "poison"
        for lane in range(self.lanes):
            picked = [self.emitter.emit(f"extractelement {self.type} {a}, i64 {lane}") for a in arguments]
            result = self.emitter.emit(f"call {signature}({', '.join(f'{scalar} {a}' for a in picked)})")
            total = self.emitter.emit(f"insertelement {self.type} {total}, {scalar} {result}, i64 {lane}")
        return total
