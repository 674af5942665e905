"""What the machine code of a kernel says of itself: registers, stack, shared memory and threads.

Layout of ELF: "Tool Interface Standard, Executable and Linking Format" (64-bit form). Attributes of `.nv.info` as
`cuobjdump -elf` prints them: a byte of format, a byte of attribute, 16 bits of value or of the length of what follows.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from tessera.errors import CompileError

_SYMBOLS: Final = 2
_VALUES: Final = 4
"""The format of an attribute whose values follow."""
_REGISTERS, _FRAME, _THREADS = 0x2F, 0x11, 0x10


@dataclass(frozen=True)
class CubinUsage:
    """What one kernel takes: `registers` and `stack_bytes` a thread, `shared_bytes` and `threads` a block."""

    registers: int
    stack_bytes: int
    shared_bytes: int
    threads: int


@dataclass(frozen=True)
class _Section:
    name: str
    kind: int
    link: int
    size: int
    data: bytes


def usage(image: bytes, kernel: str) -> CubinUsage:
    """What `kernel` takes, by its machine code. Raises CompileError for what is none."""
    try:
        sections = _sections(image)
        names = {section.name: section for section in sections}
        symbol = _symbol(sections, kernel)
        shared = names.get(f".nv.shared.{kernel}")
        general, own = names[".nv.info"].data, names[f".nv.info.{kernel}"].data
        (threads, *others) = next(values for attribute, values in _attributes(own) if attribute == _THREADS)
        counts = {
            attribute: values[1]
            for attribute, values in _attributes(general)
            if attribute in (_REGISTERS, _FRAME) and values[0] == symbol
        }
    except (struct.error, KeyError, IndexError, ValueError, StopIteration) as error:
        raise CompileError(f"the machine code of {kernel} is not what tileiras is known to write: {error!r}") from error
    for other in others:
        threads *= other
    return CubinUsage(counts[_REGISTERS], counts.get(_FRAME, 0), shared.size if shared else 0, threads)


def _sections(image: bytes) -> list[_Section]:
    if image[:6] != b"\x7fELF\x02\x01":
        raise ValueError("no ELF file")
    (start,) = struct.unpack_from("<Q", image, 40)
    size, count, names = struct.unpack_from("<HHH", image, 58)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + number * size) for number in range(count)]
    at, length = headers[names][4:6]
    texts = image[at : at + length]
    return [
        _Section(_text(texts, header[0]), header[1], header[6], header[5], image[header[4] : header[4] + header[5]])
        for header in headers
    ]


def _symbol(sections: list[_Section], kernel: str) -> int:
    """The number of the kernel's symbol."""
    table = next(section for section in sections if section.kind == _SYMBOLS)
    names = sections[table.link].data
    for number in range(len(table.data) // 24):
        name, kind = struct.unpack_from("<IB", table.data, 24 * number)
        if kind & 15 == 2 and _text(names, name) == kernel:
            return number
    raise KeyError(kernel)


def _attributes(info: bytes) -> list[tuple[int, tuple[int, ...]]]:
    """The attributes that have values: (number, 32-bit words)."""
    found, at = list[tuple[int, tuple[int, ...]]](), 0
    while at < len(info):
        form, attribute, value = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _VALUES:
            found.append((attribute, struct.unpack_from(f"<{value // 4}I", info, at)))
            at += value
    return found


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode()
