"""`inspect("fusion")`: what became one kernel, what that saves, and why the rest did not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op
from tessera.handle import Tensor
from tessera.ops import oracle


def normal(*shape: int) -> Tensor:
    return op.tensor(torch.randn(shape))


def test_a_kernel_tells_what_it_saves() -> None:
    x, w, b = normal(8, 16), normal(16, 32), normal(32)
    lines = op.gelu(op.matmul(x, w) + b).inspect("fusion").splitlines()
    assert lines == [
        "matmul_add_gelu_0: matmul . add . gelu; 2 results stay in registers, 0.0041 MB less to write and read again"
    ]


def _reduced_and_product(x: Tensor) -> Tensor:
    return op.matmul(op.softmax(x), x)


def _two_readers(x: Tensor) -> Tensor:
    product = op.matmul(x, x)
    result: Tensor = op.exp(product) + op.matmul(product, x)
    return result


def _dear(x: Tensor) -> Tensor:
    return op.matmul(op.exp(x), x)


def _shared(x: Tensor) -> Tensor:
    twice = x * 2.5
    result: Tensor = op.matmul(twice, x) + op.matmul(x, twice)
    return result


def _long(x: Tensor) -> Tensor:
    for _ in range(20):
        x = op.tanh(x)
    return x


def _convolution(x: Tensor) -> Tensor:
    image = op.reshape(x, (1, 4, 8, 8))
    return op.conv2d(image, torch.ones(4, 4, 3, 3), padding=1)


def _windows(x: Tensor) -> Tensor:
    return op.depthwise_conv2d(op.relu(op.reshape(x, (1, 4, 8, 8))), torch.ones(4, 3, 3))


def _long_epilogue(x: Tensor) -> Tensor:
    product = op.matmul(x, x)
    for _ in range(10):
        product = op.tanh(product)
    return product


REASONS: dict[str, Callable[[Tensor], Tensor]] = {
    "reduced-operand": _reduced_and_product,
    "two-products": _two_readers,
    "product-is-needed-elsewhere": _two_readers,
    "operand-is-dear": _dear,
    "operand-is-shared": _shared,
    "rows-of-a-product": lambda x: op.softmax(op.matmul(x, x)),
    "attention-is-alone": lambda x: op.exp(op.flash_attention(x * 2.5, x, x)),
    "another-domain": lambda x: op.exp(x) + op.exp(op.exp(x).sum(0).sum(0)),
    "another-reduction": lambda x: op.softmax(op.softmax(x, 1), 0),
    "depth": _long,
}


SUMS_IN_REGISTERS: dict[str, Callable[[Tensor], Tensor]] = {
    "two-products": lambda x: op.conv2d(_convolution(x), torch.ones(2, 4, 1, 1)),
    "rows-of-a-product": lambda x: op.sum(_convolution(x), axis=(2, 3)),
    "windows-overlap": _windows,
    "depth": _long_epilogue,
}


@pytest.mark.parametrize("rule", SUMS_IN_REGISTERS)
def test_what_goes_through_memory_around_sums_in_registers_says_why(rule: str) -> None:
    result = SUMS_IN_REGISTERS[rule](normal(16, 16))
    lines = [line for line in result.inspect("fusion").splitlines() if " -> " in line]
    assert lines
    assert all(line.endswith(f"({rule})") for line in lines), lines


@pytest.mark.parametrize("rule", REASONS)
def test_what_goes_through_memory_says_why(rule: str) -> None:
    result = REASONS[rule](normal(16, 16))
    lines = [line for line in result.inspect("fusion").splitlines() if " -> " in line]
    assert any(line.endswith(f"({rule})") and " MB: " in line for line in lines), lines


def test_kernels_that_run_in_stages_say_so() -> None:
    chain = op.tanh(op.gelu(op.silu(normal(500, 200))))
    line, *told = (chain - op.mean(chain, axis=0, keepdims=True)).inspect("fusion").splitlines()
    assert line.endswith("run as kernels of their own for these extents")
    assert told[0].startswith("    stages: the cost model expects")
    assert told[1:] == [
        "      0: silu_gelu_tanh_0 writes w0",
        "      1: mean_1 reads w0, writes w1",
        "      2: sub_2 reads w0, w1",
        "      w0: fp32 [500, 200], 0.4 MB, steps 0 to 2",
        "      w1: fp32 [1, 200], 0.0008 MB, steps 1 to 2",
    ]


def test_what_is_fused_anew_inside_of_a_decomposition_says_so() -> None:
    image, weights = normal(1, 3, 9, 9), normal(4, 3, 3, 3)
    told = op.relu(op.conv2d(image, weights) * 2.5).pin(fusion=False).inspect("fusion").splitlines()
    names = [line.strip().split(":")[0] for line in told if line.startswith("    ") and line.strip()[0].isalpha()]
    assert names[0] == "unfused"
    assert "packed-weights" in names
    assert sum("writes panels" in line for line in told) >= 1


def test_memory_between_steps_has_the_name_that_its_rule_gives_it() -> None:
    told = op.conv2d(normal(1, 3, 9, 9), normal(4, 3, 3, 3)).inspect("fusion")
    assert "packed-weights: kernels read weights in panels" in told
    assert "panels: fp32" in told


def test_a_scale_of_queries_is_multiplied_where_they_are_made() -> None:
    x, w = normal(2, 9, 12), normal(12, 12)
    k, v = normal(2, 3, 9, 4), normal(2, 3, 9, 4)
    q = op.transpose(op.reshape(op.matmul(x, w), (2, 9, 3, 4)), (0, 2, 1, 3))
    result = op.matmul(op.softmax(op.matmul(q, op.transpose(k, (0, 1, 3, 2))) * 0.3), v)
    kernels = [line for line in result.inspect("fusion").splitlines() if " -> " not in line]
    assert [line.split(": ")[1].split(";")[0] for line in kernels] in (["matmul . mul", "flash_attention"],)
    torch.testing.assert_close(result.torch().double(), oracle.reference(result), atol=1e-5, rtol=1e-5)


def test_an_unknown_level_is_refused_by_name() -> None:
    any_tensor: Any = normal(2)
    with pytest.raises(ValueError, match="fusion"):
        any_tensor.inspect("fused")
