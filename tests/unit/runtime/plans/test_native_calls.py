"""A plan is one native call, however many kernels it runs, and being watched changes nothing about it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import Tensor, op, profiler
from tessera.runtime.plans import native


class CountedDriver:
    """The driver, and how often it was called."""

    def __init__(self, driver: native.PlanDriver) -> None:
        self._run: Callable[[int], None] = driver.run
        self.calls = 0

    def run(self, frame: int) -> None:
        self.calls += 1
        self._run(frame)


def network(x: Tensor, weight: Tensor) -> Tensor:
    hidden = x
    for _ in range(3):
        hidden = op.relu(op.softmax(hidden @ weight) - 0.01)
    return hidden


def operands(rows: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(rows)
    return op.tensor(torch.randn(rows, 24, generator=generator)), op.tensor(torch.randn(24, 24, generator=generator))


def test_a_plan_of_many_kernels_is_one_native_call(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = CountedDriver(native.driver())
    monkeypatch.setattr(native, "driver", lambda: counted)
    x, weight = operands(37)
    for repeat in range(3):
        network(x, weight).eval()
        assert counted.calls == repeat + 1
    plan = network(x, weight).structure.plan
    assert plan is not None
    assert len(plan.steps) == 6  # type: ignore[attr-defined]


def test_profiling_changes_neither_results_nor_plans() -> None:
    x, weight = operands(38)
    before = network(x, weight).torch()
    plan = network(x, weight).structure.plan
    with profiler.session():
        during = network(x, weight).torch()
    after = network(x, weight).torch()
    assert network(x, weight).structure.plan is plan
    assert torch.equal(before, during)
    assert torch.equal(before, after)
