"""Sums of millions: of equal numbers all roundings of one binade go one way, and errors grow with a sum's length."""

from __future__ import annotations

import torch

from tessera import op
from tessera.lazy.evaluation import evaluate

COUNT = 2_000_000


def test_long_sums_are_as_exact_as_torch_makes_those_of_columns() -> None:
    for number in (0.1, 1.1):
        x = torch.full((COUNT, 2), number)
        exact = x[0, 0].double() * COUNT
        rows, columns = op.sum(op.tensor(x), 1), op.sum(op.tensor(x), 0)
        evaluate([rows, columns])  # in one walk
        found = {
            "columns": op.sum(op.tensor(x), 0).torch(),
            "rows": op.sum(op.tensor(x.view(2, COUNT)), 1).torch(),
            "columns beside rows": columns.torch(),
        }
        for name, sums in found.items():
            assert ((sums.double() - exact) / exact).abs().max() < 4e-6, name
