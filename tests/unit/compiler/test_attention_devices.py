"""`op.flash_attention` on the device that interprets a GPU's kernels: plans, layouts, dtypes, gradients."""

from __future__ import annotations

import numpy
import pytest
import torch

from tessera import grad, op, settings
from tessera.compiler.explain.inspection import schedules_of
from tessera.handle import Tensor
from tessera.ops import oracle

pytest.importorskip("triton", reason="the extra `triton` is not installed")
pytestmark = pytest.mark.skipif(
    tuple(map(int, numpy.__version__.split(".")[:2])) >= (2, 4), reason="Triton 3.6's interpreter needs numpy < 2.4"
)


def operands(dtype: torch.dtype, *shapes: tuple[int, ...]) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]


def interpreted(tensor: torch.Tensor) -> Tensor:
    return op.tensor(tensor, device="interpreter")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_heads_of_views_with_a_mask(dtype: torch.dtype) -> None:
    q, k, v = operands(dtype, (2, 21, 4, 24), (2, 37, 2, 24), (2, 37, 2, 24))
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    mask = torch.ones(21, 37, dtype=torch.bool)
    mask[:, ::5] = False
    mask[3] = False
    result = op.flash_attention(*map(interpreted, (q, k, v)), mask=interpreted(mask), causal=True, scale=0.3)
    (schedule,) = schedules_of(result.structure)
    assert schedule["head"] == (32, 32)
    assert schedule["exact"] is False
    expected = oracle.reference(op.flash_attention(q, k, v, mask=mask, causal=True, scale=0.3))
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(result.torch().double(), expected, atol=tolerance, rtol=tolerance)


def test_buckets_of_shapes_promise_nothing_about_heads() -> None:
    q, k, v = operands(torch.float32, (3, 24), (5, 24), (5, 24))
    with settings.override(shape_buckets=True):
        result = op.flash_attention(*map(interpreted, (q, k, v)))
        assert schedules_of(result.structure)[0]["exact"] is False
        torch.testing.assert_close(
            result.torch().double(), oracle.reference(op.flash_attention(q, k, v)), atol=2e-6, rtol=2e-6
        )


def test_gradients_stay_on_the_device() -> None:
    q, k, v = operands(torch.float32, (3, 4), (5, 4), (5, 2))
    found = {}
    for device in ("cpu", "interpreter"):
        inputs = [op.tensor(x, device=device) for x in (q, k, v)]
        output = op.flash_attention(*inputs, causal=True)
        found[device] = [cotangent.torch() for cotangent in grad.vjp(output, inputs)]
    for ours, expected in zip(found["interpreter"], found["cpu"], strict=True):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def test_blocks_that_a_window_hides_are_not_computed() -> None:
    """Values of hidden keys that are not finite would show: 0 times NaN is NaN."""
    q, k, v = operands(torch.float32, (1, 2, 300, 16), (1, 1, 300, 16), (1, 1, 300, 16))
    v[:, :, :100] = torch.nan
    numbers = interpreted(torch.arange(300, dtype=torch.int32) // 150)
    masks = {
        "window": lambda b, h, i, j: (j <= i) & (i - j < 40),
        "documents": lambda b, h, i, j: numbers[i] == numbers[j],
    }
    for name, mask in masks.items():
        found = op.flash_attention(*map(interpreted, (q, k, v)), mask_mod=mask).torch()
        at = torch.arange(300)
        i, j = at[:, None], at
        seen = (j <= i) & (i - j < 40) if name == "window" else i // 150 == j // 150
        late = torch.nn.functional.scaled_dot_product_attention(
            q.double(), k[:, :, 100:].double(), v[:, :, 100:].double(), attn_mask=seen[:, 100:], enable_gqa=True
        )[:, :, 230:]
        torch.testing.assert_close(found[:, :, 230:].double(), late, atol=2e-6, rtol=2e-6)
