"""What users may say of a compilation: options and modes, what is refused, and what each has done."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tessera.torch  # noqa: F401 - the backend has its name
from tessera.errors import ArgumentError
from tessera.integrations.torch.options import options_of
from tessera.integrations.torch.partitions import binding
from tessera.lazy import evaluation
from tessera.lazy.policy import Policy, current_policy
from tessera.ops import oracle


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"fast": True}, "'fast'"),
        ({"fallback": "never"}, "'error'"),
        ({"freeze": 1}, "True or False"),
        ({"most_partitions": -1}, "a number"),
        ({"random": "dice"}, "'philox'"),
        ({"math": "bf16"}, "torch.autocast"),
        ({"math": "tf32", "numerics": "strict"}, "'deterministic'"),
        ({"tune": "off"}, "TESSERA_TUNE_SHIPPED=0"),
        ({"tune": 0}, "a positive number of seconds"),
        ({"tune": True}, "a positive number of seconds"),
    ],
    ids=str,
)
def test_options_that_there_are_not(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match="options: ") as failure:
        options_of(options)
    assert said in str(failure.value)


def test_what_is_wrong_with_options_or_mode_reaches_users() -> None:
    for asked in ({"options": {"fast": True}}, {"mode": "fastest"}):
        with pytest.raises(Exception, match=r"E_ARGUMENT: (options|mode)") as failure:
            torch.compile(lambda x: x + 1, backend="tessera", **asked)(torch.ones(2))
        assert isinstance(failure.value, ArgumentError | torch._dynamo.exc.BackendCompilerFailed)


@pytest.mark.parametrize(
    ("asked", "budgets"),
    [
        ({"mode": "max-autotune"}, [None]),
        ({"options": {"tune": 2}}, [2.0]),
        ({"mode": "reduce-overhead"}, []),
        ({"options": {"tune": "cached"}}, []),
    ],
    ids=str,
)
def test_kernels_are_measured_once_for_each_shape_where_that_is_asked_for(
    asked: dict[str, Any], budgets: list[float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float | None] = []
    monkeypatch.setattr(binding, "tune", lambda structure, budget_s: given.append(budget_s))
    double = torch.compile(lambda x: torch.softmax(x * 2, -1), backend="tessera", **asked)
    for _ in range(2):
        double(torch.ones(3, 4))
    assert given == budgets


def test_tf32_is_a_policy_of_the_graph_alone() -> None:
    found: list[Policy] = []

    def note(nodes: Any) -> None:
        found.append(current_policy())
        oracle.evaluate(nodes)

    multiply = torch.compile(lambda x: x @ x + 0.75, backend="tessera", options={"math": "tf32"})
    previous = evaluation.set_evaluator(note)
    try:
        multiply(torch.ones(3, 3))
    finally:
        evaluation.set_evaluator(previous)
    assert found == [Policy("fast", tf32=True)]
    assert current_policy() == Policy()
