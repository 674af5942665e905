"""What blocks of transformers become: kernels that compute, none that copies, and attention however it is written."""

from __future__ import annotations

import pytest
import torch

import tessera
from examples import gpt2_block, llama_block
from tessera.compiler.explain.inspection import choices_of


def kernels(block: tessera.Tensor) -> list[str]:
    """The kernels that a block launches, without their numbers."""
    return [choice.subject.item.name.rpartition("_")[0] or "copy" for choice in choices_of(block.structure)]


@pytest.mark.parametrize("attention", [gpt2_block.flash, gpt2_block.algebra])
@pytest.mark.parametrize("shape", [(70, 48), (2, 70, 48)])
def test_a_gpt2_block_is_seven_kernels_and_a_scale(shape: tuple[int, ...], attention: gpt2_block.Attention) -> None:
    weights = dict(gpt2_block.random_block(width=48, heads=4).state_dict())
    found = kernels(gpt2_block.block(torch.randn(shape), weights, 4, attention))
    if attention is gpt2_block.algebra:  # queries are a part of one product, which their scale is not an epilogue of
        found.remove("mul")
    assert found == [
        "layer_norm",
        "matmul_add",
        "flash_attention",
        "matmul_add_add",
        "layer_norm",
        "matmul_add_gelu",
        "matmul_add_add",
    ]


@pytest.mark.parametrize("attention", [llama_block.flash, llama_block.algebra])
def test_a_llama_block_copies_nothing(attention: llama_block.Attention) -> None:
    module = llama_block.random_block(width=48, heads=6, kv_heads=2, hidden=80, tokens=70)
    x = torch.randn(2, 70, 48)
    found = kernels(llama_block.block(x, dict(module.state_dict()), module.size, attention))
    assert "copy" not in found
    assert found.count("flash_attention") == 1
    assert "softmax" not in found
    assert "matmul_silu_mul" in found
    assert sum(name.startswith("matmul") for name in found) == 7
