"""Results made in a session and never read: each is evaluated once, where it was made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import Tensor, autotune, op, profile
from tessera.lazy import evaluation
from tessera.lazy.node import Node, State
from tessera.ops import oracle
from tessera.profiling.session import sessions
from tessera.profiling.session.pending import PRUNE_FROM, _add_parts
from tessera.runtime.memory.buffers import memory_stats


@pytest.fixture
def evaluated() -> Iterator[list[list[str]]]:
    """The names of the operators at the roots of each evaluation, which the reference evaluator does."""
    calls: list[list[str]] = []

    def evaluate(nodes: Sequence[Node]) -> None:
        operators = [node.structure.operator for node in nodes]
        calls.append([each.name for each in operators if each is not None])
        oracle.evaluate(nodes)

    previous = evaluation.set_evaluator(evaluate)
    yield calls
    evaluation.set_evaluator(previous)


def ones() -> torch.Tensor:
    return torch.ones(4, 4)


def test_what_tracing_makes_is_no_result(evaluated: list[list[str]]) -> None:
    @op.kernel
    def scaled(x: Tensor) -> Tensor:
        doubled: Tensor = op.exp(x) * 2.0
        return doubled

    with profile.session():
        autotune.load(op.matmul, (4, 4, 4))
        kept = scaled(ones())  # type: ignore[arg-type]
        with profile.region("inside"):
            autotune.load(scaled, [(4, 4)])
    assert [names for names in evaluated if "matmul" in names] == []
    torch.testing.assert_close(kept.torch(), torch.exp(ones()) * 2)


def test_dropped_result_is_evaluated_at_the_end(evaluated: list[list[str]]) -> None:
    with profile.session():
        op.matmul(ones(), ones())
        assert evaluated == []
    assert evaluated == [["matmul"]]


def test_parts_of_an_expression_are_not_evaluated_by_themselves(evaluated: list[list[str]]) -> None:
    with profile.session():
        product = op.matmul(ones(), ones())
        op.gelu(op.add(product, product))
    assert evaluated == [["gelu"]]


def test_result_that_the_program_evaluated_is_left_alone(evaluated: list[list[str]]) -> None:
    with profile.session():
        op.relu(op.matmul(ones(), ones())).eval()
        assert evaluated == [["relu"]]
    assert evaluated == [["relu"]]


def test_regions_and_marks_flush_what_was_made_before_them(evaluated: list[list[str]]) -> None:
    with profile.session() as session:
        op.exp(ones())
        with profile.region("inner"):
            assert evaluated == [["exp"]]
            op.tanh(ones())
        assert evaluated == [["exp"], ["tanh"]]
        op.erf(ones())
        session.mark("here")
        assert evaluated == [["exp"], ["tanh"], ["erf"]]


def test_results_of_other_threads_are_flushed_at_the_end(evaluated: list[list[str]]) -> None:
    with profile.session():
        thread = threading.Thread(target=lambda: op.exp(ones()))
        thread.start()
        thread.join()
        with profile.region("mine"):
            pass
        assert evaluated == []
    assert evaluated == [["exp"]]


def test_result_whose_input_was_written_to_is_counted_and_skipped(evaluated: list[list[str]]) -> None:
    skipped = sessions._pending.skipped
    x = ones()
    with profile.session():
        op.exp(x)
        x.add_(1)
        op.tanh(ones())
    assert evaluated == [["tanh"]]
    assert sessions._pending.skipped == skipped + 1


def noted() -> int:
    """Nodes that are noted for this thread."""
    return len(sessions._pending.notes(threading.get_ident()))


def test_evaluated_results_and_parts_of_later_ones_are_not_kept(evaluated: list[list[str]]) -> None:
    x = op.tensor(ones())
    with profile.session():
        for _ in range(5):
            op.exp(op.relu(op.neg(x))).eval()
            assert noted() == 0
    assert len(evaluated) == 5


def test_results_that_are_evaluated_and_dropped_give_their_memory_back() -> None:
    x = torch.randn(256, 1024)
    allocated = []
    with profile.session():
        for _ in range(12):
            op.gelu(op.add(op.mul(x, x), x)).eval()
            allocated.append(memory_stats()["allocated_bytes"])
    assert allocated[-1] - allocated[1] < x.nbytes


def test_a_result_that_is_needed_late_is_a_part_then(evaluated: list[list[str]]) -> None:
    x, y = op.tensor(ones()), op.tensor(ones())
    with profile.session():
        kept = op.tanh(x)
        for _ in range(500):
            (op.exp(y) + op.relu(x)).eval()
            assert noted() <= PRUNE_FROM
        op.neg(kept).eval()
        op.exp(y).eval()
    assert len(evaluated) == 502


_STEPS = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(["add", "exp", "eval", "drop"])))


@given(_STEPS)
def test_everything_that_is_made_is_evaluated_or_a_part_of_what_is(steps: list[tuple[int, int, str]]) -> None:
    values: list[Any] = [op.tensor(ones()), op.tensor(ones())]
    made: list[State] = []
    reached: set[State] = set()

    def evaluate(nodes: Sequence[Node]) -> None:
        for node in nodes:
            reached.add(node.state)
            _add_parts(node.state, reached)
        oracle.evaluate(nodes)

    previous = evaluation.set_evaluator(evaluate)
    try:
        with profile.session():
            for first, second, action in steps:
                a, b = values[first % len(values)], values[second % len(values)]
                if action == "eval":
                    a.eval()
                elif action == "drop":
                    values = values[-2:]
                else:
                    values.append(op.exp(a) if action == "exp" else op.add(a, b))
                    made.append(values[-1].state)
    finally:
        evaluation.set_evaluator(previous)
    assert [state for state in made if state not in reached] == []


def test_nothing_is_kept_without_a_session(evaluated: list[list[str]]) -> None:
    op.matmul(ones(), ones())
    with profile.region("alone"):
        op.exp(ones())
    assert evaluated == []
