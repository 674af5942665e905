"""Reading cubins: ELF files whose section `.nv.info.NAME` says what parameters the kernel NAME takes.

Layout of ELF: "Tool Interface Standard, Executable and Linking Format" (64-bit form). Attributes of `.nv.info` as
`cuobjdump -elf` prints them: a byte of format, a byte of attribute, 16 bits of value or of the length of what follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

EM_CUDA = 190
_SYMTAB, _STT_FUNC = 2, 2
_EIFMT_SVAL = 4
_KPARAM_INFO, _CBANK_PARAM_SIZE = 0x17, 0x19


@dataclass(frozen=True)
class Section:
    name: str
    kind: int
    link: int
    data: bytes


@dataclass(frozen=True)
class Parameters:
    """Of one kernel: (offset, size) of each parameter in order, and the bytes of all of them."""

    places: list[tuple[int, int]]
    nbytes: int


@dataclass(frozen=True)
class Cubin:
    machine: int
    sections: list[Section]

    def functions(self) -> list[str]:
        """Names of the functions in the symbol table."""
        (table,) = [section for section in self.sections if section.kind == _SYMTAB]
        names = self.sections[table.link].data
        symbols = (struct.unpack_from("<IBBHQQ", table.data, at) for at in range(0, len(table.data), 24))
        return [_text(names, name) for name, info, *_ in symbols if info & 15 == _STT_FUNC]

    def parameters(self, kernel: str) -> Parameters:
        """What the kernel takes."""
        (info,) = [section.data for section in self.sections if section.name == f".nv.info.{kernel}"]
        places: dict[int, tuple[int, int]] = {}
        nbytes = at = 0
        while at < len(info):
            form, attribute, value = struct.unpack_from("<BBH", info, at)
            at += 4
            if form == _EIFMT_SVAL:
                if attribute == _KPARAM_INFO:
                    _, ordinal, offset, packed = struct.unpack_from("<IHHI", info, at)
                    places[ordinal] = (offset, packed >> 18)
                at += value
            elif attribute == _CBANK_PARAM_SIZE:
                nbytes = value
        return Parameters([places[ordinal] for ordinal in range(len(places))], nbytes)


def read(image: bytes) -> Cubin:
    """Raises AssertionError for what is no 64-bit little-endian ELF file."""
    assert image[:6] == b"\x7fELF\x02\x01"
    (machine,) = struct.unpack_from("<H", image, 18)
    (start,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + number * size) for number in range(count)]
    nobits = 8
    contents = [b"" if kind == nobits else image[at : at + length] for _, kind, _, _, at, length, *_ in headers]
    sections = [
        Section(_text(contents[names], header[0]), header[1], header[6], data)
        for header, data in zip(headers, contents, strict=True)
    ]
    return Cubin(machine, sections)


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
