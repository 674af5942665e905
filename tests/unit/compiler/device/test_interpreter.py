"""Every family of kernels on the device "interpreter": printed for a GPU, launched by plans, against float64."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from importlib import metadata

import numpy
import pytest
import torch

from tessera import empty_cache, memory_stats, op, settings
from tessera.backend.interpreter import interpreted
from tessera.compiler import pipeline
from tessera.compiler.device import compilers
from tessera.errors import MemoryLimitError, UnsupportedTargetError
from tessera.handle import Tensor
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.ops import oracle
from tessera.system.distribution import installing

DEVICE = "interpreter"


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def put(values: torch.Tensor) -> Tensor:
    return op.tensor(values, device=DEVICE)


def check(result: Tensor, tolerance: float | None = None) -> None:
    """Compares with the operators' own references in float64; NaNs must be where the references have them."""
    expected = oracle.reference(result)
    found = result.torch()
    assert result.state[0].device == DEVICE
    if not found.dtype.is_floating_point:
        assert torch.equal(found, expected.to(found.dtype))
        return
    tolerance = tolerance or 16 * torch.finfo(found.dtype).eps
    torch.testing.assert_close(found.double(), expected.double(), atol=tolerance, rtol=tolerance, equal_nan=True)


def launched(result: Tensor) -> list[str]:
    """The names of the kernels that an evaluated expression launches."""
    pipeline.plan(result.structure)
    return [choice.subject.item.name.rsplit("_", 1)[0] for choice in pipeline.launched(result.structure)]


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((37, 71), (71, 53)),
        ((1, 1), (1, 1)),
        ((1, 17), (17, 5)),
        ((3, 7, 33), (3, 33, 19)),
        ((2, 1, 5, 16), (3, 16, 9)),
        ((4, 9), (2, 9, 3)),
        ((7,), (7, 5)),
    ],
)
def test_products(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    check(op.matmul(put(normal(*a)), put(normal(*b))), 2e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_products_of_other_dtypes(dtype: torch.dtype) -> None:
    a, b = put(normal(33, 40, dtype=dtype)), put(normal(40, 21, dtype=dtype))
    check(op.matmul(a, b))


def test_transposed_and_strided_operands_are_read_in_place() -> None:
    a, b = normal(40, 70), normal(2 * 33, 40)
    product = op.matmul(put(a).T, put(b)[::2].T)
    assert launched(product) == ["matmul"]
    check(product, 2e-5)


def test_prologues_and_epilogues_are_part_of_the_product() -> None:
    a, b, bias = put(normal(19, 35)), put(normal(35, 23)), put(normal(23))
    fused = op.gelu(op.matmul(op.relu(a), b) * 0.25 + bias)
    assert len(launched(fused)) == 1
    check(fused, 2e-5)


def test_parts_of_a_kernel_that_is_not_fused() -> None:
    a, b = put(normal(19, 35)), put(normal(35, 23))
    apart = op.relu(op.matmul(a, b) + 1.5).pin(fusion=False)
    assert len(launched(apart)) == 3
    check(apart, 2e-5)


ROWS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": op.softmax,
    "log_softmax": op.log_softmax,
    "layer_norm": op.layer_norm,
    "rms_norm": op.rms_norm,
    "sum": lambda x: op.sum(x, axis=-1),
    "mean of columns": lambda x: op.mean(x, axis=0),
    "max": lambda x: op.max(x, axis=-1),
    "min of columns": lambda x: op.min(x, axis=0, keepdims=True),
    "argmax": lambda x: op.argmax(x, axis=-1),
    "softmax of columns": lambda x: op.softmax(x, axis=0),
    "all": op.sum,
}


@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("shape", [(5, 71), (1, 1), (3, 64)])
def test_rows_and_reductions(name: str, shape: tuple[int, int]) -> None:
    check(ROWS[name](put(normal(*shape))), 1e-5)


def test_a_row_that_is_longer_than_a_tile() -> None:
    x = put(normal(2, 20_000))
    check(op.softmax(x), 1e-5)
    check(op.sum(x, axis=1), 2e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_narrow_rows_are_summed_in_fp32(dtype: torch.dtype) -> None:
    check(op.layer_norm(put(normal(4, 300, dtype=dtype)), put(normal(300, dtype=dtype)), put(normal(300, dtype=dtype))))


def test_reductions_over_dimensions_that_do_not_merge_run_over_copies() -> None:
    x = put(normal(3, 4, 5, 6)).transpose((0, 2, 1, 3))
    check(op.sum(x, axis=(1, 2)), 1e-5)
    check(op.max(x, axis=(0, 3)))


def test_elementwise_chains_of_any_rank() -> None:
    x, y = put(normal(3, 1, 7)), put(normal(5, 1))
    check(op.where(x > 0.5, op.tanh(x) * y, op.sqrt(op.abs(y) + 2.5)), 1e-5)
    check(op.exp(put(normal())))
    check((x.to("bf16") + 1).to("fp16"))
    check(op.logical_not(x > 0))
    check(put(torch.arange(12).reshape(3, 4)) * 3 - 5)


def test_layout_operators() -> None:
    x = op.relu(put(normal(4, 6)))
    check(op.relu(x.T[1:5:2]))
    check(op.reshape(x.T, (3, 8)))
    check(op.relu(op.broadcast_to(x[:1], (5, 6))))
    check(op.concat([x, put(normal(4, 3)), x], axis=1))
    check(op.broadcast_to(put(normal(1, 4)) * 2.5, (3, 4)) + 0)


def test_operands_that_start_anywhere() -> None:
    base = normal(1 + 64 * 48)
    x = put(base[1:].view(64, 48))
    assert x.torch().data_ptr() % 16
    doubled = x * 2
    check(doubled)
    again = put(normal(64, 48)) * 2  # the same structure, aligned
    assert again.structure is doubled.structure or again.structure.plan is not None
    check(again)


def test_nan_and_infinity() -> None:
    x = normal(4, 9)
    x[0, 3], x[1, 2], x[2, 5] = math.nan, math.inf, -math.inf
    for operator in (op.softmax, op.log_softmax, op.exp, op.relu, lambda t: op.max(t, axis=-1), op.tanh):
        check(operator(put(x)), 1e-5)
    weights = torch.zeros(9, 3)
    weights[0] = 1
    check(op.matmul(put(x), put(weights)), 1e-5)


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,), (2, 0, 3)])
def test_empty_tensors(shape: tuple[int, ...]) -> None:
    x = put(normal(*shape))
    check(op.exp(x) + 1)
    check(op.sum(x))
    assert launched(op.exp(x)) == []


