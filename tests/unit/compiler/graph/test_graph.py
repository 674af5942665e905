"""Graph IR of a form: operations, the names of extents, and where their values are found."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from xdsl.dialects.builtin import ArrayAttr
from xdsl.dialects.func import FuncOp

from tessera import op
from tessera.compiler.graph.building import BuiltGraph, build_graph
from tessera.handle import Tensor
from tessera.ir.attributes import names_of
from tessera.ir.graph.operations import GraphOperation
from tessera.ir.parsing import parse, print_module
from tessera.lazy.structures.symbolic import symbolic_form

MANY = st.integers(2, 7)


def graph_of(tensor: Tensor) -> BuiltGraph:
    return build_graph(symbolic_form(tensor.structure))


def operations(graph: BuiltGraph) -> list[GraphOperation]:
    (function,) = graph.module.ops
    assert isinstance(function, FuncOp)
    return [operation for operation in function.body.block.ops if isinstance(operation, GraphOperation)]


def dims(operation: GraphOperation) -> tuple[str, ...]:
    return names_of(operation.attributes["dims"])


def argument_dims(graph: BuiltGraph) -> list[tuple[str, ...]]:
    (function,) = graph.module.ops
    names = function.attributes["argument_dims"]
    assert isinstance(names, ArrayAttr)
    return [names_of(labels) for labels in names.data]


def test_the_inner_dimensions_of_a_product_share_a_name() -> None:
    graph = graph_of(op.matmul(torch.ones(3, 4), torch.ones(4, 5)))
    (rows, inner), (other, columns) = argument_dims(graph)
    assert inner == other
    assert len({rows, inner, columns}) == 3
    assert dims(operations(graph)[0]) == (rows, columns)


def test_equal_extents_that_need_not_be_equal_have_names_of_their_own() -> None:
    graph = graph_of(op.matmul(torch.ones(4, 4), torch.ones(4, 4)))
    assert len(graph.extents) == 3


def test_a_dimension_that_broadcasts_is_a_static_1() -> None:
    graph = graph_of(op.tensor(torch.ones(3, 1)) + torch.ones(3, 5))
    first, second = argument_dims(graph)
    assert first == (second[0], "1")
    assert "tensor<?x1xf32>" in print_module(graph.module)


def test_reduced_dimensions_go_or_stay_as_1() -> None:
    x = torch.ones(2, 3, 4)
    gone, kept = graph_of(op.sum(x, axis=1)), graph_of(op.sum(x, axis=1, keepdims=True))
    (names,) = argument_dims(gone)
    assert dims(operations(gone)[-1]) == (names[0], names[2])
    (names,) = argument_dims(kept)
    assert dims(operations(kept)[-1]) == (names[0], "1", names[2])


def test_a_transpose_carries_the_names_along() -> None:
    graph = graph_of(op.transpose(op.exp(torch.ones(2, 3, 4)), (2, 0, 1)))
    (names,) = argument_dims(graph)
    assert dims(operations(graph)[-1]) == (names[2], names[0], names[1])


@pytest.mark.parametrize("number", [0.5, -1, 2])
def test_numbers_that_rewrites_know_are_constants_of_the_graph(number: float) -> None:
    graph = graph_of(op.tensor(torch.ones(3)) * number)
    (constant,) = [operation for operation in operations(graph) if operation.operator == "constant"]
    assert constant.attribute("value") == number


@pytest.mark.parametrize("number", [0.7, -0.0, math.inf])
def test_other_numbers_are_arguments(number: float) -> None:
    graph = graph_of(op.tensor(torch.ones(3)) * number)
    assert [operation.operator for operation in operations(graph)] == ["mul"]
    assert [len(names) for names in argument_dims(graph)] == [1, 0]


EXPRESSIONS: dict[str, Callable[[int, int, int], Tensor]] = {
    "fused": lambda m, n, k: op.gelu(op.matmul(torch.ones(m, k), torch.ones(k, n)) + torch.ones(n)),
    "batched": lambda m, n, k: op.matmul(torch.ones(m, 1, n, k), torch.ones(n, k, m)),
    "vectors": lambda m, n, k: op.matmul(torch.ones(k), torch.ones(k)) + torch.ones(m),
    "reduced": lambda m, n, k: op.sum(op.tensor(torch.ones(m, n, k)) * torch.ones(k), axis=(0, 2)),
    "rows": lambda m, n, k: op.layer_norm(torch.ones(m, n), torch.ones(n), torch.ones(n), eps=1e-5),
    "layout": lambda m, n, k: op.concat([op.tensor(torch.ones(m, n)).T, torch.ones(n, k)], axis=1)[:, 1:],
    "reshaped": lambda m, n, k: op.reshape(op.tensor(torch.ones(m, n)) + 1.0, (n, m)) * torch.ones(n, m),
}


@pytest.mark.parametrize("name", EXPRESSIONS)
@given(m=MANY, n=MANY, k=MANY)
def test_every_extent_of_every_operation_is_found_where_its_name_says(name: str, m: int, n: int, k: int) -> None:
    tensor = EXPRESSIONS[name](m, n, k)
    graph = graph_of(tensor)
    order = tensor.structure.post_order()
    extents = {label: order[node].structure.shape[axis] for label, (node, axis) in graph.extents.items()} | {"1": 1}
    named = [*argument_dims(graph), *(dims(operation) for operation in operations(graph))]
    leaves = [order[index].structure.shape for index in graph.leaves]
    inner = [o.structure.shape for index, o in enumerate(order) if index not in graph.leaves]
    assert [tuple(extents[label] for label in labels) for labels in named] == [*leaves, *inner]


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_graph_ir_verifies_and_round_trips(name: str) -> None:
    text = print_module(graph_of(EXPRESSIONS[name](3, 4, 5)).module)
    assert print_module(parse(text)) == text
