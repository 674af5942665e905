"""A call runs on the number of threads that the program has now, however many it had when its plan was bound."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tessera import Tensor, numerics, op, profiler, settings, stream
from tessera.compiler import pipeline
from tests.threads import torch_threads

MANY = torch.randn(512, 4096)


@pytest.fixture(autouse=True)
def _plans_of_its_own() -> Iterator[None]:
    pipeline.forget_plans()
    yield
    pipeline.forget_plans()


@op.kernel
def shifted(x: Tensor) -> Tensor:
    return op.exp(op.tanh(x))


def workers_of_a_call() -> int:
    """Workers of the kernel that one call runs, as the profiler records them."""
    with profiler.session() as session:
        shifted(MANY).eval()  # type: ignore[arg-type]
    return max(record.workers for record in session.records())


def workers_of(result: Tensor) -> int:
    """Workers of the plan that evaluates a pending result."""
    structure = result.structure
    result.eval()
    assert structure.plan is not None
    return structure.plan.workers  # type: ignore[attr-defined, no-any-return]


def test_a_call_follows_the_number_of_threads_up_and_down() -> None:
    for count in (1, 2, 1, 3, 2):
        with torch_threads(count):
            assert workers_of_a_call() == count
            assert workers_of(op.exp(MANY) * 2.0) == count


def test_a_change_of_the_setting_counts_as_well() -> None:
    for count in (1, 2, 1):
        with settings.override(threads=count):
            assert workers_of_a_call() == count
    with torch_threads(1):
        assert workers_of_a_call() == 1


def test_the_setting_comes_before_torchs_number() -> None:
    with settings.override(threads=2):
        for count in (1, 3):
            with torch_threads(count):
                assert workers_of_a_call() == 2


def test_known_numbers_of_threads_do_not_bind_again() -> None:
    x = op.tensor(MANY)
    plans = []
    for count in (1, 2, 1, 2):
        with torch_threads(count):
            structure = (-x).structure
            (-x).eval()
            plans.append(structure.plan)
    assert plans[0] is plans[2]
    assert plans[1] is plans[3]
    assert plans[0] is not plans[1]


@pytest.mark.parametrize("mode", ["fast", "deterministic", "strict"])
def test_results_under_every_policy_follow_too(mode: numerics.Mode) -> None:
    for count in (1, 2, 1):
        with torch_threads(count), numerics.policy(mode):
            assert workers_of_a_call() == count


def test_given_memory_and_streams_follow_too() -> None:
    out = torch.empty_like(MANY)
    queue = stream.create()
    for count in (1, 2, 1):
        with torch_threads(count), profiler.session() as session:
            op.sigmoid(MANY).eval(out)
            op.tanh(MANY).eval(stream=queue).torch()
        assert {record.workers for record in session.records() if record.workers} == {count}


def test_threads_with_numbers_of_their_own_do_not_disturb_each_other() -> None:
    x = op.tensor(MANY)

    def counted(count: int) -> set[int]:
        torch.set_num_threads(count)  # of this thread, and of threads that start later
        found = set()
        for _ in range(20):
            found.add(pipeline.plan((op.exp(x) - 3.0).structure).threads)
            (op.exp(x) - 3.0).eval()
        return {number for number in found if number is not None}

    with torch_threads(torch.get_num_threads()), ThreadPoolExecutor(2) as pool:
        running = [pool.submit(counted, 1), pool.submit(counted, 2)]
        assert [each.result() for each in running] == [{1}, {2}]
