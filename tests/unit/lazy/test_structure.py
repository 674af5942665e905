"""Structures: interning, leaf positions, post-order, and what the table forgets."""

from __future__ import annotations

import torch

from tessera import op
from tessera.dtypes import fp32, int64
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure


class _Plan:
    threads = None

    def run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        return leaves[:1]

    def run_into(self, leaves: tuple[Leaf, ...], targets: tuple[Leaf, ...]) -> bool:
        return False


def matrix(rows: int = 3, columns: int = 4) -> Tensor:
    return op.tensor(torch.randn(rows, columns))


def operators(structure: Structure) -> list[str]:
    return [node.structure.operator.name for node in structure.post_order() if node.structure.operator]


def test_the_same_algebra_over_equal_layouts_is_the_same_structure() -> None:
    first = op.gelu(matrix() + matrix()) * 3.7
    second = op.gelu(matrix() + matrix()) * 99.25
    assert first.structure is second.structure


def test_operand_order_attributes_and_shapes_tell_structures_apart() -> None:
    a, b = matrix(), matrix()
    assert (a - b).structure is (b - a).structure  # leaves are numbered as they come
    assert (a - b).structure is not (a - a).structure
    assert op.gelu(a).structure is not op.gelu(a, approximate="tanh").structure
    assert (a + a).structure is not (matrix(4, 4) + matrix(4, 4)).structure
    assert (a * 1).structure is not (a * 2).structure


def test_strides_matter_but_not_along_extents_of_one() -> None:
    square = torch.randn(4, 4)
    assert op.tensor(square).structure is not op.tensor(square.T).structure
    column = torch.randn(4, 1)
    assert op.tensor(column).structure is op.tensor(column.as_strided((4, 1), (1, 77))).structure


def test_leaves_are_merged_by_identity() -> None:
    a, b, c = matrix(), matrix(), matrix()
    assert (a + b + a).leaves == (*a.leaves, *b.leaves)
    left, right = a * b, b * c
    assert (left + right).leaves == (*a.leaves, *b.leaves, *c.leaves)
    assert (left + right).structure is ((c * a) + (a * b)).structure
    assert (left + right).structure is not (left + left).structure


def test_implied_casts_are_written_out_and_equal_to_explicit_ones() -> None:
    numbers = op.tensor([[1, 2], [3, 4]])
    floats = op.tensor(torch.ones(2, 2))
    mixed = numbers + floats
    assert operators(mixed.structure) == ["cast", "add"]
    assert mixed.structure is (numbers.to(fp32) + floats).structure
    assert numbers.dtype is int64


def test_post_order_lists_shared_nodes_once_and_operands_first() -> None:
    a = matrix()
    shared = op.exp(a)
    order = ((shared + shared) * shared).structure.post_order()
    assert [node.structure.operator.name for node in order if node.structure.operator] == ["exp", "add", "mul"]
    assert all(operand < index for index, node in enumerate(order) for operand in node.operands)


def test_post_order_keeps_equal_structures_over_different_leaves_apart() -> None:
    a, b = matrix(), matrix()
    order = (op.exp(a) + op.exp(b)).structure.post_order()
    assert [node.leaf for node in order if node.leaf is not None] == [0, 1]
    assert [node.structure.operator.name for node in order if node.structure.operator] == ["exp", "exp", "add"]


def test_long_chains_are_walked_without_recursion() -> None:
    a = matrix()
    x = a
    for _ in range(9_000):
        x = x + a
    assert x.structure.size == 9_000
    assert len(x.structure.post_order()) == 9_001


def test_repeated_sharing_is_counted_once() -> None:
    x, scale = matrix(), op.tensor(torch.tensor(0.5))
    for _ in range(60):
        x = x * scale + op.exp(x)  # a tree of 2 ** 60 nodes
    assert len(operators(x.structure)) == 180
    assert x.structure.size < interning.PENDING_LIMIT


def test_forgetting_keeps_planned_structures_and_what_lies_below() -> None:
    a, b = matrix(), matrix()
    planned, unplanned = (a + b).structure, (a - b).structure
    planned.plan = _Plan()  # type: ignore[assignment]
    interning.forget_structures()
    assert (a + b).structure is planned
    assert (a - b).structure is not unplanned
    # An expression that outlived the table still works.
    assert torch.equal((a + b).torch(), a.torch())


def test_tensors_read_after_forgetting_have_one_structure_wherever_they_come_from() -> None:
    values = torch.ones(5, 9)
    op.tensor(values)
    interning.forget_structures(keep_plans=False)
    assert op.tensor(values).structure is op.tensor(values.numpy()).structure


def test_the_table_is_bounded() -> None:
    a = matrix()
    for extent in range(3):
        op.tensor(torch.empty(extent + 2, 3)) + 1
    before = interning.interned_count()
    interning.forget_structures()
    assert interning.interned_count() < before
    assert torch.equal((a + 1).torch(), a.torch() + 1)


def test_literals_that_differ_in_sign_of_zero_are_different() -> None:
    assert interning.constant(0.0, fp32) is not interning.constant(-0.0, fp32)
    assert interning.constant(1, fp32) is interning.constant(1.0, fp32)
    assert interning.constant(float("nan"), fp32) is interning.constant(float("nan"), fp32)
