"""How many columns are few: of products that are made as their transposes (`compiler/decompose/few_columns.py`)."""

from __future__ import annotations

from typing import Final

from tessera.target import Target

FEW: Final = 8
"""Columns up to which a product is turned on CPUs."""
FEW_OF_PAIRS: Final = 4
"""The same where pairs of bf16 are multiplied by instructions of their own, which dot products do not use. One thread
of Zen 4, K = 512, oneDNN's time over that of ours, turned and not: 2 columns 1.6 and 1.0, 4 columns 1.25 and 0.98, 8
columns 0.72 and 0.93.
"""


def few_columns(target: Target) -> int:
    """Up to so many columns a product is made as its transpose; 0 for never."""
    return FEW if target.kind == "cpu" else 0


def few_columns_of_pairs(target: Target) -> int:
    """The same where bf16 is multiplied in pairs."""
    return FEW_OF_PAIRS if target.has_avx512bf16 else few_columns(target)
