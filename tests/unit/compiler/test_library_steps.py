"""Calls of libraries as steps of plans: among kernels, on every way to evaluate, and what happens when they fail."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator, Sequence

import pytest
import torch

from tessera import memory_stats, op, profiler, stream
from tessera.compiler import pipeline
from tessera.errors import LibraryError, MemoryLimitError, TesseraError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.ops.algebra import call
from tessera.ops.library import define
from tessera.ops.record import Named
from tessera.runtime.plans.gpu_library_plan import MixedDevicePlan
from tessera.runtime.plans.plan import BoundPlan
from tessera.typing import ArrayLike

X = torch.randn(5, 7, generator=torch.Generator().manual_seed(3))


def _fail(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    if attributes["how"] == "memory":
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
    if attributes["how"] == "interrupt":
        raise KeyboardInterrupt
    if attributes["how"] == "own":
        raise LibraryError("reported by the operator")
    outputs[0].copy_(inputs[0].reshape(3, 3, 3))


@pytest.fixture(scope="module")
def failing() -> Iterator[str]:
    """An operator whose library refuses everything; its name."""
    from tessera.ops import record

    name = "fails"
    define(
        name,
        _fail,
        {"how": ""},
        operand_dtypes=lambda name, operands, attributes: [operands[0].dtype],
        result=lambda name, operands, cast, attributes: (operands[0].shape, cast[0]),
        reference=lambda x, *, how: x,
        gradient=lambda g, operands, out, *, how: (None,),
    )
    yield name
    record._registry.pop(name)


def mixed(x: ArrayLike) -> Tensor:
    """A kernel, a call, a kernel, a call, a kernel."""
    result: Tensor = op.cumsum(op.exp(op.cumsum(op.mul(x, 0.5), 1)) + 1.0, 0) * 2.0
    return result


def expected(x: torch.Tensor) -> torch.Tensor:
    wide = x.double()
    return (((wide * 0.5).cumsum(1).exp() + 1.0).cumsum(0) * 2.0).to(x.dtype)


def test_a_plan_of_kernels_and_calls_is_one_native_call() -> None:
    result = mixed(X)
    structure = result.structure
    torch.testing.assert_close(result.torch(), expected(X))
    assert isinstance(structure.plan, BoundPlan)
    assert len(structure.plan.steps) == 5


def test_new_extents_bind_without_compiling() -> None:
    first, second = mixed(X).structure, mixed(torch.randn(11, 3)).structure
    assert symbolic_form(first) is symbolic_form(second)
    other = torch.randn(11, 3)
    torch.testing.assert_close(mixed(other).torch(), expected(other))


@pytest.mark.parametrize("view", [X.t(), X[::2, 1::3], X[:1].expand(4, 7), X.new_empty(0, 4), X[:1, :1]])
def test_operands_of_any_layout(view: torch.Tensor) -> None:
    torch.testing.assert_close(op.cumsum(view, 0).torch(), view.cumsum(0))
    torch.testing.assert_close(mixed(view).torch(), expected(view))


def test_the_result_is_written_to_given_memory() -> None:
    mixed(X).eval()
    out = torch.empty_like(X)
    result = mixed(X).eval(out)
    assert result.torch().data_ptr() == out.data_ptr()
    torch.testing.assert_close(out, expected(X))


def test_on_a_stream() -> None:
    s = stream.create()
    result = mixed(X).eval(stream=s)
    torch.testing.assert_close(result.torch(), expected(X))


def test_from_several_threads() -> None:
    inputs = [torch.randn(64, 33) for _ in range(8)]
    results: dict[int, torch.Tensor] = {}

    def work(number: int) -> None:
        for _ in range(20):
            results[number] = mixed(inputs[number]).torch()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(len(inputs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, x in enumerate(inputs):
        torch.testing.assert_close(results[number], expected(x), rtol=1e-4, atol=1e-4)


def test_a_profile_has_the_calls_in_their_place() -> None:
    with profiler.session(record_shapes=True) as session:
        mixed(X).eval()
    kernels = [record for record in session.records() if record.kind == "kernel"]
    assert [record.backend for record in kernels] == ["generated", "library", "generated", "library", "generated"]
    first = kernels[1]
    assert (first.operator, first.kernel_name, first.flops, first.bytes) == ("cumsum", "cumsum", X.numel(), 280)
    assert first.shapes == ((5, 7), (5, 7))
    assert first.duration_us > 0
    assert session.launched == session.recorded == 5


def test_the_interpreted_device_has_them_too() -> None:
    x = op.tensor(X, device="interpreter")
    result = mixed(x)
    plan = pipeline.plan(result.structure)
    assert isinstance(plan, MixedDevicePlan)
    torch.testing.assert_close(result.torch(), expected(X))
    values, indices = op.topk(x, 2)
    assert values.state[0].device == "interpreter"
    assert torch.equal(values.torch(), X.topk(2).values)
    assert torch.equal(indices.torch(), X.topk(2).indices)


def test_what_the_library_refuses_is_reported(failing: str) -> None:
    with pytest.raises(LibraryError, match=r"fails of \(5, 7\) float32: torch refuses: shape '\[3, 3, 3\]'") as caught:
        op.exp(call(failing, as_node(X))).eval()
    assert caught.value.where is not None
    assert __file__ in caught.value.where


def test_no_memory_is_no_memory(failing: str) -> None:
    with pytest.raises(MemoryLimitError, match="torch got no memory"):
        call(failing, as_node(X), how="memory").eval()


def test_errors_of_operators_and_interrupts_come_as_they_are(failing: str) -> None:
    with pytest.raises(LibraryError, match="reported by the operator"):
        call(failing, as_node(X), how="own").eval()
    with pytest.raises(KeyboardInterrupt):
        call(failing, as_node(X), how="interrupt").eval()


def test_after_a_failure_nothing_of_the_plan_runs_and_the_next_run_is_whole(failing: str) -> None:
    shared = op.exp(as_node(X))
    bad = op.cumsum(call(failing, shared, how=""), 0)
    for _ in range(2):
        with profiler.session() as session, pytest.raises(LibraryError):
            Tensor(bad.state).eval()
        ran = {record.operator: record.workers for record in session.records() if record.kind == "kernel"}
        assert ran["cumsum"] == 0
    torch.testing.assert_close(mixed(X).torch(), expected(X))


def test_a_failure_on_a_stream_is_the_streams(failing: str) -> None:
    s = stream.create()
    result = call(failing, as_node(X)).eval(stream=s)
    with pytest.raises(TesseraError, match="torch refuses"):
        result.torch()


def test_results_too_large_fail_before_anything_is_written() -> None:
    row = op.tensor(torch.zeros(1, 1))
    huge = op.cumsum(row.broadcast_to(1 << 30, 1 << 20) + 1.0, 0)
    gc.collect()
    before = memory_stats()["allocated_bytes"]
    with pytest.raises(MemoryLimitError):
        huge.eval()
    gc.collect()
    assert memory_stats()["allocated_bytes"] <= before


def test_one_call_gives_both_results_of_topk() -> None:
    with profiler.session() as session:
        values, indices = op.topk(op.exp(X), 3)
        values.eval()
        assert not indices.is_pending
    assert [record.operator for record in session.records() if record.kind == "kernel"].count("topk") == 1
    expected = X.exp().topk(3)
    torch.testing.assert_close(values.torch(), expected.values)
    assert torch.equal(indices.torch(), expected.indices)
