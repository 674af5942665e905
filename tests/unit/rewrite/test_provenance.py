"""The names of the rules behind each kernel."""

from __future__ import annotations

from typing import Any

from tessera.dtypes import fp32
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.ops.algebra import call, literal
from tessera.rewrite.passes import graph_passes
from tessera.rewrite.provenance import rules_of_kernel
from tests.unit.rewrite.graphs import case_of, tensor


def rules(*results: Any) -> list[tuple[str, ...]]:
    """Of each kernel that the expressions become."""
    case = case_of(*results)
    for step in graph_passes():
        step.rewrite(case.module)
    return [rules_of_kernel(op) for op in case.module.walk() if isinstance(op, ScheduleKernelOp)]


def swapped(x: Any) -> Any:
    return call("transpose", x, permutation=(1, 0))


def test_a_kernel_as_it_was_written_has_none() -> None:
    assert rules(call("exp", tensor(3))) == [()]


def test_a_rule_stands_behind_what_it_made() -> None:
    assert rules(call("matmul", swapped(tensor(2, 3)), tensor(2, 5, seed=1))) == [("fold-transpose-into-matmul",)]


def test_names_go_on_to_what_replaces_a_replacement() -> None:
    one = literal(1.0, fp32)
    once = call("mul", call("neg", tensor(3)), one)
    assert rules(call("neg", call("neg", call("exp", once)))) == [
        ("drop-neutral-element", "merge-repeated", "fuse-row")
    ]


def test_what_nothing_is_made_of_leaves_its_name_with_the_reader_of_an_argument() -> None:
    assert rules(call("exp", call("mul", tensor(3), literal(1.0, fp32)))) == [("drop-neutral-element",)]


def test_only_the_kernel_that_was_rewritten_has_the_name() -> None:
    first, second = tensor(3, 4), tensor(4, 3, seed=1)
    product = call("matmul", call("mul", first, literal(1.0, fp32)), second)
    assert sorted(rules(product, call("exp", tensor(7)))) == [(), ("drop-neutral-element",)]


def test_equal_values_that_become_one_say_so() -> None:
    x = tensor(3)
    both = call("mul", call("exp", x), call("exp", call("mul", x, literal(1.0, fp32))))
    assert rules(both) == [("drop-neutral-element", "common-subexpression", "fuse-row")]
