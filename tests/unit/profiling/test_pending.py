"""Results made in a session and never read: each is evaluated once, where it was made."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from tessera import Tensor, autotune, op, profile
from tessera.lazy import evaluation
from tessera.lazy.node import Node
from tessera.ops import oracle
from tessera.profiling import sessions


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
        kept = scaled(ones())
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


def test_notes_of_evaluated_results_are_dropped_in_long_sessions(evaluated: list[list[str]]) -> None:
    x = op.tensor(ones())
    with profile.session():
        for _ in range(3000):
            op.exp(x).eval()
        assert len(sessions._pending._notes[threading.get_ident()]) < 1100
    assert len(evaluated) == 3000


def test_nothing_is_kept_without_a_session(evaluated: list[list[str]]) -> None:
    op.matmul(ones(), ones())
    with profile.region("alone"):
        op.exp(ones())
    assert evaluated == []
