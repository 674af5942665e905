"""A program that runs with tuning enabled: right results from the first call on, and winners after some more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tessera import autotune, numerics, op, settings, stream
from tessera.compiler.tune.warming import WarmingPlan
from tessera.handle import Tensor
from tessera.lazy.structures.structure import Structure
from tessera.runtime.plans.plan import BoundPlan
from tests import forked

SECONDS = 120.0
"""Much longer than any of this takes."""

GENERATOR = torch.Generator().manual_seed(5)


@pytest.fixture(autouse=True)
def warming(cache_dir: Path) -> Iterator[None]:
    """Tuning is on, with all the time that the program takes but brief, and knows nothing."""
    with settings.override(tune_budget_s=0.5):
        autotune.enable(True, share=1.0)
        yield
    autotune.enable(False)


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=GENERATOR)


def kind_of(structure: Structure) -> type:
    """What its plan is."""
    return type(structure.plan)


def states() -> list[str]:
    return [kernel.state for kernel in autotune.status().warming]


def test_results_are_right_from_the_first_call_to_the_winners() -> None:
    x, w = normal(48, 200), normal(200, 96)
    expected = x @ w
    first = op.matmul(x, w).eval()
    structure = op.matmul(x, w).structure
    assert kind_of(structure) is WarmingPlan
    deadline = time.monotonic() + SECONDS
    while states() != ["done"]:
        result = op.matmul(x, w).torch()
        torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)
        assert time.monotonic() < deadline
        time.sleep(0.002)  # the processes that compile and measure need processors, too
    torch.testing.assert_close(first.torch(), expected, rtol=1e-4, atol=1e-4)
    for _ in range(2):
        torch.testing.assert_close(op.matmul(x, w).torch(), expected, rtol=1e-4, atol=1e-4)
    assert kind_of(structure) is BoundPlan
    config = autotune.load(op.matmul, (48, 96, 200))
    assert (config.source, config.stale) == ("cache", ())
    assert config.measured_s is not None


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_a_fixed_order_keeps_its_bits_while_kernels_are_tuned(mode: numerics.Mode) -> None:
    x = normal(37, 1111)
    with numerics.policy(mode):
        first = op.softmax(x).torch().clone()
        for _ in range(20):
            assert torch.equal(op.softmax(x).torch(), first)
        assert autotune.wait(SECONDS)
        assert torch.equal(op.softmax(x).torch(), first)
    (kernel,) = autotune.status().warming
    assert (kernel.state, kernel.trials >= 1) == ("done", True)


def test_threads_and_streams_and_memory_of_the_user_take_part() -> None:
    x = normal(64, 300)
    expected = torch.softmax(x, -1)
    errors: list[float] = []
    queue = stream.create()

    def evaluate() -> None:
        into = torch.empty_like(x)
        for _ in range(20):
            op.softmax(x).eval(into)
            errors.append(float((into - expected).abs().max()))
            errors.append(float((op.softmax(x).torch() - expected).abs().max()))

    threads = [threading.Thread(target=evaluate) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        errors.append(float((op.softmax(x).eval(stream=queue).torch() - expected).abs().max()))
    for thread in threads:
        thread.join()
    assert autotune.wait(SECONDS)
    errors.append(float((op.softmax(x).torch() - expected).abs().max()))
    assert max(errors) < 1e-5
    assert set(states()) == {"done"}


def test_turning_it_off_leaves_plain_plans() -> None:
    x = normal(16, 32)
    lazy: Tensor = op.softmax(x)
    lazy.eval()
    autotune.enable(False)
    again = op.softmax(x)
    structure = again.structure
    again.eval()
    assert isinstance(structure.plan, BoundPlan)
    assert autotune.status().warming == ()


SCRIPT = """
import time
import torch
from tessera import autotune, op

autotune.enable(True, share=1.0)
x = torch.randn(64, 64)
while True:
    op.matmul(x, x).eval()
    time.sleep(0.002)
    (kernel,) = autotune.status().warming
    if kernel.trials > 0 or kernel.state == "done":
        break
"""


def test_a_program_that_ends_meanwhile_ends(cache_dir: Path) -> None:
    ended = forked.run(SCRIPT, timeout=SECONDS, warm=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
