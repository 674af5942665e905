"""A seeded sample of torch's own samples through the backend; `python -m tests.integrations.torch.opinfo` runs all."""

from __future__ import annotations

import warnings

import pytest
import torch

from tessera.integrations.torch.partitions.partition import BackendWarning
from tests.integrations.torch.opinfo import DTYPES, drawn, outcome
from tests.whole import examples

SAMPLES = examples(5, 8)
"""Of each dtype: about a second each, most of it compiling."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_mapped_operators_are_right(dtype: torch.dtype) -> None:
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("error", BackendWarning)
        for case in drawn(dtype, SAMPLES, seed=1):
            found[str(case)] = outcome(case)
    assert sum(each.kind in ("native", "partly") for each in found.values()) >= SAMPLES / 2, found
