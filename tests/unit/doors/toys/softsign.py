"""A toy scalar function in a file, one row: `softsign(x)` = x / (1 + |x|)."""

from __future__ import annotations

import torch

from tessera import extend

SOFTSIGN = extend.elementwise(
    "softsign",
    lambda e, x: e.div(x, e.add(e.constant(1.0, x), e.abs(x))),
    lambda g, x, out: g / ((1 + abs(x)) * (1 + abs(x))),
    torch.nn.functional.softsign,
    summary="x / (1 + |x|).",
)
