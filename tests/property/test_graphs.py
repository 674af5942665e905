"""Random graphs: whatever the compiler rewrites and fuses, the result is that of the operators one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tessera import grad, op
from tessera.compiler import pipeline, planning
from tessera.dtypes import DType, fp32, fp64
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.structures import interning, symbolic
from tessera.ops import OPERATORS
from tessera.rewrite.passes import graph_passes
from tests.property.checking import evaluated, evaluated_together, reference
from tests.property.graphs import Graph
from tests.whole import examples

TOLERANCE = {"fp64": 1e-11, "fp32": 2e-4}
"""Of the largest element: errors of up to a dozen operators, each of which keeps them within its own."""

drawn = settings(
    max_examples=examples(12, 25), suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


def assert_like(result: torch.Tensor, expected: torch.Tensor, dtype: DType) -> None:
    """Asserts that a result is within the tolerance of a graph."""
    assert tuple(result.shape) == tuple(expected.shape)
    assert result.dtype == dtype.torch
    if not expected.numel():
        return
    assert bool(expected.isfinite().all())
    error = (result.double() - expected).abs().max()
    assert float(error) <= TOLERANCE[dtype.name] * max(1.0, float(expected.abs().max()))


@contextmanager
def without_fusion() -> Iterator[None]:
    """Every operator is a kernel of its own; what was compiled before is forgotten, before and after."""
    _forget()
    with patch.object(planning, "graph_passes", lambda idioms: graph_passes(1, idioms=0)):
        yield
    _forget()


def _forget() -> None:
    pipeline.forget_plans()
    interning.forget_structures(keep_plans=False)
    symbolic._forms.clear()


@drawn
@given(data=st.data())
@pytest.mark.parametrize("dtype", [fp64, fp32], ids=str)
def test_compiled_graph_equals_its_operators(dtype: DType, data: st.DataObject) -> None:
    graph = Graph(data.draw, dtype, smooth=dtype is fp32)
    root = graph.grow(data.draw(st.integers(2, 12)))
    assert_like(evaluated(root), reference(root), dtype)


@drawn
@given(data=st.data())
def test_several_roots_at_once_equal_each_alone(data: st.DataObject) -> None:
    graph = Graph(data.draw, fp64, smooth=False)
    graph.grow(data.draw(st.integers(3, 9)))
    pending = [value for value in graph.values if value.is_pending]
    roots = data.draw(st.lists(st.sampled_from(pending), min_size=2, max_size=4, unique_by=id))
    expected = [reference(root) for root in roots]
    for result, wanted in zip(evaluated_together(roots), expected, strict=True):
        assert_like(result, wanted, fp64)


@settings(max_examples=examples(6, 12), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_fusion_changes_nothing(data: st.DataObject) -> None:
    graph = Graph(data.draw, fp64, smooth=False)
    root = graph.grow(data.draw(st.integers(2, 8)))
    again = Tensor(root.state)
    fused = root.torch()
    with without_fusion():
        single = again.torch()
    assert_like(fused, single.double(), fp64)


@drawn
@given(data=st.data())
def test_gradients_equal_torchs(data: st.DataObject) -> None:
    graph = Graph(data.draw, fp64, smooth=True)
    arguments = list(graph.values)

    def function(*inputs: Tensor) -> Tensor:
        graph.values = list(inputs)
        return graph.grow(data.draw(st.integers(1, 6))).sum()

    value, gradients = grad.value_and_grad(function, range(len(graph.inputs)))(*arguments)
    inputs = [tensor.clone().requires_grad_() for tensor in graph.inputs]
    torch.autograd.backward(_replayed(value, arguments, inputs))
    for result, tensor in zip(evaluated_together(list(gradients)), inputs, strict=True):
        assert_like(result, torch.zeros_like(tensor) if tensor.grad is None else tensor.grad, fp64)


def _replayed(root: Tensor, leaves: list[Tensor], inputs: list[torch.Tensor]) -> torch.Tensor:
    """The value of a graph computed by torch from other tensors in place of its leaves: autograd follows."""
    known = {leaf.leaves[0]: tensor for leaf, tensor in zip(leaves, inputs, strict=True)}
    values: list[torch.Tensor] = []
    for below, operands, leaf in root.structure.post_order():
        if leaf is not None:
            own = root.leaves[leaf]
            values.append(known[own] if own in known else torch.tensor(own.owner, dtype=torch.float64))
        elif below.operator is None:
            values.append(torch.tensor(below.value, dtype=torch.float64))
        else:
            record = OPERATORS[below.operator.name]
            values.append(record.reference(*[values[operand] for operand in operands], **below.named_attributes))
    return values[-1]


def test_an_operand_used_twice_is_read_once_and_right() -> None:
    x = op.tensor(torch.randn(33, 17, dtype=torch.float64))
    diamond = op.tanh(x)
    root = op.exp(diamond) * diamond + op.softmax(diamond) - diamond.sum(0)
    assert_like(evaluated(root), reference(root), fp64)


def test_a_root_that_another_root_needs_is_stored_too() -> None:
    x = as_node(torch.randn(16, 16))
    below = op.gelu(x)
    above = op.matmul(below, below) + 1.0
    first, second = evaluated_together([below, above])
    assert_like(first, reference(op.gelu(x)), fp32)
    assert_like(second, reference(op.matmul(op.gelu(x), op.gelu(x)) + 1.0), fp32)


def test_gradients_follow_views_of_an_argument() -> None:
    x = torch.randn(3, 4, dtype=torch.float64)
    gradient = grad.grad(lambda x: (x.T @ x).sum() + x[1:, ::2].sum() * 3.0 + x.reshape((-1,))[5])(x)
    expected = x.sum(1, keepdim=True).expand(3, 4) * 2
    expected[1:, ::2] += 3.0
    expected[1, 1] += 1.0
    assert_like(gradient.torch(), expected, fp64)


def test_gradients_by_the_same_tensor_twice_are_apart() -> None:
    x = op.tensor(torch.randn(5, dtype=torch.float64))
    first, second = grad.grad(lambda a, b: (a * 2.0 + b * 3.0).sum(), (0, 1))(x, x)
    assert first.tolist() == [2.0] * 5
    assert second.tolist() == [3.0] * 5


def test_vjp_refuses_an_output_that_reads_a_view_of_an_input() -> None:
    x = op.tensor(torch.randn(3, 4))
    with pytest.raises(ArgumentError, match=r"a view of shape \(4, 3\)"):
        grad.vjp((x.T @ x).sum(), [x])
