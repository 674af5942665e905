"""Rules of attention to keys and values in pages."""

from __future__ import annotations

import random

from tessera.dtypes import accumulator, int32, int64
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, floating


def of_paged_attention(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `paged_attention`: sequences of any length, none too, that may share pages."""
    if len(x.shape) != 4 or x.shape[-1] == 0:
        return None
    sequences, heads, _, head = x.shape
    group = chance.choice([count for count in (1, 2, 3) if heads % count == 0])
    pages, page, most = chance.choice((1, 3, 7)), chance.choice((1, 3, 16, 17)), chance.choice((1, 2, 5))
    dtype, number = floating(x.dtype), chance.choice((int32, int64))
    operands = (
        WantedOperand(x.shape, dtype),
        WantedOperand((pages, heads // group, page, head), dtype),
        WantedOperand((pages, heads // group, page, chance.choice((1, 5, 16, head))), dtype),
        WantedOperand((), accumulator(dtype), below=3),  # a scale, which is not negative
        WantedOperand((sequences, most), number, below=pages),
        WantedOperand((sequences,), number, below=most * page + 1),
    )
    attributes = {
        "causal": chance.random() < 0.5,
        "soft_cap": chance.choice((0.0, 0.0, 3.0)),
        "window": chance.choice((0, 0, 1, page)),
    }
    return Application(operands, attributes)


def of_checked_pages(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `checked_pages`: tables and lengths that are right."""
    if len(x.shape) != 2:
        return None
    pages, page = chance.choice((1, 7)), chance.choice((1, 4))
    kind = chance.choice((int32, int64))
    table = WantedOperand(x.shape, kind, below=pages)
    lengths = WantedOperand(x.shape[:1], kind, below=x.shape[1] * page + 1)
    return Application((table, lengths), {"pages": pages, "page": page})
