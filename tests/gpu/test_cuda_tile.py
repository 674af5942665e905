"""Kernels of CUDA's tiles on a real GPU: every family, at once and by a graph, against float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import op
from tessera.compiler.device.compilers import compiler_of
from tessera.handle import Tensor
from tests.gpu.test_plans import check, normal

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")

BF16 = torch.bfloat16
FAMILIES: dict[str, Callable[[], Tensor]] = {
    "softmax": lambda: op.softmax(normal(37, 1000)),
    "layer norm": lambda: op.layer_norm(normal(9, 300), normal(300), normal(300)),
    "columns": lambda: op.mean(normal(301, 77), axis=0),
    "elementwise": lambda: op.tanh(normal(3, 1, 7)) + normal(5, 1),
    "product": lambda: op.matmul(normal(333, 257), normal(257, 129)),
    "fused bf16 product": lambda: op.gelu(op.matmul(normal(512, 256, dtype=BF16), normal(256, 384, dtype=BF16))),
    "attention": lambda: op.flash_attention(*(normal(2, 3, 197, 64, dtype=BF16) for _ in range(3)), causal=True),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_kernels_of_tiles_are_right_at_once_and_in_a_graph(family: str) -> None:
    if "cuda_tile" not in compiler_of("cuda:0").planner.backends:
        pytest.skip("tileiras is not installed, or the driver is older than r580")
    result = FAMILIES[family]()
    for _ in range(3):
        check(result.pin(backend="cuda_tile"), 2**-6 if "bf16" in family or family == "attention" else None)
