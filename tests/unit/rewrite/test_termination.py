"""Rewriting ends: each firing lessens what its rule says, the measures of a table stand in an order, and rules that
break this are refused.
"""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from xdsl.ir import SSAValue

from tessera import op
from tessera.errors import CompileError
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.algebra import call
from tessera.rewrite import engine
from tessera.rewrite.engine import Measure, NamedRule, Rewriter, rewrite_function
from tessera.rewrite.rules import algebra, idioms, reductions, transposes
from tests.unit.rewrite.graphs import Case, case_of, draw_case, graph_operations, tensor

SIMPLER = (
    algebra.COMPUTING,
    transposes.CHANNELS_FIRST,
    transposes.JOINING_NO_IMAGE,
    transposes.LACKING_IMAGE,
    algebra.BROADCASTS_READ,
    algebra.FORMS_READ,
)
SCALED = (algebra.COMPUTING, algebra.BROADCASTS_READ, idioms.ABOVE_SCALINGS, algebra.FORMS_READ)
TABLES = {
    "reductions": (reductions.RULES, (reductions.EMPTY, reductions.GAPS)),
    "algebra": ((*algebra.RULES, *transposes.RULES), SIMPLER),
    "softmax": (idioms.SOFTMAX, (idioms.DIVISIONS,)),
    "attention": (idioms.ATTENTION, (idioms.PRODUCTS,)),
    "guarded": (idioms.GUARDED, (idioms.OPERANDS, idioms.ABOVE_KEYS)),
    "scales": ((*algebra.RULES, *idioms.SCALES), SCALED),
}
"""The tables, and their measures in an order in which no rule adds to one that stands before its own."""
ALIVE = Measure("operations", lambda _: 1)


def renaming(name: str, seen: str, made: str, lessens: Measure) -> NamedRule:
    """A rule that makes another operator of one."""

    def apply(operation: GraphOperation, rewriter: Rewriter) -> SSAValue:
        return rewriter.create(made, list(operation.inputs))

    return NamedRule(name, (seen,), apply, lessens)


def counting(operator: str) -> Measure:
    return Measure(operator, lambda operation: operation.operator == operator)


def test_rules_that_chase_each_other_are_named() -> None:
    case = case_of(call("exp", tensor(3)))
    there = renaming("exp-to-neg", "exp", "neg", counting("exp"))
    back = renaming("neg-to-exp", "neg", "exp", counting("neg"))
    with pytest.raises(CompileError, match="exp-to-neg and neg-to-exp") as caught:
        rewrite_function(case.function, (there, back))
    assert caught.value.code == "E_COMPILE"


@pytest.mark.parametrize("lessens", [ALIVE, counting("tanh"), counting("neg")], ids=lambda measure: measure.name)
def test_a_rule_that_does_not_lessen_what_it_says_is_refused(lessens: Measure) -> None:
    case = case_of(call("exp", tensor(3)))
    with pytest.raises(CompileError, match=f"bad is to lessen {lessens.name}") as caught:
        rewrite_function(case.function, (renaming("bad", "exp", "neg", lessens),))
    assert "bad: exp(arg0) -> neg(arg0)" in caught.value.message


def test_a_rule_says_what_it_lessens() -> None:
    with pytest.raises(TypeError, match="lessens"):
        NamedRule("bad", ("exp",), lambda operation, rewriter: None)  # type: ignore[call-arg]


@pytest.mark.parametrize("name", TABLES)
def test_the_measures_of_a_table_stand_in_an_order(name: str) -> None:
    rules, order = TABLES[name]
    assert {rule.lessens for rule in rules} == {*order}


@settings(max_examples=100)
@given(st.integers(0, 1 << 30))
def test_no_firing_adds_to_a_measure_before_its_own(seed: int) -> None:
    draw = random.Random(seed)
    assert_lessening(draw_case(draw, draw.randrange(1, 24)), "algebra", "reductions", "softmax", "scales")


