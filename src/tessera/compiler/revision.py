"""The revision of the code generator: a digest of the sources that decide what code a schedule becomes."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

_ROOMS = ("target", "lazy", "ir", "ops", "rewrite", "scheduling", "backend", "compiler")


@cache
def generator_revision() -> str:
    """Twelve hexadecimal digits; equal for equal sources."""
    root = Path(__file__).parent.parent
    digest = hashlib.sha256()
    paths = [root / "dtypes.py", *(path for room in _ROOMS for path in sorted((root / room).rglob("*.py")))]
    for path in paths:
        digest.update(path.relative_to(root).as_posix().encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
