"""What lazy means: each sentence that the documentation promises about it, on compiled code."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import torch

import tessera
from tessera import Tensor, numerics, op, settings
from tessera.compiler import pipeline
from tessera.errors import InPlaceError, InputMutatedError, MemoryLimitError
from tessera.lazy.structures import interning
from tessera.runtime.plans.plan import BoundPlan


def test_nothing_runs_before_a_value_is_asked_for() -> None:
    memory = numpy.zeros(100, dtype=numpy.float32)
    doubled = op.tensor(memory) * 2.0
    described = (doubled.shape, doubled.dtype, doubled.strides, repr(doubled))
    memory[:] = 3.0  # arrays are borrowed: what is computed is what they hold when it is computed
    assert doubled.is_pending
    assert described[0] == (100,)
    assert doubled.tolist() == [6.0] * 100


def test_only_the_requested_roots_are_stored() -> None:
    below = op.exp(torch.zeros(4))
    above = below + 1.0
    above.eval()
    assert not above.is_pending
    assert below.is_pending
    assert below.tolist() == [1.0] * 4


def test_several_roots_are_computed_in_one_plan_and_all_stored() -> None:
    x = torch.randn(40, 40)
    product = op.matmul(x, x)
    total, scaled = product.sum(), product * 2.0
    tessera.eval(total, scaled)
    assert not total.is_pending
    assert not scaled.is_pending
    torch.testing.assert_close(scaled.torch(), x @ x * 2)
    torch.testing.assert_close(total.torch(), (x @ x).sum(), rtol=1e-4, atol=1e-3)


def test_a_value_is_computed_once() -> None:
    y = op.tensor(torch.randn(50)) + 1.0
    assert y.eval().torch().data_ptr() == y.eval().torch().data_ptr()


def test_results_are_immutable() -> None:
    y = op.tensor(torch.ones(3)) + 1.0
    with pytest.raises(InPlaceError):
        y += 1.0
    with pytest.raises(InPlaceError):
        y[0] = 5.0
    assert y.tolist() == [2.0] * 3


def test_a_torch_input_written_to_before_evaluation_is_refused_and_after_it_is_free() -> None:
    x = torch.ones(3)
    pending, done = op.tensor(x) + 1.0, (op.tensor(x) * 4.0).eval()
    x.mul_(10.0)
    for _ in range(2):  # a refused evaluation changes nothing
        with pytest.raises(InputMutatedError) as raised:
            pending.eval()
    assert raised.value.code == "E_INPUT_MUTATED"
    assert "test_laziness.py" in str(raised.value.where)
    assert done.tolist() == [4.0] * 3


def test_a_known_structure_checks_its_inputs_too() -> None:
    x = torch.ones(7)
    (op.tensor(x) - 1.0).eval()
    pending = op.tensor(x) - 1.0
    x.add_(1.0)
    with pytest.raises(InputMutatedError):
        pending.eval()


def test_writing_through_a_view_or_the_base_counts_as_writing() -> None:
    base = torch.ones(4, 4)
    of_view, of_base = op.tensor(base[1:]) + 1.0, op.tensor(base) + 1.0
    base[0, 0] = 7.0
    for pending in (of_view, of_base):
        with pytest.raises(InputMutatedError):
            pending.eval()


def test_a_result_keeps_its_inputs_alive_until_it_is_computed() -> None:
    pending = op.tensor(torch.full((1000,), 2.0)) * op.tensor(numpy.full(1000, 4.0, dtype=numpy.float32))
    filler = [torch.full((1000,), -1.0) for _ in range(50)]
    assert pending.tolist() == [8.0] * 1000
    assert len(filler) == 50


def test_a_pending_graph_is_evaluated_before_it_grows_past_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert interning.PENDING_LIMIT == 10_000
    # A tenth of it, so that the test is short: compiling takes time in proportion.
    monkeypatch.setattr(interning, "PENDING_LIMIT", 200)
    y = op.tensor(torch.zeros(5))
    largest = 0
    for number in range(500):
        y = op.tanh(y) + 0.5 if number % 10 else y.reshape((5, 1)).reshape((5,)) + 0.25
        largest = max(largest, y.structure.size)
    assert 100 < largest <= 200
    expected = torch.zeros(5)
    for number in range(500):
        expected = torch.tanh(expected) + 0.5 if number % 10 else expected + 0.25
    torch.testing.assert_close(y.torch(), expected)


def in_threads(work: Callable[[int], object], count: int) -> list[object]:
    """What `work(0)` ... `work(count - 1)` give in threads that start together. Raises what one of them raises."""
    barrier = threading.Barrier(count)

    def run(number: int) -> object:
        barrier.wait()
        return work(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_threads_may_evaluate_the_same_node() -> None:
    x = torch.randn(60, 60)
    for _ in range(5):
        node = op.softmax(op.matmul(x, x)) + 1.0
        results = in_threads(lambda _, node=node: node.torch().clone(), 8)  # type: ignore[misc]
        for result in results:
            assert isinstance(result, torch.Tensor)
            torch.testing.assert_close(result, torch.softmax(x @ x, -1) + 1, rtol=1e-4, atol=1e-5)


def test_threads_may_compile_different_structures_at_once() -> None:
    x = torch.rand(9, 13, dtype=torch.float64) + 0.5
    functions: list[tuple[Callable[[Tensor], Tensor], Callable[[torch.Tensor], torch.Tensor]]] = [
        (lambda t: op.exp(t) - op.sum(t, 0), lambda t: t.exp() - t.sum(0)),
        (lambda t: op.log(t) * 3.5, lambda t: t.log() * 3.5),
        (lambda t: op.matmul(t, t.T), lambda t: t @ t.T),
        (lambda t: op.mean(t, 1), lambda t: t.mean(1)),
        (lambda t: op.concat([t, t * 2.0], 1), lambda t: torch.cat([t, t * 2], 1)),
        (op.log_softmax, lambda t: torch.log_softmax(t, -1)),
    ]

    def work(number: int) -> None:
        ours, theirs = functions[number % len(functions)]
        for _ in range(20):
            torch.testing.assert_close(ours(op.tensor(x)).torch(), theirs(x))

    assert len(in_threads(work, 2 * len(functions))) == 12


def test_other_python_threads_run_during_a_long_kernel() -> None:
    x = torch.randn(1536, 1536, dtype=torch.float64)
    op.matmul(x, x).eval()
    wakes, stop = [0], threading.Event()

    def count() -> None:
        while not stop.is_set():
            time.sleep(0.0005)
            wakes[0] += 1

    thread = threading.Thread(target=count)
    thread.start()
    pending = [op.matmul(x, x) for _ in range(3)]
    before = wakes[0]
    for product in pending:
        product.eval()
    during = wakes[0] - before
    stop.set()
    thread.join()
    # Three products keep the lock for less than a switch interval each unless the kernel holds it throughout.
    assert during > 10


def test_the_plan_cache_is_bounded_and_forgets_nothing_that_matters() -> None:
    x = torch.randn(64)
    nodes: list[Tensor] = []
    with settings.override(plan_cache_size=8):
        for length in range(2, 40):
            node = op.tensor(x[:length]) * 3.0
            nodes.append(Tensor(node.state))
            node.eval()
        planned = [node for node in nodes if node.structure.plan is not None]
        assert 0 < len(planned) <= 8
        for length, node in zip(range(2, 40), nodes, strict=True):
            torch.testing.assert_close(node.torch(), x[:length] * 3)


def results_under(threads: int, mode: numerics.Mode) -> list[torch.Tensor]:
    """Sums and products large enough for several workers, under a policy."""
    generator = torch.Generator().manual_seed(5)
    x = torch.randn(300, 3000, generator=generator)
    y = torch.randn(3000, 200, generator=generator)
    pipeline.forget_plans()
    with settings.override(threads=threads), numerics.policy(mode):
        roots = [op.matmul(x, y), op.sum(x), op.sum(x, 0), op.mean(x, 1), op.softmax(x), op.gelu(op.matmul(x, y)).sum()]
        return [root.torch().clone() for root in roots]


@pytest.mark.parametrize("mode", ["deterministic", "strict"])
def test_fixed_orders_give_the_same_bits_for_any_number_of_threads(mode: numerics.Mode) -> None:
    one, two = results_under(1, mode), results_under(2, mode)
    for first, second in zip(one, two, strict=True):
        assert torch.equal(first, second)
    pipeline.forget_plans()


def test_a_policy_counts_for_structures_that_were_planned_under_another() -> None:
    wanted = results_under(1, "deterministic")
    results_under(2, "fast")
    x = torch.randn(300, 3000, generator=torch.Generator().manual_seed(5))
    with settings.override(threads=2), numerics.policy("deterministic"):
        assert torch.equal(op.sum(x).torch(), wanted[1])
    pipeline.forget_plans()


def test_results_are_counted_and_given_back() -> None:
    x = torch.zeros(1 << 20)
    (op.tensor(x) + 1.0).eval()  # plan and frame exist from here on
    before = tessera.memory_stats()["allocated_bytes"]
    y = (op.tensor(x) + 1.0).eval()
    # A block that is up to an eighth larger may be used.
    assert 4 << 20 <= tessera.memory_stats()["allocated_bytes"] - before <= (4 << 20) * 9 // 8
    del y
    assert tessera.memory_stats()["allocated_bytes"] == before
    assert tessera.empty_cache() >= 4 << 20


def test_temporaries_share_memory_by_the_time_they_live() -> None:
    x = torch.randn(256, 256)
    chain = op.tensor(x)
    for _ in range(8):
        chain = op.matmul(chain, x) * 0.1
    plan = pipeline.plan(chain.structure)
    assert isinstance(plan, BoundPlan)
    assert len(plan.steps) == 8
    assert 0 < plan.arena_bytes <= 2 * 256 * 256 * 4
    chain.eval()


def test_the_memory_limit_is_an_error_that_leaves_everything_usable() -> None:
    x = torch.zeros(1 << 22)
    tessera.empty_cache()
    with settings.override(memory_limit_bytes=tessera.memory_stats()["reserved_bytes"] + (1 << 20)):
        pending = op.tensor(x) + 1.0
        with pytest.raises(MemoryLimitError, match="16,777,216 bytes more") as raised:
            pending.eval()
        assert raised.value.code == "E_MEMORY_LIMIT"
        assert raised.value.hints
        assert (op.tensor(x[:10]) + 1.0).tolist() == [1.0] * 10
        assert pending.is_pending
    assert float(pending.torch().sum()) == 1 << 22


def test_freed_memory_is_used_again() -> None:
    x = torch.zeros(1 << 19)
    (op.tensor(x) * 2.0).eval()
    addresses = set()
    for _ in range(6):
        addresses.add((op.tensor(x) * 2.0).torch().data_ptr())
    assert len(addresses) == 1
