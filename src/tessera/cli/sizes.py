"""Sizes as commands print them."""

from __future__ import annotations

PIPED_WIDTH = 140
"""Columns where the output is no terminal, so that remedies stay in one piece in a bug report."""


def size(count: int) -> str:
    """A number of bytes for people: 32 KiB, 1.5 GiB."""
    value = float(count)
    for unit in ("B", "KiB", "MiB"):
        if value < 1024:
            return f"{value:.4g} {unit}"
        value /= 1024
    return f"{value:.4g} GiB" if value < 1024 else f"{value / 1024:.4g} TiB"
