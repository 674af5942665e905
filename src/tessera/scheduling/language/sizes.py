"""Buckets of sizes: extents of about one size share decisions."""

from __future__ import annotations


def size_class(extent: int) -> int:
    """Extents of one class share a choice: those up to the next power of two."""
    return extent if extent <= 1 else 1 + (extent - 1).bit_length()
