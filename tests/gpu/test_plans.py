"""Plans on a real GPU: every family, graphs, and what can go wrong, against float64."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from tessera import op, settings
from tessera.compiler import pipeline
from tessera.errors import DeviceError, MemoryLimitError
from tessera.handle import Tensor
from tessera.ops import oracle
from tessera.runtime.plans.gpu_plan import DevicePlan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).cuda()


def check(result: Tensor, tolerance: float | None = None) -> None:
    expected, found = oracle.reference(result), result.torch()
    assert found.is_cuda
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected.to(found.dtype))
        return
    bound = tolerance or 16 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), atol=bound, rtol=bound, equal_nan=True)


@pytest.fixture(autouse=True)
def poisoned_memory() -> None:
    """Memory that torch hands out next holds NaNs."""
    if torch.cuda.is_available():
        blocks = [torch.full((1 << 20,), math.nan, device="cuda") for _ in range(8)]
        del blocks


FAMILIES: dict[str, Callable[[], Tensor]] = {
    "product": lambda: op.matmul(normal(333, 257), normal(257, 129)),
    "bf16 product": lambda: op.matmul(normal(512, 256, dtype=torch.bfloat16), normal(256, 384, dtype=torch.bfloat16)),
    "fp16 vector": lambda: op.matmul(normal(1, 512, dtype=torch.float16), normal(512, 256, dtype=torch.float16)),
    "batched": lambda: op.matmul(normal(3, 65, 33), normal(33, 17)),
    "transposed": lambda: op.matmul(normal(40, 70).T, normal(66, 40)[::2].T),
    "fused": lambda: op.gelu(op.matmul(op.relu(normal(65, 130)), normal(130, 70)) * 0.25 + normal(70)),
    "apart": lambda: op.relu(op.matmul(normal(64, 64), normal(64, 64)) + 1.5).pin(fusion=False),
    "split": lambda: op.matmul(normal(64, 4096), normal(4096, 64)).pin(split_k=4),
    "softmax": lambda: op.softmax(normal(37, 1000)),
    "log softmax": lambda: op.log_softmax(normal(5, 20_000)),
    "layer norm": lambda: op.layer_norm(normal(9, 300), normal(300), normal(300)),
    "rms norm": lambda: op.rms_norm(normal(9, 301, dtype=torch.bfloat16)),
    "columns": lambda: op.mean(normal(301, 77), axis=0),
    "strided sum": lambda: op.sum(normal(3, 4, 5, 6).permute(0, 2, 1, 3), axis=(1, 2)),
    "argmax": lambda: op.argmax(normal(31, 77), axis=-1),
    "elementwise": lambda: op.where(normal(3, 1, 7) > 0.5, op.tanh(normal(3, 1, 7)), op.abs(normal(5, 1)) + 2.5),
    "layout": lambda: op.concat([op.relu(normal(4, 6)).T[1:5:2], op.reshape(normal(8, 2), (2, 8))[:, 1:5]], axis=0),
    "empty": lambda: op.exp(normal(0, 5)) + 1,
    "nothing to add": lambda: op.matmul(normal(3, 0), normal(0, 4)),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family(name: str) -> None:
    for _ in range(3):  # kernel by kernel, recorded, and as a graph
        check(FAMILIES[name](), 1e-4 if "bf16" not in name and "rms" not in name and "fp16" not in name else None)


def test_operands_that_start_anywhere() -> None:
    a, b = normal(65, 64, dtype=torch.bfloat16), normal(64, 48, dtype=torch.bfloat16)
    for start in (0, 1, 8, 3):
        check(op.matmul(a.view(-1)[start : start + 64 * 64].view(64, 64), b))


def test_graphs_follow_addresses_that_change() -> None:
    x = normal(64, 64) * 0.1  # products small enough that fp32's rounding of them changes no softmax
    plan: object = None
    kept = []
    for step in range(6):
        values = x + 0.1 * step
        result = op.softmax(op.matmul(values, values)) * float(step)
        kept.append((result.eval(), torch.softmax(values.double() @ values.double(), -1) * step))
        plan = pipeline.plan(op.softmax(op.matmul(values, values)).structure) if plan is None else plan
    assert isinstance(plan, DevicePlan)
    for found, expected in kept:
        torch.testing.assert_close(found.torch().double(), expected, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("calls_before", [1, 3])  # so far launched one by one, and as a graph of ours
def test_a_graph_of_the_program_holds_our_launches(calls_before: int) -> None:
    pipeline.forget_plans()
    x = normal(65, 65) * 0.1

    def build() -> Tensor:
        result: Tensor = op.softmax(op.matmul(x, x)) * 2.0
        return result

    for _ in range(calls_before):
        build().eval()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = [build().torch() for _ in range(3)]
    x += 0.25
    graph.replay()
    expected = torch.softmax(x.double() @ x.double(), -1) * 2
    for found in kept:
        torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(build().torch().double(), expected, atol=1e-5, rtol=1e-5)


def test_work_goes_to_torchs_current_stream() -> None:
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    x = normal(512, 512)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        result = op.exp(x * 0.5).eval()
        found = result.torch() + 0
    stream.synchronize()
    torch.testing.assert_close(found, torch.exp(x * 0.5))


def test_shapes_of_one_bucket() -> None:
    with settings.override(shape_buckets=True):
        pipeline.forget_plans()
        for rows in (33, 40, 64, 33):
            for _ in range(3):
                check(op.softmax(normal(rows, 100)), 1e-5)
    pipeline.forget_plans()


def test_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("less than 24 GiB of GPU memory are free")
    x = torch.zeros(1 << 16, (1 << 15) + 8, dtype=torch.bfloat16, device="cuda")
    x[-1, -1] = 3
    y = op.relu(x).torch()
    assert y[-1, -1].item() == 3
    assert y.sum().item() == 3


def test_out_of_memory_says_how_much_and_leaks_nothing() -> None:
    x = torch.ones(1, device="cuda")
    earlier = op.exp(normal(64, 64)).eval()
    kept = earlier.torch().clone()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    with pytest.raises(MemoryLimitError, match=r"bytes"):
        (op.broadcast_to(x, (1 << 20, 1 << 20)) * 2.5).eval()
    assert torch.cuda.memory_allocated() == before
    assert torch.equal(earlier.torch(), kept)
    check(op.exp(normal(64, 65)), 1e-5)


def test_tensors_move_and_do_not_mix() -> None:
    x = normal(4, 5)
    with pytest.raises(DeviceError, match="cuda:0 and cpu"):
        op.tensor(x) + torch.ones(4, 5)
    back = (op.tensor(x) * 2).to("cpu")
    assert torch.equal(back.torch(), x.cpu() * 2)
    assert op.tensor(x.cpu(), device="cuda").torch().is_cuda
    with pytest.raises(DeviceError, match="numpy has no arrays"):
        op.tensor(x).numpy()
