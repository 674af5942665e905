"""What a kernel may rely on of its arguments: read, written, verified, and kept by whoever runs it."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import IRError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.tile.divisors import described_arguments, divisors_of, free_words, promising, uniform
from tessera.ir.tile.operations import find_kernel

KERNEL = """
"tessera.tile.kernel"() ({{
^bb0(%x: memref<?x4xf32, strided<[?, 1]>>, %count: index):
}}) {{sym_name = "relies", outputs = array<i64>{divisors}}} : () -> ()
"""
STATED = ", divisors = [array<i64: 16, 1, 4, 8, 1>, array<i64>]"


def test_they_are_read_and_written() -> None:
    module = parse(KERNEL.format(divisors=STATED))
    kernel = find_kernel(module)
    assert divisors_of(kernel) == ((16, 1, 4, 8, 1), ())
    changed = promising(module, uniform(kernel, 32, 2), "for readers")
    again = find_kernel(parse(print_module(changed)))
    assert divisors_of(again) == ((32, 2, 2, 2, 2), ())
    assert again.note is not None
    assert again.note.data == "for readers"
    assert divisors_of(kernel) == ((16, 1, 4, 8, 1), ())  # another module than the copy


def test_a_kernel_that_says_nothing_relies_on_nothing() -> None:
    kernel = find_kernel(parse(KERNEL.format(divisors="")))
    assert divisors_of(kernel) == ((1, 1, 1, 1, 1), ())
    assert [free_words(argument.type) for argument in kernel.body.block.args] == [(True, False, True, False), None]
    assert described_arguments(kernel) == frozenset()


@pytest.mark.parametrize(
    ("divisors", "message"),
    [
        ("[array<i64: 16, 1, 4, 8, 1>]", "an array for each argument"),
        ("[array<i64: 16, 4>, array<i64>]", "of argument 0 are 5 positive numbers"),
        ("[array<i64: 16, 1, 0, 8, 1>, array<i64>]", "of argument 0 are 5 positive numbers"),
        ("[array<i64: 16, 1, 4, 8, 1>, array<i64: 2>]", "of argument 1 are 0 positive numbers"),
        ("[array<i64: 16, 1, 4, 8, 1>, 5 : i64]", "of argument 1 are 0 positive numbers"),
    ],
)
def test_one_number_for_each_word_of_a_buffer(divisors: str, message: str) -> None:
    with pytest.raises(IRError, match=message):
        parse(KERNEL.format(divisors=f", divisors = {divisors}"))


@pytest.mark.parametrize(
    ("rows", "stride", "skipped", "message"),
    [
        (3, 8, 0, None),
        (1, 7, 0, None),  # the stride of a single row is never used
        (3, 12, 0, "12 is no multiple of 8"),
        (3, 8, 1, "no multiple of 16"),
    ],
)
def test_the_interpreter_holds_callers_to_them(rows: int, stride: int, skipped: int, message: str | None) -> None:
    memory = torch.zeros(64)
    start = -memory.data_ptr() // 4 % 4 + skipped
    x = memory[start : start + rows * stride].as_strided((rows, 4), (stride, 1))
    module = parse(KERNEL.format(divisors=STATED))
    if message is None:
        run_kernel(module, [x, 5])
        return
    with pytest.raises(IRError, match=message):
        run_kernel(module, [x, 5])
