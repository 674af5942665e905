"""`out=`: plans write into memory that exists, without a copy, and never into an input that is still read."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tessera import Tensor, op
from tessera.errors import ArgumentError
from tessera.lazy import evaluation
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node, joined
from tessera.lazy.policy import policy

Expression = Callable[[torch.Tensor, torch.Tensor], Tensor]

EXPRESSIONS: dict[str, Expression] = {
    "one kernel": lambda a, b: op.tensor(a) + b,
    "several K blocks": op.matmul,
    "temporaries": lambda a, b: op.softmax(op.matmul(op.relu(op.matmul(a, b)), b)) * 2,
}


def operands(extent: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(extent)
    return torch.randn(extent, extent, generator=generator), torch.randn(extent, extent, generator=generator)


@contextmanager
def copies_counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Leaf]]:
    """The targets that were filled by copying a result meanwhile."""
    copied: list[Leaf] = []

    def noted(leaf: Leaf) -> torch.Tensor:
        copied.append(leaf)
        return to_torch(leaf)

    with monkeypatch.context() as patch:
        patch.setattr(evaluation, "to_torch", noted)
        yield copied


@pytest.mark.parametrize("expression", EXPRESSIONS.values(), ids=EXPRESSIONS)
def test_a_known_structure_is_written_without_a_copy(expression: Expression, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands(600 if expression is EXPRESSIONS["several K blocks"] else 40)
    expected = expression(a, b).torch()
    out = torch.full_like(expected, math.nan)
    with copies_counted(monkeypatch) as copied:
        result = expression(a, b).eval(out=out)
    assert copied == []
    assert torch.equal(out, expected)
    assert result.torch().data_ptr() == out.data_ptr()


def test_the_first_evaluation_of_a_structure_fills_the_memory_too() -> None:
    a, b = torch.randn(5, 31), torch.randn(31)
    out = torch.full((5, 31), math.nan)
    (op.tensor(a) * b - a).eval(out=out)
    assert torch.allclose(out, a * b - a)


@pytest.mark.parametrize("offset", [1, 3, 16])
def test_memory_of_any_alignment(offset: int) -> None:
    a, b = operands()
    expected = (op.tensor(a) + b).torch()
    memory = torch.full((offset + expected.numel() + 8,), math.nan)
    out = memory[offset : offset + expected.numel()].view(40, 40)
    (op.tensor(a) + b).eval(out=out)
    assert torch.equal(out, expected)
    assert memory[:offset].isnan().all()
    assert memory[-8:].isnan().all()


def test_memory_with_gaps_is_filled_by_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = operands()
    expected = (op.tensor(a) + b).torch()
    memory = torch.full((40, 80), math.nan)
    with copies_counted(monkeypatch) as copied:
        (op.tensor(a) + b).eval(out=memory[:, ::2])
    assert len(copied) == 2
    assert torch.equal(memory[:, ::2], expected)
    assert memory[:, 1::2].isnan().all()


@pytest.mark.parametrize("shift", [0, 40, 800])
def test_memory_that_is_also_read_gets_the_result_of_what_stood_there(shift: int) -> None:
    memory = torch.randn(80 * 40)
    a, b = memory[:1600].view(40, 40), torch.randn(40, 40)
    node: Tensor = op.matmul(a, b)
    expected = op.matmul(a.clone(), b).torch()
    # The door refuses such memory; what lies below is right all the same.
    evaluation.evaluate_into(node, from_torch(memory[shift : shift + 1600].view(40, 40)))
    assert torch.equal(memory[shift : shift + 1600].view(40, 40), expected)


def test_another_policy_does_not_use_the_fast_plan() -> None:
    a, b = operands()
    (op.tensor(a) + b).eval()
    out = torch.full((40, 40), math.nan)
    with policy("strict"):
        (op.tensor(a) + b).eval(out=out)
    assert torch.equal(out, a + b)


def test_several_results_are_written_at_once() -> None:
    a, b = operands()
    total, product = op.tensor(a) + b, op.tensor(a) * b
    structure, leaves = joined([total, product])
    evaluation.evaluate([Node(total.state), Node(product.state)])
    assert structure.plan is not None
    outs = [torch.full((40, 40), math.nan) for _ in range(2)]
    assert structure.plan.run_into(leaves, tuple(from_torch(out) for out in outs))
    assert torch.equal(outs[0], a + b)
    assert torch.equal(outs[1], a * b)


def test_what_does_not_fit_is_left_alone() -> None:
    a, b = operands()
    (op.tensor(a) + b).eval()
    structure, leaves = (op.tensor(a) + b).state
    assert structure.plan is not None
    for wrong in (torch.zeros(40, 41), torch.zeros(40, 40, dtype=torch.float64), torch.zeros(40, 40).t()):
        assert not structure.plan.run_into(leaves, (from_torch(wrong),))
        assert not wrong.any()


def test_tensors_evaluated_together_share_their_work() -> None:
    from tessera.compiler.entry import evaluate_together

    a, b = operands()
    shared = op.tensor(a) @ b
    first, second = evaluate_together(op.relu(shared), op.exp(-shared))
    assert not first.is_pending
    assert not second.is_pending
    assert torch.allclose(first.torch(), (a @ b).relu(), rtol=1e-4, atol=1e-4)
    assert torch.allclose(second.torch(), (-(a @ b)).exp(), rtol=1e-3)


def test_what_is_no_tensor_cannot_be_evaluated() -> None:
    from tessera.compiler.entry import evaluate_together

    with pytest.raises(ArgumentError, match="a str is nothing to evaluate"):
        evaluate_together("a")  # type: ignore[type-var]
