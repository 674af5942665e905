"""Loops, conditionals, worker shares and index arithmetic on the LLVM backend."""

from __future__ import annotations

import pytest
import torch

from tessera.errors import CompileError, IRError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse
from tests.unit.backend.llvm.harness import Guarded, compile_module, compile_text, run

BUFFER = "memref<?xf32, strided<[1]>>"
INDICES = "memref<?xi64, strided<[1]>>"


def every_element(body: str, step: int = 1) -> str:
    """A kernel whose workers each add 1 to the elements of their share of Y."""
    return f"""
"tessera.tile.kernel"() ({{
^bb0(%Y: {BUFFER}, %n: index):
  %c0 = arith.constant 0 : index
  %one = arith.constant dense<1.0> : vector<{step}xf32>
  "tessera.tile.parallel"(%n) ({{
  ^box(%lo: index, %hi: index):
    {body}
  }}) {{steps = array<i64: {step}>, split = 0}} : (index) -> ()
}}) {{sym_name = "count", outputs = array<i64: 0>}} : () -> ()
"""


ADD_ONE = f"""
    "tessera.tile.for"(%lo, %hi) ({{
    ^at(%i: index):
      %y = "tessera.tile.load"(%Y, %i) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
        : ({BUFFER}, index) -> vector<8xf32>
      %z = arith.addf %y, %one : vector<8xf32>
      "tessera.tile.store"(%z, %Y, %i) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
        : (vector<8xf32>, {BUFFER}, index) -> ()
      "tessera.tile.yield"() : () -> ()
    }}) {{step = 8}} : (index, index) -> ()
"""


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("size", [0, 1, 8, 9, 41, 100])
def test_workers_together_take_every_element_once(size: int, workers: int) -> None:
    y = Guarded(torch.zeros(size))
    run(compile_text(every_element(ADD_ONE, step=8)), [y.tensor, size], workers)
    y.check(output=True)
    assert torch.equal(y.tensor, torch.ones(size))


def test_an_empty_share_runs_nothing() -> None:
    body = f"""
    %n64 = arith.index_cast %lo : index to i64
    %v = "tessera.tile.broadcast"(%n64) : (i64) -> vector<1xi64>
    %f = "tessera.tile.cast"(%v) : (vector<1xi64>) -> vector<1xf32>
    "tessera.tile.store"(%f, %Y, %lo) {{dims = array<i64: 0>, in_bounds = array<i1: true>}}
      : (vector<1xf32>, {BUFFER}, index) -> ()"""
    y = Guarded(torch.full((3,), -1.0))
    run(compile_text(every_element(body)), [y.tensor, 3], workers=8)
    y.check(output=True)
    assert y.tensor.tolist() == [0.0, 1.0, 2.0]


def of_indices(body: str) -> str:
    """A kernel that stores the index `%r`, computed from the arguments `%a` and `%b`."""
    return f"""
"tessera.tile.kernel"() ({{
^bb0(%Y: {INDICES}, %a: index, %b: index):
  %c0 = arith.constant 0 : index
  %c3 = arith.constant 3 : index
  %c7 = arith.constant 7 : index
  {body}
  %number = arith.index_cast %r : index to i64
  %v = "tessera.tile.broadcast"(%number) : (i64) -> vector<1xi64>
  "tessera.tile.store"(%v, %Y, %c0) {{dims = array<i64: 0>, in_bounds = array<i1: true>}}
    : (vector<1xi64>, {INDICES}, index) -> ()
}}) {{sym_name = "of_indices", outputs = array<i64: 0>}} : () -> ()
"""


def agree(body: str, a: int, b: int) -> int:
    """The stored index, which must be the interpreter's."""
    module = parse(of_indices(body))
    got, expected = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    run(compile_module(module), [got, a, b])
    run_kernel(module, [expected, a, b])
    assert got.item() == expected.item(), (body, a, b)
    return int(got.item())


BINARY = ["addi", "subi", "muli", "minsi", "maxsi", "divsi", "remsi", "floordivsi", "ceildivsi"]


@pytest.mark.parametrize("operation", BINARY)
@pytest.mark.parametrize(("a", "b"), [(17, 5), (-17, 5), (17, -5), (-17, -5), (15, 5), (0, 9)])
def test_index_arithmetic(operation: str, a: int, b: int) -> None:
    agree(f"%r = arith.{operation} %a, %b : index", a, b)
    agree(f"%s = arith.addi %a, %c3 : index\n%r = arith.{operation} %s, %c7 : index", a, b)
    agree(f"%s = arith.muli %c7, %c3 : index\n%r = arith.{operation} %s, %c3 : index", a, b)


