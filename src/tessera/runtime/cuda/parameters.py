"""The parameters of a kernel as its machine code takes them: what a launch's numbers become, and where each lies.

Triton 3.6 appends two pointers to a kernel's own parameters, to scratch memory and to the memory of instrumented
kernels, and takes a tensor descriptor apart (`make_launcher` in its backends/nvidia/driver.py): into a tensor map,
extents and strides where the code copies by tensor maps; else into address, extents, strides, a flag, and extents and
strides once more. Kernels of CUDA's tiles take their own parameters alone.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import itemgetter, or_
from typing import Any, Final, NamedTuple, TypeAlias

from tessera.backend.contract import GpuKernelObject, GpuParameter, TensorMapFacts
from tessera.errors import ArgumentError
from tessera.runtime.cuda.structures import TENSOR_MAP_BYTES

Number: TypeAlias = int | float

MAP: Final = "map"
"""Kind of a field that holds a tensor map."""

_FORMATS: Final[Mapping[str, str]] = {
    "i1": "?",
    "i8": "b",
    "i16": "h",
    "i32": "i",
    "i64": "q",
    "u1": "?",
    "u8": "B",
    "u16": "H",
    "u32": "I",
    "u64": "Q",
    "fp16": "e",
    "bf16": "H",
    "fp32": "f",
    "f32": "f",
    "fp64": "d",
}
"""Triton's name of a type -> the format of `struct` for it; bf16 has none and is passed as its bits."""


@dataclass(frozen=True)
class ParameterField:
    """One parameter of the machine code: Triton's name of its type, its size, and its offset in the memory of all
    values, or, of a tensor map, in that of all maps.
    """

    kind: str
    offset: int
    size: int


@dataclass(frozen=True)
class MapSource:
    """How a tensor map is made: as the compiler wants it, of the launch's arguments from number `first` on: the
    address, `rank` extents, `rank` strides.
    """

    facts: TensorMapFacts
    first: int
    rank: int


class _Part(NamedTuple):
    """What one field holds: the argument of number `source` (none: zero), or a tensor map."""

    kind: str
    source: int | None
    map: MapSource | None = None


class ParameterLayout:
    """A kernel's parameters, in memory that `cuLaunchKernelEx` is given pointers into.

    `fields` are those of the machine code in order; `nbytes` holds all values, the maps lie apart, one after the other,
    each made as `maps` says. `count` is how many numbers a launch gives. Raises ArgumentError for a parameter of a type
    that no launch can pass.
    """

    def __init__(self, kernel: GpuKernelObject) -> None:
        self.entry = kernel.entry
        self.parameters = kernel.parameters
        self.count = sum(parameter.words for parameter in kernel.parameters)
        parts = _parts(kernel)
        appended = [] if kernel.launch.is_tile else ["*scratch", "*profile"]
        self.fields = _placed([*(part.kind for part in parts), *appended])
        values = [field for field in self.fields if field.kind != MAP]
        self.nbytes = values[-1].offset + values[-1].size if values else 0
        self._appended = bool(appended)
        self.maps = tuple(part.map for part in parts if part.map is not None)
        self._format = struct.Struct(_format(values))
        taken = [part.source for part in parts if part.map is None]
        self._order = None if taken == list(range(self.count)) else taken
        self._bits = [at for at, field in enumerate(values) if field.kind == "bf16"]
        promised: dict[int, list[int]] = {}
        for number, parameter in _numbered(kernel.parameters):
            if parameter.divisor > 1:
                promised.setdefault(parameter.divisor, []).append(number)
        # itemgetter gives a tuple for two numbers and more; divisors are powers of two.
        self._promised = [(divisor, itemgetter(*found, found[0])) for divisor, found in promised.items()]

    def pointers(self, values: int, maps: int) -> list[int]:
        """The address of each field, of the addresses of all values and of all maps."""
        return [field.offset + (maps if field.kind == MAP else values) for field in self.fields]

    def pack(self, memory: Any, at: int, arguments: Sequence[Number], scratch: int = 0) -> None:
        """Writes a launch's values into writable `memory` from offset `at` on, `scratch` for the scratch pointer.

        Raises ArgumentError for too many or too few arguments, for one that does not fit its type, and for one that
        the code relies on being a multiple of another number and is not.
        """
        try:
            for divisor, promised in self._promised:
                if reduce(or_, promised(arguments)) % divisor:
                    self._refuse_indivisible(arguments)
            values = arguments if self._order is None else self._ordered(self._order, arguments)
            if self._bits:
                values = self._with_bits(values)
            appended = (scratch, 0) if self._appended else ()
            self._format.pack_into(memory, at, *values, *appended)
        except (struct.error, IndexError, OverflowError) as error:
            raise self._refusal(arguments, str(error)) from error

    def _ordered(self, order: Sequence[int | None], arguments: Sequence[Number]) -> list[Number]:
        """The values of all fields but maps and scratch memory: parts of descriptors come twice."""
        if len(arguments) != self.count:
            raise IndexError(f"{len(arguments)} arguments")
        return [0 if number is None else arguments[number] for number in order]

    def _with_bits(self, values: Sequence[Number]) -> list[Number]:
        changed = list(values)
        for at in self._bits:
            changed[at] = bf16_bits(float(changed[at]))
        return changed

    def _refuse_indivisible(self, arguments: Sequence[Number]) -> None:
        for number, parameter in _numbered(self.parameters):
            value = arguments[number]
            if int(value) % parameter.divisor:
                raise ArgumentError(
                    f"kernel {self.entry}: {parameter.name} is {value}, and the kernel was compiled for multiples of "
                    f"{parameter.divisor}",
                    hints=["compile it from Tile IR whose `divisors` do not promise that"],
                )

    def _refusal(self, arguments: Sequence[Number], why: str) -> ArgumentError:
        if len(arguments) != self.count:
            return ArgumentError(f"kernel {self.entry} takes {self.count} numbers, not {len(arguments)}")
        for number, parameter in _numbered(self.parameters):
            if parameter.block is None and not _fits(arguments[number], parameter.kind):
                return ArgumentError(
                    f"kernel {self.entry}: {parameter.name} is {arguments[number]}, which no {parameter.kind} holds"
                )
        return ArgumentError(f"kernel {self.entry}: the arguments {tuple(arguments)} cannot be passed: {why}")


