"""Numbers of elements, random bits and what is walked backwards, compiled for GPUs that are not there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera import op, target
from tessera.compiler.device.gpu import gpu_kernels

pytest.importorskip("triton", reason="the extra `triton` is not installed")

from tessera.backend.contract import StaticFacts

FUNCTIONS: dict[str, Callable[..., object]] = {
    "dropout": lambda x: op.dropout(op.gelu(x), 0.1, 3) + x,
    "backwards": lambda x: op.flip(x, 1) * 2,
    "rope": op.rope,
}


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
@pytest.mark.parametrize("gpu", ["sm90", "gfx942"])
def test_kernels_compile_without_spills(name: str, gpu: str) -> None:
    kernels = gpu_kernels(FUNCTIONS[name], (64, 256), "fp32", target.gpu(gpu))
    for kernel in kernels:
        assert isinstance(kernel.facts, StaticFacts), kernel.facts
        assert kernel.facts.spill_bytes == 0
    assert any("tl.store" in kernel.facts.text for kernel in kernels if isinstance(kernel.facts, StaticFacts))