@pytest.mark.parametrize("predicate", ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"])
@pytest.mark.parametrize(("a", "b"), [(3, 4), (4, 4), (5, 4), (-1, 4)])
def test_index_comparisons(predicate: str, a: int, b: int) -> None:
    agree(
        f"""%a3 = arith.addi %a, %c3 : index
        %b3 = arith.addi %b, %c3 : index
        %p = arith.cmpi {predicate}, %a3, %b3 : index
        %r = arith.select %p, %a, %c7 : index""",
        a,
        b,
    )


@pytest.mark.parametrize(("a", "b"), [(2, 30), (2, 2), (2, 3), (5, 1), (0, 12)])
@pytest.mark.parametrize("unroll", [1, 4])
def test_carried_values_and_rests_of_unrolled_loops(unroll: int, a: int, b: int) -> None:
    body = f"""
    %r = "tessera.tile.for"(%a, %b, %c7) ({{
    ^at(%i: index, %sum: index):
      %twice = arith.muli %sum, %c3 : index
      %next = arith.addi %twice, %i : index
      "tessera.tile.yield"(%next) : (index) -> ()
    }}) {{step = 2, unroll = {unroll}}} : (index, index, index) -> index"""
    agree(body, a, b)


def test_constant_loops_need_no_bounds_at_run_time() -> None:
    body = """
    %r = "tessera.tile.for"(%c0, %c7, %a) ({
    ^at(%i: index, %sum: index):
      %next = arith.addi %sum, %i : index
      "tessera.tile.yield"(%next) : (index) -> ()
    }) {step = 1, unroll = 4} : (index, index, index) -> index"""
    assert agree(body, 100, 0) == 100 + sum(range(7))


@pytest.mark.parametrize("a", [1, 9])
def test_conditionals_give_values(a: int) -> None:
    body = """
    %p = arith.cmpi slt, %a, %c7 : index
    %r = scf.if %p -> (index) {
      %x = arith.muli %a, %b : index
      scf.yield %x : index
    } else {
      %q = arith.cmpi eq, %b, %c3 : index
      %y = scf.if %q -> (index) {
        scf.yield %c7 : index
      } else {
        scf.yield %b : index
      }
      scf.yield %y : index
    }"""
    assert agree(body, a, 3) == (3 if a == 1 else 7)
    agree(body, a, 4)


def test_a_conditional_known_while_writing_leaves_one_arm() -> None:
    body = """
    %p = arith.cmpi slt, %c3, %c7 : index
    %r = scf.if %p -> (index) {
      scf.yield %a : index
    } else {
      scf.yield %b : index
    }"""
    assert agree(body, 5, 6) == 5


def test_operations_without_code_are_named() -> None:
    module = parse(of_indices("%r = arith.shli %a, %b : index"))
    with pytest.raises(CompileError, match=r"arith\.shli on index"):
        compile_module(module)


def test_two_kernels_in_a_module_are_refused() -> None:
    text = of_indices("%r = arith.addi %a, %b : index")
    with pytest.raises(CompileError, match="exactly one"):
        compile_text(text + text.replace("of_indices", "second"))


FIRST_POSITIVE_ROW = f"""
    %all = "tessera.tile.load"(%Y, %c0) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
      : ({BUFFER}, index) -> vector<16xf32>
    %zero = arith.constant dense<0.0> : vector<16xf32>
    %positive = "tessera.tile.compare"(%all, %zero) {{predicate = "gt"}}
      : (vector<16xf32>, vector<16xf32>) -> vector<16xi1>
    %any = "tessera.tile.reduce"(%positive) {{kind = "max", axis = 0}} : (vector<16xi1>) -> vector<1xi1>
    %taken = "tessera.tile.element"(%any) : (vector<1xi1>) -> i1
    scf.if %taken {{
      %z = arith.addf %all, %all : vector<16xf32>
      "tessera.tile.store"(%z, %Y, %c0) {{dims = array<i64: 0>, in_bounds = array<i1: false>}}
        : (vector<16xf32>, {BUFFER}, index) -> ()
    }}"""


@pytest.mark.parametrize("place", [None, 0, 4])
def test_a_branch_depends_on_an_element_of_a_tile(place: int | None) -> None:
    text = every_element(FIRST_POSITIVE_ROW, step=1)
    start = torch.full((5,), -1.0)
    if place is not None:
        start[place] = 2.0
    expected = start if place is None else 2 * start
    y, interpreted = Guarded(start.clone()), start.clone()
    run(compile_text(text), [y.tensor, 1])
    run_kernel(parse(text), [interpreted, 1])
    y.check(output=True)
    assert torch.equal(y.tensor, expected)
    assert torch.equal(interpreted, expected)


def test_an_element_is_that_of_a_tile_of_one() -> None:
    text = every_element(FIRST_POSITIVE_ROW.replace('"tessera.tile.element"(%any) : (vector<1xi1>)',
                                                    '"tessera.tile.element"(%positive) : (vector<16xi1>)'))  # fmt: skip
    with pytest.raises(IRError, match="no tile of one element"):
        parse(text)
