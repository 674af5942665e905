"""Operands between pages that nobody may touch: where they lie, and what happens beside them."""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.dtypes import dtype_of
from tessera.runtime.memory.segments import HUGE_PAGE, PAGE
from tessera.tuning.measure.guarded_memory import LARGE, LINE, GuardedMemory
from tessera.tuning.measure.workload import OperandSpec, guarded, materialize

sizes = st.one_of(st.integers(0, 3 * PAGE), st.sampled_from([LARGE - 1, LARGE, LARGE + 8, HUGE_PAGE, HUGE_PAGE + 24]))


@given(sizes, st.booleans())
def test_memory_lies_as_allocators_place_it_and_less_than_a_page_from_its_guard(nbytes: int, ours: bool) -> None:
    memory = GuardedMemory(nbytes, ours)
    assert memory.address % LINE == 0
    assert (memory.before + memory.nbytes + memory.after) % PAGE == 0
    assert (memory.address + memory.nbytes + memory.after) % PAGE == 0
    assert memory.after < (LINE if nbytes < LARGE else PAGE)
    if nbytes >= HUGE_PAGE and ours:
        assert memory.address % HUGE_PAGE == 0
    elif nbytes >= LARGE:
        assert memory.address % PAGE == (0 if ours else LINE)


@given(
    st.lists(st.integers(0, 9), max_size=3),
    st.sampled_from(["fp32", "bf16", "fp64", "int8", "int64", "bool"]),
    st.booleans(),
    st.sampled_from(["normal", "zero"]),
)
def test_a_guarded_operand_holds_the_same_values(shape: list[int], dtype: str, ours: bool, values: str) -> None:
    strides = torch.empty(shape).stride()
    spec = OperandSpec(tuple(shape), strides, dtype, values, seed=3)  # type: ignore[arg-type]
    operand = guarded(spec, ours)
    assert torch.equal(operand.tensor, materialize(spec).tensor)
    assert operand.intact()
    operand.poison()
    assert operand.intact()
    operand.fill(spec)
    assert torch.equal(operand.tensor, materialize(spec).tensor)


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "bool"])
def test_a_write_between_the_operand_and_its_guard_is_seen(dtype: str) -> None:
    operand = guarded(OperandSpec((40 * LINE + 1,), (1,), dtype))
    assert operand.after > 0
    operand.storage[-1] = 0
    assert not operand.intact()


def died_by(action: Callable[[], object]) -> int:
    """The signal that ends a process which does `action`, 0 where it does not end."""
    pid = os.fork()
    if pid == 0:
        faulthandler.disable()
        action()
        os._exit(0)
    return -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("elements", [1000, LARGE])
@pytest.mark.parametrize("ours", [False, True])
def test_leaving_the_operand_by_a_page_is_a_fault(elements: int, ours: bool) -> None:
    operand = guarded(OperandSpec((elements,), (1,), "fp32"), ours)
    begin, end = operand.tensor.data_ptr(), operand.tensor.data_ptr() + 4 * elements

    def touch(address: int, value: float | None = None) -> Callable[[], object]:
        import ctypes

        cell = ctypes.c_float.from_address(address)
        return (lambda: cell.value) if value is None else (lambda: setattr(cell, "value", value))

    assert died_by(touch(begin, 1.0)) == died_by(touch(end - 4)) == 0
    for outside in (begin - PAGE, end + PAGE - 4):
        assert died_by(touch(outside, 1.0)) == signal.SIGSEGV
        assert died_by(touch(outside)) == signal.SIGSEGV


def test_a_sealed_operand_can_be_read_only() -> None:
    operand = guarded(OperandSpec((100,), (1,), "fp32", seed=1))
    before = operand.tensor.clone()
    operand.seal()
    assert torch.equal(operand.tensor, before)
    assert died_by(operand.tensor.zero_) == signal.SIGSEGV


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "bool", "int64"])
def test_a_checksum_tells_that_something_was_written(dtype: str) -> None:
    operand = materialize(OperandSpec((33,), (1,), dtype, seed=1))
    before = operand.checksum()
    assert operand.checksum() == before
    operand.storage.view(torch.uint8)[100 * dtype_of(dtype).itemsize] += 1
    assert operand.checksum() != before


def test_memory_that_cannot_be_had_is_an_error() -> None:
    with pytest.raises(MemoryError, match="bytes cannot be had"):
        guarded(OperandSpec((1 << 46,), (1,), "fp32"))
