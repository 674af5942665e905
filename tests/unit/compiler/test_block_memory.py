"""What a whole block holds at one time: its widest two tensors, in memory that its steps use one after another."""

from __future__ import annotations

import pytest
import torch

import tessera
from examples import gpt2_block, llama_block
from tessera.runtime.plans.plan import BoundPlan

TOKENS, WIDTH, HEADS = 32, 128, 4


def _plan(result: tessera.Tensor) -> BoundPlan:
    structure = result.state[0]
    result.eval()
    plan = structure.plan
    assert isinstance(plan, BoundPlan)
    return plan


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_gpt2_block_holds_its_hidden_layer_and_the_sum_beside_it(dtype: torch.dtype) -> None:
    weights = gpt2_block.constants(gpt2_block.random_block(WIDTH, HEADS, dtype))
    plan = _plan(gpt2_block.block(torch.randn(TOKENS, WIDTH).to(dtype), weights, HEADS))
    # gelu's operand, four times as wide, and what is added to the last product; nothing else is alive then.
    assert plan.arena_bytes <= (4 + 1) * TOKENS * WIDTH * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_llama_block_holds_gate_and_up_and_what_they_are_made_of(dtype: torch.dtype) -> None:
    hidden = 3 * WIDTH
    module = llama_block.random_block(WIDTH, HEADS, 2, hidden, TOKENS, dtype)
    x = torch.randn(TOKENS, WIDTH).to(dtype)
    plan = _plan(llama_block.block(x, llama_block.constants(module), module.size))
    # up, which the product of gate is multiplied by, that product's result, the norm they are made of, and the sum.
    assert plan.arena_bytes <= (2 * hidden + 2 * WIDTH) * TOKENS * dtype.itemsize


def test_a_model_of_many_blocks_holds_no_more_than_one() -> None:
    weights = gpt2_block.constants(gpt2_block.random_block(WIDTH, HEADS))
    x = torch.randn(TOKENS, WIDTH)
    one = _plan(gpt2_block.block(x, weights, HEADS)).arena_bytes
    result = gpt2_block.block(x, weights, HEADS)
    for _ in range(3):
        result = gpt2_block.block(result, weights, HEADS)
    # The input of a block in the middle is a temporary too.
    assert _plan(result).arena_bytes <= one + TOKENS * WIDTH * 4
