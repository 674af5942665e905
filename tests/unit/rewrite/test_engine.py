"""The engine: firings are logged with before and after, rules apply until none fires, dead code goes."""

from __future__ import annotations

from typing import Any

import torch
from xdsl.dialects.func import FuncOp

from tessera.dtypes import fp32
from tessera.ir.parsing import parse, print_module
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import leaf_node
from tessera.ops.algebra import call, literal
from tessera.rewrite.engine import rewrite_function
from tessera.rewrite.passes import REWRITE_PASSES, AlgebraPass, FuseKernelsPass, MergeEqualPass, graph_passes
from tests.unit.rewrite.graphs import Case, case_of, evaluate, kernels, names_in, tensor


def log(case: Case) -> list[str]:
    """All firings of the pipeline, as they print."""
    return [str(firing) for step in graph_passes() for firing in step.rewrite(case.module)]


def swapped(x: Any) -> Any:
    return call("transpose", x, permutation=(1, 0))


def test_a_firing_shows_before_and_after() -> None:
    a, b = tensor(2, 3), tensor(2, 5, seed=1)
    assert log(case_of(call("matmul", swapped(a), b))) == [
        "fold-transpose-into-matmul: matmul(transpose(arg0), arg1) -> matmul(arg0, arg1, transpose_a)",
        "dead-code: transpose(arg0) -> nothing",
    ]


def test_fusion_logs_each_kernel_of_several_operations() -> None:
    x = tensor(3, 4)
    case = case_of(call("exp", call("neg", x)))
    assert log(case) == ["fuse-row: exp . neg -> kernel neg_exp_0"]


def test_one_rule_prepares_for_the_next() -> None:
    x = tensor(3)
    one = literal(1.0, fp32)
    case = case_of(call("neg", call("mul", call("neg", x), one)))
    assert [firing.rule for firing in AlgebraPass().rewrite(case.module)] == [
        "drop-neutral-element",
        "merge-repeated",
        "dead-code",
        "dead-code",
    ]
    torch.testing.assert_close(evaluate(case)[0], case.arguments[0].double())


def test_without_rules_only_dead_code_goes() -> None:
    module = parse(
        "func.func @f(%x: tensor<?xf32>) -> tensor<?xf32> {\n"
        '  %0 = "tessera.graph.exp"(%x) {dims = ["s0"]} : (tensor<?xf32>) -> tensor<?xf32>\n'
        "  func.return %x : tensor<?xf32>\n}\n"
    )
    (function,) = module.ops
    assert isinstance(function, FuncOp)
    assert [firing.rule for firing in rewrite_function(function, ())] == ["dead-code"]
    assert "exp" not in print_module(module)


def test_equal_operations_are_found_through_equal_operands() -> None:
    x, y = tensor(3), tensor(3, seed=1)
    first, second = call("add", call("exp", x), y), call("add", call("exp", x), y)
    case = case_of(call("mul", first, second))
    MergeEqualPass().rewrite(case.module)
    FuseKernelsPass().rewrite(case.module)
    (kernel,) = kernels(case.module)
    assert names_in(kernel) == ["exp", "add", "mul"]


def test_constants_are_rounded_before_they_are_folded() -> None:
    # 0.1 + 0.2 of fp32, not of float64 rounded to fp32 at the end.
    third = call("add", literal(0.1, fp32), literal(0.2, fp32))
    case = case_of(call("mul", leaf_node(from_torch(torch.ones(3))), third))
    AlgebraPass().rewrite(case.module)
    folded = [op.attribute("value") for op in case.function.body.block.ops if op.name == "tessera.graph.constant"]
    assert folded == [float(torch.tensor(0.1) + torch.tensor(0.2))]


def test_every_pass_can_be_named() -> None:
    assert set(REWRITE_PASSES) == {
        "algebra",
        "fuse-kernels",
        "idioms",
        "merge-equal",
        "name-extents",
        "split-reductions",
    }