def assert_lessening(case: Case, *tables: str) -> None:
    """Applies tables, and looks at the whole function after each firing: dead operations count until they are gone."""
    for name in tables:
        rules, order = TABLES[name]
        with pytest.MonkeyPatch.context() as patch:
            watch(patch, case, order)
            rewrite_function(case.function, rules)


def watch(patch: pytest.MonkeyPatch, case: Case, order: tuple[Measure, ...]) -> None:
    """After each firing, checks the measures up to its rule's own."""
    totals = [[measure.around(graph_operations(case.module)) for measure in order]]

    def check(rule: NamedRule, firing: engine.Firing, found: int, left: int) -> None:
        assert left < found
        totals.append([measure.around(graph_operations(case.module)) for measure in order])
        last = order.index(rule.lessens) + 1
        assert totals[-1][:last] < totals[-2][:last], str(firing)

    patch.setattr(engine, "_check_measure", check)


def image(seed: int = 0) -> object:
    options = {"stride": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1), "groups": 1}
    return call("conv2d", tensor(2, 5, 5, 3, seed=seed), tensor(4, 3, 2, 2, seed=seed), **options)


@settings(max_examples=150)
@given(st.integers(0, 1 << 30))
def test_maps_of_images_in_many_orders_end(seed: int) -> None:
    draw = random.Random(seed)
    pool = [image(0), image(1), tensor(2, 4, 4, 4)]
    for _ in range(draw.randrange(1, 16)):
        match draw.choice(("turn", "turn", "map", "join", "join", "scale", "mean")):
            case "turn":
                # All extents but the first are equal: any order of them can be added to any other.
                made = call("transpose", draw.choice(pool), permutation=(0, *draw.sample((1, 2, 3), 3)))
            case "map":
                made = call(draw.choice(("neg", "relu", "abs")), draw.choice(pool))
            case "scale":
                made = call("mul", draw.choice(pool), tensor(4))
            case "mean":
                made = call("mul", draw.choice(pool), call("mean", draw.choice(pool), axes=(2, 3), keepdims=True))
            case _:
                made = call("add", draw.choice(pool), draw.choice(pool))
        pool.append(made)
    assert_lessening(case_of(pool[-1]), "reductions", "algebra")


def test_an_image_plus_its_transpose() -> None:
    x, weights = torch.randn(1, 1, 8, 8, dtype=torch.float64), torch.randn(1, 1, 3, 3, dtype=torch.float64)
    y = op.conv2d(x, weights)
    wanted = torch.nn.functional.conv2d(x, weights)
    torch.testing.assert_close((y + op.transpose(y, (0, 1, 3, 2))).torch(), wanted + wanted.mT)


@settings(max_examples=60)
@given(st.integers(0, 1 << 30))
def test_attentions_over_attentions_end(seed: int) -> None:
    """Heads that are read apart leave a change of form below their attention, above the keys of the next one."""
    draw = random.Random(seed)
    apart, alone = tensor(1, 2, 2, 5, 8), call("broadcast_to", tensor(1, 2, 1, 5, 8), shape=(1, 2, 2, 5, 8))
    pool = [tensor(1, 4, 5, 8), *(call("reshape", heads, shape=(1, 4, 5, 8)) for heads in (apart, alone))]
    for _ in range(draw.randrange(1, 6)):
        operands = [draw.choice(pool) for _ in range(3)]
        pool.append(call("flash_attention", *operands, tensor(), causal=draw.random() < 0.3))
        pool.append(call("mul", draw.choice(pool), tensor()))
    assert_lessening(case_of(pool[-2]), "guarded")


def test_an_attention_that_reads_one_of_shared_heads() -> None:
    q, heads = torch.randn(1, 4, 5, 8, dtype=torch.float64), torch.randn(1, 2, 2, 5, 8, dtype=torch.float64)
    wide = heads.reshape(1, 4, 5, 8)
    attend = torch.nn.functional.scaled_dot_product_attention
    below = op.flash_attention(q, op.reshape(heads, (1, 4, 5, 8)), op.reshape(heads, (1, 4, 5, 8)))
    wanted = attend(q, wide, wide)
    torch.testing.assert_close(op.flash_attention(below, below, below).torch(), attend(wanted, wanted, wanted))
