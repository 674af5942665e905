"""A kernel follows torch's default dtype."""

from __future__ import annotations

import torch

from tessera import op


def test_a_kernel_is_traced_again_under_another_default_dtype() -> None:
    halved = op.kernel(lambda x: x / 2)
    x = torch.arange(4)
    assert halved(x).torch().dtype is torch.float32
    torch.set_default_dtype(torch.float64)
    try:
        assert halved(x).torch().dtype is torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert halved(x).torch().dtype is torch.float32
