"""Evaluation: results replace expressions, inputs are checked, threads do not disturb each other."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy
import pytest
import torch

from tessera import op
from tessera.errors import CompileError, InputMutatedError
from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node
from tessera.ops import oracle


class CountingEvaluator:
    """The reference evaluator; remembers how many nodes came with each call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def __call__(self, nodes: Sequence[Node]) -> None:
        self.calls.append(len(nodes))
        oracle.evaluate(nodes)


@pytest.fixture
def counting() -> CountingEvaluator:
    evaluator = CountingEvaluator()
    evaluation.set_evaluator(evaluator)
    return evaluator


def test_a_tensor_is_evaluated_once(counting: CountingEvaluator) -> None:
    y = op.exp(torch.zeros(3))
    assert y.eval().tolist() == [1.0, 1.0, 1.0]
    y.eval()
    y.torch()
    assert counting.calls == [1]


def test_several_are_evaluated_together_and_each_once(counting: CountingEvaluator) -> None:
    a = op.tensor(torch.ones(2))
    y, z, done = a + 1, a * 2, op.exp(a).eval()
    evaluation.evaluate([y, z, y, done, a])
    assert counting.calls == [1, 2]
    assert (y.tolist(), z.tolist()) == ([2.0, 2.0], [2.0, 2.0])


def test_live_intermediates_compute_again(counting: CountingEvaluator) -> None:
    x = op.exp(torch.zeros(2))
    y = x + 1
    y.eval()
    assert x.is_pending
    assert x.tolist() == [1.0, 1.0]
    assert counting.calls == [1, 1]


def test_a_plan_is_used_in_place_of_the_evaluator(counting: CountingEvaluator) -> None:
    answer = from_torch(torch.full((2,), 42.0))

    class Plan:
        threads = None

        def run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
            assert len(leaves) == 2
            return (answer,)

        def run_into(self, leaves: tuple[Leaf, ...], targets: tuple[Leaf, ...]) -> bool:
            return False

    a, b = op.tensor(torch.ones(2)), op.tensor(torch.ones(2))
    (a - b).structure.plan = Plan()  # type: ignore[assignment]
    assert (a - b).tolist() == [42.0, 42.0]
    third = a - b
    evaluation.evaluate([third])
    assert third.leaves == (answer,)
    assert counting.calls == []


def test_writing_to_an_input_before_evaluation_is_refused() -> None:
    x = torch.ones(3)
    y = op.exp(x)
    x.add_(1)
    with pytest.raises(InputMutatedError, match="written to after it was used") as caught:
        y.eval()
    assert caught.value.hints
    assert op.exp(x).tolist() == pytest.approx([numpy.e**2] * 3)


def test_a_view_of_a_written_tensor_is_refused_too() -> None:
    x = torch.ones(3, 3)
    y = op.tensor(x)[1:].T + 1
    x[0, 0] = 5
    with pytest.raises(InputMutatedError):
        y.eval()


def test_other_memory_of_an_input_before_evaluation_is_refused() -> None:
    """Its own may be freed, and no version counts that."""

    def freed(x: torch.Tensor) -> None:
        x.untyped_storage().resize_(0)

    for change in (lambda x: setattr(x, "data", torch.full((3, 3), 2.0)), freed):
        x = torch.ones(3, 3)
        whole, part = op.exp(x), op.tensor(x)[1:] + 1.0
        kept = op.exp(x.detach() if change is not freed else x.clone())
        change(x)
        for y in (whole, part):
            with pytest.raises(InputMutatedError, match="other memory"):
                y.eval()
        assert (kept.torch() == torch.ones(3, 3).exp()).all()


def test_writing_after_evaluation_is_free() -> None:
    x = torch.ones(3)
    y = op.exp(x).eval()
    x.zero_()
    assert y.tolist() == pytest.approx([numpy.e] * 3)


def test_inference_tensors_and_arrays_are_borrowed_without_a_check() -> None:
    with torch.inference_mode():
        x = torch.ones(3)
    array = numpy.ones(3, numpy.float32)
    y, z = op.tensor(x) + 1, op.tensor(array) + 1
    with torch.inference_mode():
        x.add_(1)
    array += 1
    assert y.tolist() == z.tolist() == [3.0, 3.0, 3.0]


def test_without_a_compiler_evaluation_says_so() -> None:
    previous = evaluation.set_evaluator(evaluation.refuse)
    try:
        with pytest.raises(CompileError, match="no compiler"):
            op.exp(torch.ones(2)).eval()
    finally:
        evaluation.set_evaluator(previous)


def test_threads_may_build_and_evaluate_the_same_expressions() -> None:
    a = op.tensor(torch.arange(8.0))
    shared = [op.exp(a) * number + a for number in (1.5, 2.5, 3.5)]
    expected = [torch.exp(a.torch()) * number + a.torch() for number in (1.5, 2.5, 3.5)]
    failures: list[str] = []

    def work() -> None:
        for round_number in range(30):
            evaluation.evaluate(shared)
            for tensor, wanted in zip(shared, expected, strict=True):
                own: Tensor = tensor - a + round_number
                if not torch.allclose(own.torch(), wanted - a.torch() + round_number):
                    failures.append(repr(own))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_a_plan_that_can_write_into_given_memory_does() -> None:
    class Plan:
        threads = None

        def run(self, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
            raise AssertionError("a result was allocated")

        def run_into(self, leaves: tuple[Leaf, ...], targets: tuple[Leaf, ...]) -> bool:
            targets[0].owner.fill_(42)
            return True

    a = op.tensor(torch.ones(2))
    (-a).structure.plan = Plan()  # type: ignore[assignment]
    out = torch.zeros(2)
    assert (-a).eval(out).tolist() == out.tolist() == [42.0, 42.0]
