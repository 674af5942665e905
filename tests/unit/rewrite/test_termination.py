"""Rewriting ends: with the rules there are for what used to turn in circles, and with an error for rules that do not."""

from __future__ import annotations

import pytest
from xdsl.ir import SSAValue

from tessera.errors import CompileError
from tessera.ir.graph import GraphOperation
from tessera.ops.algebra import call
from tessera.rewrite.engine import NamedRule, Rewriter, rewrite_function
from tests.unit.rewrite.graphs import case_of, tensor


def turned(operator: str) -> NamedRule:
    """A rule that makes this operator of another one."""

    def apply(operation: GraphOperation, rewriter: Rewriter) -> SSAValue:
        return rewriter.create(operator, list(operation.inputs))

    return NamedRule(f"make-{operator}", ("exp", "neg"), apply)


def test_rules_that_chase_each_other_are_named() -> None:
    case = case_of(call("exp", tensor(3)))
    there = NamedRule("exp-to-neg", ("exp",), turned("neg").apply)
    back = NamedRule("neg-to-exp", ("neg",), turned("exp").apply)
    with pytest.raises(CompileError, match="exp-to-neg and neg-to-exp"):
        rewrite_function(case.function, (there, back))
