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
    header: dict[str, Any] = json.loads(body[8 : 8 + size])
    return header, body[8 + size :]
