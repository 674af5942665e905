"""An operator is one record: from a file, outside of every table, it gets all that others have."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.test_value import create_ssa_value

from tessera import extend, grad, op
from tessera.compiler.graph.building import build_graph
from tessera.errors import ShapeMismatchError
from tessera.ir.attributes import ELEMENT_TYPES, tensor_type
from tessera.ir.graph import operations as graph
from tessera.lazy.structures.symbolic import symbolic_form
from tessera.ops import record
from tests.fuzz.drawing import draw
from tests.fuzz.ways import check
from tests.unit.doors.toys.squared_difference import SQUARED_DIFFERENCE

F32 = ELEMENT_TYPES["fp32"]


@pytest.fixture
def squared_difference() -> Iterator[Callable[..., Any]]:
    """The function of the toy, which is registered while a test runs."""
    yield extend.function(extend.register(SQUARED_DIFFERENCE))
    del record._registry["squared_difference"]


def test_shapes_follow_from_its_family(squared_difference: Callable[..., Any]) -> None:
    assert squared_difference(torch.ones(4, 1, 3), torch.ones(5, 1)).shape == (4, 5, 3)
    with pytest.raises(
        ShapeMismatchError, match=r"squared_difference of \(4,\) fp32 and \(3,\) fp32: the shapes do not"
    ):
        squared_difference(torch.ones(4), torch.ones(3))


def test_the_verifier_knows_its_shapes(squared_difference: Callable[..., Any]) -> None:
    module = build_graph(symbolic_form(squared_difference(torch.ones(4, 3), torch.ones(3)).structure)).module
    module.verify()
    (function,) = module.ops
    assert str(function.attributes["argument_dims"]) == '[["s0", "s1"], ["s1"]]'
    operands = [create_ssa_value(tensor_type(shape, F32)) for shape in ((None, 3), (3,))]
    graph.create("squared_difference", operands, tensor_type((None, 3), F32)).verify()
    with pytest.raises(VerifyException, match="the result's shape should be"):
        graph.create("squared_difference", operands, tensor_type((None, 4), F32)).verify()


def test_it_is_part_of_a_kernel(squared_difference: Callable[..., Any]) -> None:
    a, b, c = torch.randn(20, 30), torch.randn(30, 10), torch.randn(10)
    result = squared_difference(op.matmul(a, b), c)
    assert result.inspect("schedule").count("tessera.schedule.kernel") == 1
    torch.testing.assert_close(result.torch(), (a @ b - c) ** 2, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(result.torch().double(), extend.reference(result), atol=1e-3, rtol=1e-4)


def test_gradients_are_those_of_its_reference(squared_difference: Callable[..., Any]) -> None:
    a, b = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in ((4, 3), (3,)))
    expected = torch.autograd.grad(((a - b) ** 2).sin().sum(), (a, b))
    operands = [op.tensor(each.detach()) for each in (a, b)]
    found = grad.vjp(op.sum(op.sin(squared_difference(*operands))), operands)
    for gradient, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(gradient.torch(), wanted)


def test_the_fuzzer_draws_it(squared_difference: Callable[..., Any]) -> None:
    programs = (draw(seed) for seed in range(400))
    program = next(program for program in programs if "squared_difference" in program.operators)
    assert check(program, ways=("at once", "unfused")).judged
