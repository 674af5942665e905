"""What must hold of rewriting and fusion for any graph: meaning, coverage, order, and values read as they lie."""

from __future__ import annotations

import random
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import BlockArgument

from tessera.ir.verification import verify
from tessera.ops.oracle import reference
from tessera.rewrite.fusion.alignment import align_region
from tessera.rewrite.fusion.kernels import UNLIMITED
from tessera.rewrite.passes import FuseKernelsPass, RewritePass, graph_passes
from tests.unit.rewrite.graphs import Case, draw_case, evaluate, graph_operations, kernels, names_in

SEEDS = st.integers(0, 1 << 30)
LIMITS = st.sampled_from((UNLIMITED, UNLIMITED, 1, 2, 3))
LAYOUTS = {"reshape", "transpose", "broadcast_to", "slice", "concat"}


def drawn(seed: int, most: int = 24) -> Case:
    draw = random.Random(seed)
    return draw_case(draw, draw.randrange(1, most))


def assert_meaning(case: Case, expected: list[torch.Tensor], step: RewritePass) -> None:
    for actual, wanted in zip(evaluate(case), expected, strict=True):
        assert actual.shape == wanted.shape, f"after {step}"
        torch.testing.assert_close(actual, wanted.to(actual.dtype), rtol=1e-6, atol=1e-6, equal_nan=True)


@settings(max_examples=150)
@given(SEEDS, LIMITS)
def test_every_pass_keeps_the_meaning_and_leaves_sound_ir(seed: int, limit: int) -> None:
    case = drawn(seed)
    expected = [reference(node) for node in case.nodes]
    for step in graph_passes(limit):
        step.rewrite(case.module)
        # Values are defined before their uses: kernels that need each other cannot be put in such an order.
        verify(case.module)
        assert_meaning(case, expected, step)


@settings(max_examples=150)
@given(SEEDS, LIMITS)
def test_fusion_covers_every_operation_exactly_once(seed: int, limit: int) -> None:
    case = drawn(seed)
    *before, fusion = graph_passes(limit)
    for step in before:
        step.rewrite(case.module)
    operations = Counter(op.operator for op in graph_operations(case.module) if op.operator != "constant")
    fusion.rewrite(case.module)
    inside = Counter(name for kernel in kernels(case.module) for name in names_in(kernel) if name != "constant")
    beside = Counter(op.operator for op in case.function.body.block.ops if op in graph_operations(case.module))
    assert inside + beside == operations
    assert set(beside) <= LAYOUTS
    assert not set(inside) & LAYOUTS


@given(SEEDS, st.sampled_from((1, 2, 3)))
def test_no_kernel_is_larger_than_the_limit(seed: int, limit: int) -> None:
    case = drawn(seed)
    for step in graph_passes(limit):
        step.rewrite(case.module)
    for kernel in kernels(case.module):
        assert len([name for name in names_in(kernel) if name != "constant"]) <= limit


@given(SEEDS)
def test_values_inside_a_kernel_are_read_as_they_lie(seed: int) -> None:
    case = drawn(seed)
    for step in graph_passes():
        step.rewrite(case.module)
    for kernel in kernels(case.module):
        alignments = align_region(kernel)
        for (operation, index), wanted in alignments.operands.items():
            operand = operation.inputs[index]
            if isinstance(operand, BlockArgument) or operand not in alignments.results:
                continue
            extents = operand.type.get_shape()  # type: ignore[attr-defined]
            for extent, lies, read in zip(extents, alignments.results[operand], wanted, strict=True):
                assert extent == 1 or lies == read, f"{operation.operator} in {kernel.sym_name.data}"


@given(SEEDS)
def test_kernels_have_at_most_one_product_and_one_reduced_range(seed: int) -> None:
    case = drawn(seed)
    for step in graph_passes():
        step.rewrite(case.module)
    for kernel in kernels(case.module):
        products = [name for name in names_in(kernel) if name == "matmul"]
        assert len(products) == (kernel.family.data == "contraction")
        assert ("reduced" in kernel.attributes) <= (kernel.family.data != "contraction")


@given(SEEDS)
def test_rewriting_is_done_when_it_ends(seed: int) -> None:
    case = drawn(seed)
    *passes, _ = graph_passes()
    for step in passes:
        step.rewrite(case.module)
    assert [firing for step in passes[:2] for firing in step.rewrite(case.module)] == []


@pytest.mark.parametrize("operations", [400])
def test_large_graphs_fuse(operations: int) -> None:
    case = draw_case(random.Random(1), operations)
    for step in graph_passes():
        step.rewrite(case.module)
    verify(case.module)
    assert kernels(case.module)


def test_without_fusion_every_operation_is_a_kernel() -> None:
    case = drawn(7)
    FuseKernelsPass(1).rewrite(case.module)
    for kernel in kernels(case.module):
        assert len([name for name in names_in(kernel) if name != "constant"]) == 1
