"""The Triton source of every family of kernels, from operators as users write them: a golden each."""

from __future__ import annotations

import ast
from collections.abc import Callable

import pytest

import tessera
from tessera import op
from tessera.scheduling.language.schedule import KnobValue

PRODUCT: dict[str, KnobValue] = {"tile": (64, 64, 32), "warps": 4, "pipeline_depth": 3}


def on_gpu(*shape: int, dtype: str = "fp32") -> tessera.Tensor:
    """A tensor of a GPU that need not be there."""
    return op.tensor(shape, dtype, device="interpreter")


def product(first: tuple[int, ...], second: tuple[int, ...], dtype: str = "bf16") -> tessera.Tensor:
    return op.matmul(on_gpu(*first, dtype=dtype), on_gpu(*second, dtype=dtype)).pin(**PRODUCT)


FAMILIES: dict[str, Callable[[], tessera.Tensor]] = {
    "matmul": lambda: product((256, 128), (128, 192)),
    "matmul_fp16": lambda: product((256, 128), (128, 192), "fp16"),
    "matmul_tf32": lambda: op.matmul(on_gpu(256, 128), on_gpu(128, 192), math="tf32").pin(**PRODUCT),
    "matmul_fp8": lambda: product((256, 128), (128, 192), "fp8_e4m3"),
    "matmul_fp8_by_bf16": lambda: op.matmul(
        on_gpu(256, 128, dtype="fp8_e4m3"), on_gpu(128, 192, dtype="bf16"), accum_dtype="fp32"
    ).pin(**PRODUCT),
    "matmul_batched": lambda: product((5, 256, 128), (5, 128, 192)),
    "matmul_batch_broadcast": lambda: product((5, 256, 128), (128, 192)),
    "matmul_transposed": lambda: op.matmul(on_gpu(128, 256, dtype="bf16").T, on_gpu(192, 128, dtype="bf16").T).pin(
        **PRODUCT
    ),
    "gemm": lambda: op.gemm(
        on_gpu(256, 128, dtype="bf16"), on_gpu(128, 192, dtype="bf16"), on_gpu(192, dtype="bf16"), alpha=0.5, beta=2.0
    ).pin(**PRODUCT),
    "prologue": lambda: op.matmul(op.relu(on_gpu(256, 128) + 1.0), on_gpu(128, 192)).pin(**PRODUCT),
    "epilogue": lambda: op.silu(product((256, 128), (128, 192)) + on_gpu(192, dtype="bf16")),
    "elementwise": lambda: op.gelu(on_gpu(300, 700) * 2.0 + on_gpu(700)),
    "elementwise_bf16": lambda: op.where(on_gpu(300, 700, dtype="bf16") > 0.0, 1.0, on_gpu(300, 1, dtype="bf16")),
    "sum_of_rows": lambda: op.sum(on_gpu(300, 700), axis=-1),
    "max_of_columns": lambda: op.max(on_gpu(300, 700), axis=0),
    "mean_of_all": lambda: op.mean(on_gpu(300, 700)),
    "argmax": lambda: op.argmax(on_gpu(300, 700), axis=-1),
    "softmax": lambda: op.softmax(on_gpu(300, 700, dtype="bf16")),
    "softmax_of_long_rows": lambda: op.softmax(on_gpu(3, 70_000)),
    "log_softmax": lambda: op.log_softmax(on_gpu(300, 700)),
    "layer_norm": lambda: op.layer_norm(on_gpu(300, 700), on_gpu(700), on_gpu(700)),
    "rms_norm": lambda: op.rms_norm(on_gpu(300, 700, dtype="bf16"), on_gpu(700, dtype="bf16")),
    "flash_attention": lambda: op.flash_attention(*(on_gpu(2, 8, 300, 64, dtype="bf16") for _ in range(3))),
    "flash_attention_causal_grouped": lambda: op.flash_attention(
        on_gpu(2, 8, 100, 128, dtype="bf16"),
        on_gpu(2, 2, 300, 128, dtype="bf16"),
        on_gpu(2, 2, 300, 128, dtype="bf16"),
        causal=True,
    ),
    "flash_attention_mask": lambda: op.flash_attention(
        *(on_gpu(2, 8, 100, 80) for _ in range(3)), mask=on_gpu(100, 100) > 0.0
    ),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_source(name: str, golden: Callable[[str, str], None]) -> None:
    text = FAMILIES[name]().inspect("target")
    compile(ast.parse(text), "<kernel>", "exec")
    golden(text, f"family_{name}.py.txt")


def test_the_issues_families_are_there() -> None:
    listed = " ".join(FAMILIES)
    for (
        family
    ) in "matmul gemm batched transposed broadcast prologue epilogue elementwise sum max softmax log_softmax".split():
        assert family in listed
