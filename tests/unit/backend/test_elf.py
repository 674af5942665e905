"""Objects linked without LLVM: code, constants and variables lie where code looks for them, and damage is refused."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import random

import pytest

from tessera.backend.elf import LinkedObject, is_linked_here
from tessera.backend.llvm.machine_code.library import compile_text
from tessera.errors import CompileError

pytestmark = pytest.mark.skipif(not is_linked_here(), reason="LLVM links the objects of this machine")

TEXT = """
@count = global i64 40
@zeros = global [100 x i64] zeroinitializer
@table = internal constant [4 x i64] [i64 2, i64 3, i64 5, i64 7]
declare double @cos(double)

define internal i64 @below(i64 %x) {
  %slot = getelementptr [4 x i64], ptr @table, i64 0, i64 %x
  %value = load i64, ptr %slot
  ret i64 %value
}

define i64 @next(i64 %x) {
  %before = load i64, ptr @count
  %value = call i64 @below(i64 %x)
  %after = add i64 %before, %value
  store i64 %after, ptr @count
  ret i64 %after
}

define double @outside(double %x) {
  %y = call double @cos(double %x)
  ret double %y
}
"""


@pytest.fixture(scope="module")
def code() -> bytes:
    return compile_text(TEXT)


def test_code_reads_constants_writes_variables_and_calls_what_the_process_has(code: bytes) -> None:
    linked = LinkedObject(code)
    step = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(linked.address("next"))
    assert [step(place) for place in (0, 3, 2)] == [42, 49, 54]
    assert ctypes.c_int64.from_address(linked.address("count")).value == 54
    assert list((ctypes.c_int64 * 100).from_address(linked.address("zeros"))) == [0] * 100
    assert ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(linked.address("outside"))(0.0) == 1.0


def test_each_has_variables_of_its_own(code: bytes) -> None:
    first, second = (LinkedObject(code) for _ in range(2))
    ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)(first.address("next"))(0)
    assert ctypes.c_int64.from_address(second.address("count")).value == 40


def test_memory_goes_with_the_object(code: bytes) -> None:
    def mapped() -> int:
        gc.collect()
        with open("/proc/self/statm") as file:
            return int(file.read().split()[0])

    kept = LinkedObject(code)
    before = mapped()
    for _ in range(2000):
        LinkedObject(code)
    assert mapped() - before < 1000
    assert kept.address("next")


def test_a_name_that_is_not_there_is_a_key_error(code: bytes) -> None:
    with pytest.raises(KeyError, match="question"):
        LinkedObject(code).address("question")


def test_damage_is_an_error_or_does_no_harm(code: bytes) -> None:
    drawn = random.Random(0)
    for size in (0, 10, 64, len(code) // 2, len(code) - 1):
        with pytest.raises(CompileError):
            LinkedObject(code[:size])
    headers = len(code) - 64 * 12
    for _ in range(300):
        damaged = bytearray(code)
        damaged[drawn.randrange(headers, len(code))] ^= 1 << drawn.randrange(8)
        with contextlib.suppress(CompileError):
            LinkedObject(bytes(damaged))
