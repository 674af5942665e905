"""8-bit floats on a real GPU: conversions to the bit, products of deep sums."""

from __future__ import annotations

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def test_kernels_convert_and_multiply_as_on_the_cpu() -> None:
    from tests.unit.backend.triton.test_float8 import wrong_on

    wrong = wrong_on("cuda:0")
    assert len(wrong) > 30
    assert {name: count for name, count in wrong.items() if count} == {}
