"""Operators of users: one record, and they are called, fused, checked, differentiated and run like others."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from typing import Any

import pytest
import torch

from tessera import dist, extend, grad, op
from tessera.errors import ArgumentError, CompileError, DTypeError, ShapeMismatchError
from tessera.ops import record
from tessera.ops.algebra import call


@pytest.fixture(autouse=True)
def own_operators() -> Iterator[None]:
    """What a test registers is gone after it."""
    known = set(record.OPERATORS)
    yield
    for name in record.OPERATORS.keys() - known:
        del record._registry[name]


def cubed(name: str = "cubed", **changes: Any) -> extend.Operator:
    """x * x * x + shift, with its derivative."""
    fields: dict[str, Any] = {
        "name": name,
        "family": "elementwise",
        "arity": (1, 1),
        "operand_dtypes": extend.only_float,
        "reference": lambda x, *, shift: x**3 + shift,
        "gradient": lambda g, operands, out, *, shift: (g * 3.0 * operands[0] * operands[0],),
        "body": lambda e, x, *, shift: e.add(e.mul(x, e.mul(x, x)), e.constant(shift, x)),
        "attributes": {"shift": 0.0},
    }
    return extend.Operator(**{**fields, **changes})


def test_a_map_is_fused_into_a_product_and_before_one() -> None:
    cube = extend.function(extend.register(cubed(cheap=True)))
    a, b = torch.randn(9, 7), torch.randn(7, 11)
    result = cube(op.matmul(cube(a), b), shift=0.5)
    assert result.inspect("schedule").count("tessera.schedule.kernel") == 1
    expected = ((a.double() ** 3) @ b.double()) ** 3 + 0.5
    torch.testing.assert_close(result.torch().double(), expected, atol=1e-2, rtol=1e-4)


def test_its_gradient_is_followed() -> None:
    cube = extend.function(extend.register(cubed()))
    x = op.tensor(torch.randn(5, dtype=torch.float64))
    (found,) = grad.vjp(op.sin(cube(x)), [x])
    expected = torch.cos(x.torch() ** 3) * 3 * x.torch() ** 2
    torch.testing.assert_close(found.torch(), expected)


def test_without_a_gradient_one_is_refused() -> None:
    cube = extend.function(extend.register(cubed(gradient=extend.no_gradient("cubed"))))
    x = op.tensor(torch.randn(5))
    with pytest.raises(ArgumentError, match="cubed has no gradient"):
        grad.vjp(cube(x), [x])


def test_it_runs_where_gpus_are_interpreted() -> None:
    pytest.importorskip("triton", reason="the extra `triton` is not installed")
    if tuple(map(int, metadata.version("numpy").split(".")[:2])) >= (2, 4):
        pytest.skip("Triton 3.6's interpreter needs numpy < 2.4")
    cube = extend.function(extend.register(cubed()))
    x = torch.randn(3, 40)
    result = cube(op.tensor(x, device="interpreter"), shift=1.0)
    torch.testing.assert_close(result.torch(), x**3 + 1, atol=1e-5, rtol=1e-5)


def test_reductions_go_along_neighbouring_axes() -> None:
    extend.register(
        cubed(
            "square_sum",
            family="reduction",
            reference=lambda x, *, axes: (x * x).sum(axes),
            body=lambda e, x, **attributes: e.reduce("add", e.mul(x, x)),
            attributes={"axes": (0,)},
        )
    )
    x = torch.randn(3, 5, 7)
    torch.testing.assert_close(call("square_sum", op.tensor(x), axes=(1, 2)).torch(), (x * x).sum((1, 2)))
    with pytest.raises(CompileError, match=r"square_sum reduces the dimensions \(0, 2\), which are no neighbours"):
        call("square_sum", op.tensor(x), axes=(0, 2)).torch()


def test_rules_refuse_at_the_call() -> None:
    cube = extend.function(extend.register(cubed(arity=(2, 2))))
    with pytest.raises(ShapeMismatchError, match="the shapes do not broadcast"):
        cube(torch.randn(3), torch.randn(4))
    with pytest.raises(DTypeError, match="floating-point elements only"):
        cube(torch.ones(3, dtype=torch.int32), torch.ones(3, dtype=torch.int32))
    with pytest.raises(ArgumentError, match="cubed has no attribute 'power'"):
        cube(torch.randn(3), torch.randn(3), power=2)


def test_names_and_families_that_cannot_be_are_refused() -> None:
    extend.register(cubed())
    with pytest.raises(ArgumentError, match="there is an operator called 'cubed' already"):
        extend.register(cubed())
    with pytest.raises(ArgumentError, match="there is an operator called 'matmul' already"):
        extend.register(cubed("matmul"))
    with pytest.raises(ArgumentError, match="an operator called 'x y'"):
        extend.register(cubed("x y"))
    with pytest.raises(ArgumentError, match="an operator of family 'layout'"):
        extend.register(cubed("other", family="layout"))


@pytest.mark.parametrize("dimension", [0, 1])
def test_rows_that_a_mesh_splits_are_brought_together(dimension: int) -> None:
    unit = extend.function(
        extend.register(
            cubed(
                "unit_rows",
                family="row",
                body=lambda e, x: e.mul(x, e.rsqrt(e.reduce("add", e.mul(x, x)))),
                reference=lambda x: torch.nn.functional.normalize(x, dim=-1),
                attributes={},
            )
        )
    )
    mesh = dist.Mesh(["tp"], shape=(2,), backend="emulated")
    x = dist.tensor((4, 8), dist.ShardSpec((dimension,), ("tp",)), mesh, seed=1)
    torch.testing.assert_close(unit(x).torch(), torch.nn.functional.normalize(x.torch(), dim=-1))
