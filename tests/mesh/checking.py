"""Checking cases: what a mesh gives against what one process gives, results and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch

from tessera import dist, grad, op
from tessera.dtypes import COMPLEX
from tessera.ops.algebra import call
from tests.mesh.drawing import INEXACT, Case, drawn
from tests.mesh.references import by_references


def fault_of(seed: int, smooth: bool, compiled: bool = False) -> str | None:
    """What is wrong with the case of a seed; None where nothing is. `compiled` has kernels compute, else references
    do, which take a hundredth of the time.
    """
    with nullcontext() if compiled else by_references():
        case = drawn(seed, smooth)
        if not case.steps:
            return None
        for what, exact, here, there in _gradients(case) if smooth else _results(case):
            if not agree(here, there, exact, case.rounding):
                return f"{what}:\n{case.text()}\none process: {here}\nthe mesh:    {there}"
    return None


def _results(case: Case) -> Iterator[tuple[str, bool, torch.Tensor, torch.Tensor]]:
    """All results that no operator reads."""
    read = {place for _, step in case.steps for place in step.operands}
    here, there = case.values(None), case.values(case.mesh())
    for place, step in case.steps:
        if place not in read:
            yield (
                f"%{place}, {step.operator}",
                case.exact and not case.rounding,
                here[place].torch(),
                there[place].full().torch(),
            )


def _gradients(case: Case) -> Iterator[tuple[str, bool, torch.Tensor, torch.Tensor]]:
    """The cotangents of all floating-point inputs for a cotangent of the last value."""
    mesh = case.mesh()
    here, there = case.values(None), case.values(mesh)
    last = case.steps[-1][0]
    one_last, many_last = (_as_floats(values[last]) for values in (here, there))
    cotangent = torch.arange(one_last.size).remainder(5).sub(2).reshape(one_last.shape)
    cotangent = cotangent.to(one_last.dtype.torch)
    wanted = [n for n, each in case.inputs if each.whole.is_floating_point()]
    ones = grad.vjp(one_last, [here[n] for n in wanted], op.tensor(cotangent))
    many = grad.vjp(many_last, [there[n] for n in wanted], dist.distribute(cotangent, None, mesh))
    exact = case.exact and not any(step.operator in INEXACT for _, step in case.steps)
    for number, one, other in zip(wanted, ones, many, strict=True):
        assert other.layout == there[number].layout, "a gradient lies as what it is by"
        yield f"the gradient by %{number}", exact, one.torch(), other.full().torch()


def _as_floats(value: Any) -> Any:
    """A value of which there are gradients: complex numbers as their parts."""
    return call("view_as_real", value) if value.dtype in COMPLEX else value


def agree(here: torch.Tensor, there: torch.Tensor, exact: bool, rounding: float = 0.0) -> bool:
    """Whether a mesh gave what one process did: the same bits, or within rounding of some units of 1."""
    if here.shape != there.shape or here.dtype != there.dtype:
        return False
    if here.is_complex():
        return agree(torch.view_as_real(here), torch.view_as_real(there), exact, rounding)
    if exact:
        one, many = (each.double().nan_to_num(nan=0.25) for each in (here, there))  # which is no whole number
        return torch.equal(one, many)
    one, many = here.double(), there.double()
    largest = one[one.isfinite()].abs().max().item() if one.isfinite().any() else 0.0
    # Torch sums rows of other shapes in another order, which shows where values are no whole numbers.
    unit = torch.finfo(here.dtype).eps if here.is_floating_point() else 0.0
    bound = 1e-9 + 16 * max(rounding, unit)
    return torch.allclose(one, many, rtol=bound, atol=bound * max(largest, 1.0), equal_nan=True)