def test_a_product_over_nothing_is_zero() -> None:
    check(op.matmul(put(normal(3, 0)), put(normal(0, 4))))


def test_several_results_share_one_plan() -> None:
    x = put(normal(5, 8))
    hidden = op.exp(x)
    a, b = op.sum(hidden, axis=1), hidden * 2

    @op.kernel
    def both(values: Tensor) -> tuple[Tensor, Tensor]:
        grown = op.exp(values)
        return op.sum(grown, axis=1), grown * 2

    first, second = both(x)
    for found, same in ((a, first), (b, second)):
        check(found, 1e-5)
        torch.testing.assert_close(found.torch(), same.torch())


def test_a_long_chain_reuses_its_temporaries() -> None:
    x = normal(16, 16)
    chain = put(x)
    for _ in range(4):
        chain = op.softmax(op.matmul(chain, put(x)), axis=-1)
    check(chain, 1e-5)


def test_results_are_inputs_and_go_into_memory_of_the_user() -> None:
    x = put(normal(7, 5))
    y = (x + 1).eval()
    check(op.exp(y) * y, 1e-4)
    out = torch.full((7, 5), math.nan)
    for _ in range(2):  # by a copy the first time, by the plan itself the second time
        (x * 3).eval(out=out)
        torch.testing.assert_close(out, x.torch() * 3)
        out.fill_(math.nan)
    assert numpy.allclose((x * 3).numpy(), x.torch().numpy() * 3)


def test_other_extents_of_a_known_program_lower_nothing_new() -> None:
    compiler = compilers.gpu_compiler(DEVICE)
    first, second = (op.softmax(put(normal(rows, 40))) for rows in (30, 31))
    assert symbolic_form(first.structure) is symbolic_form(second.structure)
    check(first, 1e-5)
    check(second, 1e-5)
    (a,), (b,) = (pipeline.launched(x) for x in (op.softmax(put(normal(rows, 40))).structure for rows in (30, 31)))
    assert compiler.planner.kernel(a) is compiler.planner.kernel(b)


def test_the_text_of_every_level_is_the_devices_own() -> None:
    product = op.matmul(put(normal(20, 30)), put(normal(30, 40)))
    assert "tl.dot(" in product.inspect("target")
    assert "tessera.tile.mma_sync" in product.inspect("tile")
    assert "warps" in product.inspect("schedule")


@pytest.mark.parametrize("name", ["sm80", "sm100", "gfx942"])
def test_the_interpreter_stands_for_any_gpu(name: str) -> None:
    from tessera.runtime.devices.device import use_driver
    from tessera.runtime.devices.interpreter_device import open_device

    with settings.override(interpreter_target=name):
        before = use_driver(DEVICE, open_device(0))
        try:
            pipeline.forget_plans()
            check(op.matmul(put(normal(20, 30, dtype=torch.bfloat16)), put(normal(30, 40, dtype=torch.bfloat16))))
        finally:
            use_driver(DEVICE, before)
            pipeline.forget_plans()


def test_out_of_memory_leaves_earlier_results_and_leaks_nothing() -> None:
    earlier = op.exp(put(normal(8, 8))).eval()
    kept = earlier.torch().clone()
    x = put(normal(64, 1024))
    gc.collect()  # what earlier tests left in cycles would be freed in between
    before = memory_stats()["allocated_bytes"]
    empty_cache()  # memory that earlier tests gave back would serve the request
    with settings.override(memory_limit_bytes=memory_stats()["reserved_bytes"] + (64 << 10)):
        with pytest.raises(MemoryLimitError) as caught:
            (x + 1.5).eval()
        assert f"{64 * 1024 * 4:,} bytes" in str(caught.value)
    assert memory_stats()["allocated_bytes"] <= before  # less where a stream let go of what an earlier test left
    assert torch.equal(earlier.torch(), kept)
    check(x[:2] + 1.5)


def test_the_compiler_of_triton_is_what_others_import() -> None:
    import triton
    from triton.runtime.jit import JITFunction

    check(op.exp(put(normal(3, 3))), 1e-5)

    @triton.jit
    def kernel(x):  # type: ignore[no-untyped-def]
        return x

    assert isinstance(kernel, JITFunction)


def test_without_triton_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    interpreted.interpreter.cache_clear()
    with pytest.raises(UnsupportedTargetError, match="Triton is not installed") as caught:
        interpreted.interpreter()
    assert installing("triton") in str(caught.value)