def _fits(value: Number, kind: str) -> bool:
    try:
        struct.pack(f"<{_format_of(kind)}", value)
    except (struct.error, OverflowError):
        return kind == "bf16"
    return True


def bf16_bits(value: float) -> int:
    """The bits of a number in bf16, rounded to the nearest (even among two), as torch rounds."""
    try:
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
    except OverflowError:  # past the largest number of fp32
        return 0x7F80 if value > 0 else 0xFF80
    if bits & 0x7FFFFFFF > 0x7F800000:
        return int(bits >> 16 | 0x40)  # NaN stays one, and quiet
    return int(bits + 0x7FFF + (bits >> 16 & 1) >> 16)


def _numbered(parameters: Sequence[GpuParameter]) -> list[tuple[int, GpuParameter]]:
    """Each parameter with the number of its (first) argument in a launch."""
    numbered, number = [], 0
    for parameter in parameters:
        numbered.append((number, parameter))
        number += parameter.words
    return numbered


def _parts(kernel: GpuKernelObject) -> list[_Part]:
    """The fields of the machine code, but for the two scratch pointers."""
    parts: list[_Part] = []
    facts = iter(kernel.launch.tensor_maps)
    for number, parameter in _numbered(kernel.parameters):
        block = parameter.block
        if block is None:
            parts.append(_Part(parameter.kind, number))
            continue
        rank = len(block)
        extents = range(number + 1, number + 1 + rank)
        strides = range(number + 1 + rank, number + 1 + 2 * rank)
        if kernel.launch.tensor_maps:
            parts.append(_Part(MAP, None, MapSource(next(facts), number, rank)))
        else:
            padding = _Part("i1", None)  # elements outside the extents read zero, not NaN
            parts += [_Part("*", number), *(_Part("i64", each) for each in (*extents, *strides)), padding]
        parts += [*(_Part("i32", each) for each in extents), *(_Part("i64", each) for each in strides)]
    return parts


def _placed(kinds: Sequence[str]) -> list[ParameterField]:
    """Values each at the next multiple of their size, which is every type's alignment; maps one after the other."""
    fields: list[ParameterField] = []
    at = maps = 0
    for kind in kinds:
        if kind == MAP:
            fields.append(ParameterField(kind, maps, TENSOR_MAP_BYTES))
            maps += TENSOR_MAP_BYTES
            continue
        size = struct.calcsize(f"<{_format_of(kind)}")
        at = -(-at // size) * size
        fields.append(ParameterField(kind, at, size))
        at += size
    return fields


def _format_of(kind: str) -> str:
    if kind.startswith("*"):
        return "Q"
    if kind not in _FORMATS:
        raise ArgumentError(f"a kernel parameter of type {kind} cannot be passed", hints=[f"known are {[*_FORMATS]}"])
    return _FORMATS[kind]


def _format(fields: Sequence[ParameterField]) -> str:
    """The format of `struct` that writes all values, with the gaps between them."""
    text, at = "<", 0
    for field in fields:
        text += (f"{field.offset - at}x" if field.offset > at else "") + _format_of(field.kind)
        at = field.offset + field.size
    return text
