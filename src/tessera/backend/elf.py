"""Relocatable objects of x86-64 linked in this process's memory, without LLVM (ELF-64: System V ABI, chapter 4).

Generated code has the large code model: every address stands there in 64 bits, so that the one relocation to apply is
R_X86_64_64, and sections may lie anywhere.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import struct
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from tessera.errors import CompileError

_SYMBOLS, _RELOCATIONS, _NO_BITS = 2, 4, 8
"""Types of sections: names, relocations with addends, zeros that take no room in the file."""
_WRITTEN, _IN_MEMORY = 1, 2
"""Flags of sections."""
_ABSOLUTE = 1
"""R_X86_64_64: the address of a symbol plus the addend, in 64 bits."""
_UNWINDING = 0x70000001
"""SHT_X86_64_UNWIND: no exception passes through this code."""
_MOST_BYTES = 1 << 28
_FIRST_RESERVED = 0xFF00
"""Numbers of sections from here on name none."""


def is_linked_here() -> bool:
    """Whether `LinkedObject` takes the objects that are made on this machine."""
    return platform.machine() in ("x86_64", "AMD64") and os.name == "posix"


class Section(NamedTuple):
    """One header of the table of sections."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int
    entry_size: int


class Symbol(NamedTuple):
    """A name of an object, the section that it lies in and where there; section 0: it lies elsewhere."""

    name: str
    section: int
    value: int


class LinkedObject:
    """Machine code in memory. Addresses stay valid as long as this object lives."""

    __slots__ = ("_memory", "_symbols")

    def __init__(self, code: bytes) -> None:
        """Raises CompileError for what is no such object, and where it asks for a name that this process lacks."""
        try:
            sections = list(_sections(code))
            symbols = _symbols(code, sections)
            outside = {
                symbol.name: _address_of(symbol.name) for symbol in symbols if symbol.name and not symbol.section
            }
            absent = [name for name, address in outside.items() if not address]
            if absent:
                raise CompileError(f"code calls {', '.join(absent)}, which this process does not have")
            places, self._memory = _laid_out(code, sections)
            found = [
                outside.get(symbol.name, 0) if not symbol.section else places.get(symbol.section, 0) + symbol.value
                for symbol in symbols
            ]
            for section in sections:
                if section.kind == _RELOCATIONS and section.info in places:
                    _relocate(code, section, places[section.info], sections[section.info].size, found)
        except (struct.error, IndexError, ValueError) as error:
            raise CompileError(f"damaged machine code: {error}") from error
        self._memory.protect()
        self._symbols = {
            symbol.name: address
            for symbol, address in zip(symbols, found, strict=True)
            if symbol.name and symbol.section
        }

    def address(self, name: str) -> int:
        """The address of a function or variable of the code. Raises KeyError where it has none of that name."""
        return self._symbols[name]


class _Memory:
    """Pages for code and constants, which are then read and run only, and after them pages for variables."""

    __slots__ = ("_anchor", "_pages", "_run_bytes", "address")

    def __init__(self, run_bytes: int, variable_bytes: int) -> None:
        self._run_bytes = _pages(run_bytes)
        size = max(self._run_bytes + _pages(variable_bytes), mmap.PAGESIZE)
        self._pages = mmap.mmap(
            -1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ | mmap.PROT_WRITE
        )
        self._anchor = ctypes.c_char.from_buffer(self._pages)
        self.address = ctypes.addressof(self._anchor)

    def protect(self) -> None:
        """Makes code of what was written. Raises CompileError where the system does not allow that."""
        access = mmap.PROT_READ | mmap.PROT_EXEC
        if self._run_bytes and _process().mprotect(
            ctypes.c_void_p(self.address), ctypes.c_size_t(self._run_bytes), ctypes.c_int(access)
        ):
            raise CompileError(f"this system runs no code made here: {os.strerror(ctypes.get_errno())}")


def _pages(size: int) -> int:
    return -(-size // mmap.PAGESIZE) * mmap.PAGESIZE


def _sections(code: bytes) -> Iterator[Section]:
    if code[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF-64 object")
    (at,), (size, count) = struct.unpack_from("<Q", code, 0x28), struct.unpack_from("<HH", code, 0x3A)
    for place in range(count):
        yield Section(*struct.unpack_from("<IIQQQQIIQQ", code, at + place * size))


def _symbols(code: bytes, sections: list[Section]) -> list[Symbol]:
    found: list[Symbol] = []
    for section in sections:
        if section.kind != _SYMBOLS:
            continue
        names = sections[section.link].offset
        table = code[section.offset : section.offset + section.size]
        for name, _, _, place, value, _ in struct.iter_unpack("<IBBHQQ", table):
            text = code[names + name : code.index(b"\0", names + name)].decode() if name else ""
            # Names of files have a reserved section, and no address.
            found.append(Symbol("" if place >= _FIRST_RESERVED else text, place, value))
    return found


def _laid_out(code: bytes, sections: list[Section]) -> tuple[dict[int, int], _Memory]:
    """The address of each section that code needs, and the memory where they lie."""
    offsets: dict[int, int] = {}
    ends = [0, 0]
    for number, section in enumerate(sections):
        if not section.flags & _IN_MEMORY or section.kind == _UNWINDING:
            continue
        group = section.flags & _WRITTEN
        alignment = max(section.alignment, 1)
        offsets[number] = -(-ends[group] // alignment) * alignment
        ends[group] = offsets[number] + section.size
    if sum(ends) > _MOST_BYTES:
        raise ValueError(f"sections of {sum(ends)} bytes")
    memory = _Memory(*ends)
    places: dict[int, int] = {}
    for number, offset in offsets.items():
        section = sections[number]
        places[number] = memory.address + offset + (_pages(ends[0]) if section.flags & _WRITTEN else 0)
        if section.kind != _NO_BITS:
            content = code[section.offset : section.offset + section.size]
            ctypes.memmove(places[number], content, len(content))
    return places, memory


def _relocate(code: bytes, section: Section, base: int, size: int, symbols: list[int]) -> None:
    for offset, info, addend in struct.iter_unpack("<QQq", code[section.offset : section.offset + section.size]):
        if info & 0xFFFF_FFFF != _ABSOLUTE or offset + 8 > size:
            raise ValueError(f"relocation {info & 0xFFFF_FFFF} at {offset}")
        ctypes.c_uint64.from_address(base + offset).value = symbols[info >> 32] + addend


@cache
def _process() -> Any:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _libraries() -> list[ctypes.CDLL]:
    """Where names are looked for: all that the process shares, and the mathematical library."""
    found = [_process()]
    with contextlib.suppress(OSError):  # a C library may have it inside
        found.append(ctypes.CDLL("libm.so.6"))
    return found


def _address_of(name: str) -> int:
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, name), ctypes.c_void_p).value or 0
        except AttributeError:
            continue
    return 0
