"""`op.all_reduce` of CUDA tensors over NCCL, in a group of one rank, which is what one GPU can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from tessera import op, stream

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or not dist.is_nccl_available(), reason="torch sees no CUDA device, or has no NCCL"
)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    """A default group of this process alone."""
    dist.init_process_group("nccl", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_on_a_stream_and_on_none_the_reduction_is_right_and_new() -> None:
    x = torch.randn(300, 70, device="cuda")
    s = stream.create(device="cuda")
    for reduction in ("sum", "avg", "max"):
        here = op.all_reduce(op.tensor(x) * 2, op=reduction)
        there = op.all_reduce(op.exp(x, stream=s), op=reduction, stream=s)
        torch.testing.assert_close((here + 1).torch(), 2 * x + 1)
        torch.testing.assert_close(there.torch(), x.exp(), rtol=1e-5, atol=1e-5)
