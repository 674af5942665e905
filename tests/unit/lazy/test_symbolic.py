"""Symbolic forms: which structures one program serves."""

from __future__ import annotations

import torch

from tessera import op
from tessera.handle import Tensor
from tessera.lazy.structures.symbolic import SymbolicForm, symbolic_form


def layer(rows: int, columns: int, inner: int = 5) -> Tensor:
    x, w, b = torch.randn(rows, inner), torch.randn(inner, columns), torch.randn(columns)
    return op.gelu(op.matmul(x, w) + b)


def form(tensor: Tensor) -> SymbolicForm:
    return symbolic_form(tensor.structure)


def test_extents_are_run_time_values() -> None:
    forms = {form(layer(length, 7)) for length in range(2, 100)}
    assert len(forms) == 1
    assert form(layer(0, 7)) in forms


def test_an_extent_of_one_is_a_form_of_its_own() -> None:
    assert form(layer(1, 7)) is not form(layer(2, 7))
    row, matrix = torch.randn(1, 4), torch.randn(3, 4)
    assert form(op.add(row, matrix)) is not form(op.add(matrix, matrix.clone()))


def test_nodes_correspond_to_the_post_order() -> None:
    tensor = layer(3, 7)
    order, nodes = tensor.structure.post_order(), form(tensor).nodes
    assert [node.operands for node in nodes] == [occurrence.operands for occurrence in order]
    assert [node.operator for node in nodes] == [occurrence.structure.operator for occurrence in order]
    assert nodes[-1].named_attributes == {"approximate": "none"}


def test_only_the_class_of_a_stride_counts() -> None:
    wide = torch.randn(6, 64)
    assert form(op.exp(wide[:, :8])) is form(op.exp(wide[:, :16]))
    assert form(op.exp(wide)) is not form(op.exp(wide[:, ::2]))
    assert form(op.exp(wide)) is not form(op.exp(wide.T))
    assert form(op.exp(wide[:1].expand(5, 64))).nodes[0].strides == (0, 1)


def test_dtypes_and_literals_count_and_numbers_do_not() -> None:
    x = torch.randn(3, 4)
    assert form(op.tensor(x) * 3.25) is form(op.tensor(x) * 3.5)
    assert form(op.tensor(x) * 2) is not form(op.tensor(x) * 0.5)
    assert form(op.exp(x)) is not form(op.exp(x.double()))
