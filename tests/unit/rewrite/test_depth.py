"""How deep fusion goes: long chains are cut, what reads the same is computed together, and the meaning stays."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import op
from tessera.compiler import planning
from tessera.compiler.graph.program import KernelItem
from tessera.ir.verification import verify
from tessera.ops import oracle
from tessera.ops.counting import operation_count, vector_instructions
from tessera.ops.oracle import reference
from tessera.rewrite.fusion.depth import DEPTH, instructions_of
from tessera.rewrite.passes import FuseKernelsPass, graph_passes
from tests.unit.rewrite.graphs import draw_case, evaluate, graph_operations, kernels


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30), st.sampled_from((1, 20, 60, DEPTH)))
def test_any_depth_keeps_the_meaning(seed: int, depth: int) -> None:
    case = draw_case(random.Random(seed), 20)
    expected = [reference(node) for node in case.nodes]
    for step in (*graph_passes()[:-1], FuseKernelsPass(depth=depth)):
        step.rewrite(case.module)
    verify(case.module)
    for actual, wanted in zip(evaluate(case), expected, strict=True):
        torch.testing.assert_close(actual, wanted.to(actual.dtype), rtol=1e-6, atol=1e-6, equal_nan=True)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1 << 30))
def test_no_kernel_has_more_code_than_it_may_but_single_operators(seed: int) -> None:
    case = draw_case(random.Random(seed), 30)
    for step in (*graph_passes()[:-1], FuseKernelsPass(depth=60)):
        step.rewrite(case.module)
    for kernel in kernels(case.module):
        inside = graph_operations(kernel)
        counts = [instructions_of(operation) for operation in inside]
        assert sum(counts) <= 60 or sum(count > 0 for count in counts) == 1


def test_instructions_are_those_of_bodies() -> None:
    assert vector_instructions("add", 2) == 1
    assert vector_instructions("silu", 1) == operation_count("exp", approximate=True) + operation_count("div") + 2
    assert vector_instructions("layer_norm", 3) == vector_instructions("layer_norm", 1) + 4


def test_a_chain_of_hundreds_of_operators_is_several_kernels_of_the_same_code() -> None:
    x = op.tensor(torch.randn(5, 33))
    y = x
    for _ in range(120):
        y = op.tanh(y + 0.1)
    items = [item for item in planning.program_of(y.structure).items if isinstance(item, KernelItem)]
    assert 5 <= len(items) <= 20
    torch.testing.assert_close(y.torch().double(), oracle.reference(y), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 7, 64])
def test_what_reads_the_same_tensor_is_one_kernel(rows: int) -> None:
    x, a, b = torch.randn(rows, 33), torch.randn(33), torch.randn(33)
    shared = op.tensor(x)
    first, second = op.add(shared, a), op.mul(op.sigmoid(shared), b)
    joint = op.concat([first, second], axis=0)
    items = [item for item in planning.program_of(joint.structure).items if isinstance(item, KernelItem)]
    assert len(items) == 1
    torch.testing.assert_close(joint.torch(), torch.cat([x + a, torch.sigmoid(x) * b]))


def test_operands_that_are_loaded_count() -> None:
    total = op.tensor(torch.randn(7))
    for _ in range(DEPTH * 3 // 4):
        total = total + op.tensor(torch.randn(7))
    items = [item for item in planning.program_of(total.structure).items if isinstance(item, KernelItem)]
    assert len(items) > 1
