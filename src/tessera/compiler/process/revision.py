"""The revision of the code generator: a digest of the sources that decide what code a schedule becomes."""

from __future__ import annotations

import hashlib
from functools import cache

from tessera.system.sources import python_sources

_ROOMS = ("dtypes.py", "target", "lazy", "ir", "ops", "rewrite", "scheduling", "backend", "compiler")


@cache
def generator_revision() -> str:
    """Twelve hexadecimal digits; equal for equal sources."""
    digest = hashlib.sha256()
    for room in _ROOMS:
        for name, content in python_sources(room):
            digest.update(name.encode())
            digest.update(content)
    return digest.hexdigest()[:12]
