"""Dominance: a use is sound when its definition stands earlier in its block or in an enclosing one."""

from __future__ import annotations

import pytest
from xdsl.dialects import arith, test
from xdsl.dialects.builtin import IntegerAttr, ModuleOp, i64
from xdsl.ir import Block, Operation, Region

from tessera.errors import IRError
from tessera.ir.dominance import find_dominance_violation
from tessera.ir.verification import verify


def constant(value: int = 0) -> arith.ConstantOp:
    return arith.ConstantOp(IntegerAttr(value, i64))


def message(*operations: Operation) -> str:
    violation = find_dominance_violation(ModuleOp(list(operations)))
    return "" if violation is None else violation.message


def test_values_are_seen_after_their_definition_and_inside_regions() -> None:
    first = constant()
    block = Block(arg_types=[i64])
    block.add_op(arith.AddiOp(first, block.args[0]))
    assert message(first, test.TestOp(regions=[Region(block)]), arith.AddiOp(first, first)) == ""


def test_a_use_before_its_definition() -> None:
    late = constant()
    late.result.name_hint = "late"
    assert message(arith.AddiOp(late, late), late) == (
        "%late is operand 0 of arith.addi, but arith.constant defines it later"
    )


def test_a_value_does_not_leave_its_region() -> None:
    inner = constant()
    holder = test.TestOp(regions=[Region(Block([inner]))])
    assert message(holder, arith.AddiOp(inner, inner)).endswith(
        "arith.constant defines it inside a region that does not enclose the use"
    )


def test_a_block_argument_does_not_leave_its_region() -> None:
    block = Block(arg_types=[i64])
    holder = test.TestOp(regions=[Region(block)])
    assert message(holder, arith.AddiOp(block.args[0], block.args[0])) == (
        "an unnamed value is operand 0 of arith.addi, "
        "but it is argument 0 of test.op whose region does not enclose the use"
    )


def test_a_region_does_not_see_the_results_of_its_operation() -> None:
    block = Block()
    holder = test.TestOp(regions=[Region(block)], result_types=[i64])
    block.add_op(arith.AddiOp(holder.res[0], holder.res[0]))
    assert message(holder).endswith("test.op defines it only when its own region, which holds the use, is done")


def test_an_operation_does_not_use_its_own_result() -> None:
    first = constant()
    loop = arith.AddiOp(first, first)
    loop.operands[1] = loop.result
    assert message(first, loop).endswith("arith.addi defines it itself: the operation uses its own result")


def test_isolated_regions_see_nothing_from_outside() -> None:
    first = constant()
    inner = ModuleOp([arith.AddiOp(first, first)])
    assert message(first, inner).endswith("arith.constant defines it outside of an isolated region that holds the use")


def test_control_flow_is_structured() -> None:
    holder = test.TestOp(regions=[Region([Block(), Block()])])
    assert message(holder) == "test.op has a region of 2 blocks; control flow is structured here"


def test_verify_raises_with_the_operation() -> None:
    late = constant()
    with pytest.raises(IRError, match="defines it later") as raised:
        verify(ModuleOp([arith.AddiOp(late, late), late]))
    assert "arith.addi" in raised.value.hints[0]


def test_long_chains_are_walked_without_recursion() -> None:
    operations: list[Operation] = [constant()]
    for _ in range(20_000):
        operations.append(arith.AddiOp(operations[-1].results[0], operations[0].results[0]))
    assert message(*operations) == ""
