"""The file of an artefact: magic, length of the header, header as JSON, blobs, SHA-256 of all before it.

Blobs are bytes told by number: kernels, packed constants, tensors. Equal ones are kept once, each from a multiple of 64
bytes on.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from tessera.errors import ArtefactError
from tessera.system.files import replacing

MAGIC: Final = b"TESSERA-ARTEFACT-1\n"
_ALIGNMENT: Final = 64
_LENGTH_BYTES: Final = 8
_DIGEST_BYTES: Final = hashlib.sha256().digest_size


class ArtefactWriter:
    """Collects blobs and writes the file."""

    def __init__(self) -> None:
        self._numbers: dict[bytes, int] = {}
        self._contents: list[bytes] = []

    def keep(self, content: bytes) -> int:
        """The number of these bytes; equal ones have one number."""
        digest = hashlib.sha256(content).digest()
        if digest not in self._numbers:
            self._numbers[digest] = len(self._contents)
            self._contents.append(content)
        return self._numbers[digest]

    def write(self, path: Path, header: dict[str, Any]) -> None:
        """Puts header and blobs into a file, whole or not at all. Raises OSError."""
        offset, places = 0, []
        for content in self._contents:
            places.append((offset, len(content)))
            offset += -(-len(content) // _ALIGNMENT) * _ALIGNMENT
        text = json.dumps({**header, "blobs": places}, sort_keys=True).encode()
        # JSON may end in spaces: so blobs begin where they should.
        text += b" " * (-(len(MAGIC) + _LENGTH_BYTES + len(text)) % _ALIGNMENT)
        digest = hashlib.sha256()
        with replacing(path) as file:
            for part in (MAGIC, len(text).to_bytes(_LENGTH_BYTES, "little"), text, *map(_padded, self._contents)):
                digest.update(part)
                file.write(part)
            file.write(digest.digest())


def _padded(content: bytes) -> bytes:
    return content + bytes(-len(content) % _ALIGNMENT)


class ArtefactReader:
    """A file that has been read: `header`, and the blobs."""

    def __init__(self, path: Path) -> None:
        """Raises ArtefactError (E_ARTEFACT) for what is no whole artefact of this version, OSError for no file."""
        data = memoryview(_content(path))
        if bytes(data[: len(MAGIC)]) != MAGIC:
            raise ArtefactError(f"{path} is no artefact of this version of Tessera: its first bytes differ")
        if hashlib.sha256(data[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
            raise ArtefactError(f"{path} is cut short or altered: its digest does not match")
        start = len(MAGIC) + _LENGTH_BYTES
        first_blob = start + int.from_bytes(data[len(MAGIC) : start], "little")
        self.header: dict[str, Any] = json.loads(bytes(data[start:first_blob]))
        self._data, self._first = data, first_blob

    def blob(self, number: int) -> memoryview:
        """The bytes of a number."""
        offset, size = self.header["blobs"][number]
        begin = self._first + offset
        return self._data[begin : begin + size]


def _content(path: Path) -> bytearray:
    """The bytes of a file, in memory that tensors may lie in."""
    content = bytearray(path.stat().st_size)
    with path.open("rb") as file:
        size = file.readinto(content)
    return content[:size]


def check_place(path: Path, header: Mapping[str, Any]) -> None:
    """Raises ArtefactError (E_ARTEFACT) where the file was made for another torch or another kind of machine."""
    for what, made, here in (
        ("torch", header["torch"], torch.__version__),
        ("a machine of the kind", header["machine"], platform.machine()),
    ):
        if made != here:
            raise ArtefactError(
                f"{path} was made for {what} {made}, and here is {here}", hints=["compile it on this machine"]
            )
