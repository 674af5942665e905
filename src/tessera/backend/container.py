"""Kernel objects as bytes: magic, length of the header, JSON header, code, SHA-256 of header and code."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from tessera.errors import CacheFormatError

_DIGEST_BYTES = hashlib.sha256().digest_size


def pack(magic: bytes, header: Mapping[str, Any], code: bytes) -> bytes:
    """A container that describes itself. `header` holds JSON values."""
    text = json.dumps(header, sort_keys=True).encode()
    body = len(text).to_bytes(8, "little") + text + code
    return magic + body + hashlib.sha256(body).digest()


def unpack(magic: bytes, data: bytes) -> tuple[dict[str, Any], bytes]:
    """(header, code) of a container. Raises CacheFormatError when it is cut short, altered or of another format."""
    if not data.startswith(magic):
        raise CacheFormatError("this is no kernel object of this version: its first bytes differ")
    body, digest = data[len(magic) : -_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        raise CacheFormatError("the kernel object is cut short or altered: its digest does not match")
    size = int.from_bytes(body[:8], "little")
    try:
        header = json.loads(body[8 : 8 + size])
    except (ValueError, RecursionError) as error:
        raise damaged(error) from error
    if not isinstance(header, dict):
        raise damaged(TypeError(f"{str(header)[:40]} is no header"))
    return header, body[8 + size :]


def damaged(error: Exception) -> CacheFormatError:
    """The failure that stands for one while a header is read: anybody can make a digest that matches."""
    return CacheFormatError(f"the kernel object's header is damaged: {type(error).__name__} {error}")


def text(value: object) -> str:
    """A text of a header; TypeError for anything else."""
    if not isinstance(value, str):
        raise TypeError(f"{str(value)[:40]!r} is no text")
    return value


def distance(value: object) -> int:
    """A stride of a header, which may go backwards; TypeError for anything but a whole number of 64 bits."""
    if type(value) is not int or not -(1 << 63) <= value < 1 << 63:
        raise TypeError(f"{str(value)[:40]!r} is no stride")
    return value


def whole(value: object) -> int:
    """A count of a header; TypeError for anything but a whole number from 0 up that fits into 63 bits."""
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise TypeError(f"{str(value)[:40]!r} is no count")
    return value
