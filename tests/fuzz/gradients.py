"""Gradients of programs, to second order: what Tessera builds against torch's autograd over the records' references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from tessera import grad, op
from tessera.dtypes import dtype_of, fp64
from tessera.errors import ArgumentError
from tessera.lazy.leaves.conversion import as_node
from tests.fuzz.contents import fill, viewed
from tests.fuzz.oracle import RUNS, Expected, Noise, spread_of, values_of, widened
from tests.fuzz.program import Input, Number, Program, number, stepped
from tests.fuzz.ways import Checked, WrongResultError
from tests.property.checking import evaluated_together

RELATIVE = 1e-8
"""Of the largest element of a gradient, by how much any of them may be off."""
ABSOLUTE = 1e-10
"""By how much any gradient may be off: where all cancel (a softmax that hardly moves, a norm of one element, attention
over equal keys), what is left of cotangents is rounding alone; those of second order are sums of some hundreds.
"""


class NotDifferentiableError(Exception):
    """A program that has no gradient to compare, with the reason."""


def check_gradients(program: Program, seed: int = 0, second: bool = True) -> Checked:
    """Compares the gradients of a program's results, weighted and summed, by its inputs of fp64; then, of those
    gradients, weighted and summed, theirs.

    Raises WrongResultError, and NotDifferentiableError where some operator has no gradient.
    """
    places = [place for place, entry in enumerate(program.entries) if _is_variable(program, entry)]
    if not places:
        raise NotDifferentiableError("no input of fp64")
    inputs = [_input(program, place) for place in places]
    weights = torch.Generator().manual_seed(seed)
    first = _Scalar(program, places, weights)
    judged = elements = 0
    for function in (first, _Slope(first, weights)) if second else (first,):
        expected = _expected(function, inputs)
        try:
            built = grad.grad(function.ours, range(len(inputs)))(*[op.tensor(tensor) for tensor in inputs])
        except ArgumentError as error:
            raise NotDifferentiableError(str(error)) from error
        for place, result, wanted in zip(places, evaluated_together(list(built)), expected, strict=True):
            wrong = wanted.wrong(result)
            if wrong is not None:
                order = "gradient" if function is first else "gradient of the gradient"
                raise WrongResultError(f"{order} by entry {place}: {wrong}")
            judged += int(wanted.judged.sum())
            elements += wanted.value.numel()
    return Checked(judged, elements)


def _is_variable(program: Program, entry: object) -> bool:
    return isinstance(entry, Input) and program.memories[entry.memory].dtype == fp64.name and not entry.constant


def _input(program: Program, place: int) -> torch.Tensor:
    """An input's values, in memory of their own: gradients are asked for by the tensor that is read."""
    entry = program.entries[place]
    assert isinstance(entry, Input)
    memory = program.memories[entry.memory]
    whole = torch.zeros(memory.elements, dtype=dtype_of(memory.dtype).torch)
    return viewed(fill(whole, memory), entry).clone()


class _Scalar:
    """The sum of a program's floating-point results, each element times a weight."""

    def __init__(self, program: Program, places: Sequence[int], chance: torch.Generator) -> None:
        self.program = program
        self.places = list(places)
        nodes = self._nodes([as_node(_input(program, place)) for place in places])
        self.roots = [root for root in program.roots if nodes[root].dtype is fp64]
        if not self.roots:
            raise NotDifferentiableError("no result of fp64")
        self.weights = [torch.randn(nodes[root].shape, generator=chance, dtype=torch.float64) for root in self.roots]
        self.others = {
            place: widened(_input(program, place), nodes[place].dtype)
            for place, entry in enumerate(program.entries)
            if isinstance(entry, Input) and place not in places
        }

    def _nodes(self, inputs: Sequence[Any]) -> list[Any]:
        given = dict(zip(self.places, inputs, strict=True))
        nodes: list[Any] = []
        for place, entry in enumerate(self.program.entries):
            if place in given:
                nodes.append(given[place])
            elif isinstance(entry, Input):
                nodes.append(as_node(_input(self.program, place)))
            else:
                nodes.append(number(entry) if isinstance(entry, Number) else stepped(entry, nodes))
        return nodes

    def ours(self, *inputs: Any) -> Any:
        """The sum, as a pending tensor."""
        nodes = self._nodes(inputs)
        return _added([op.sum(nodes[root] * weight) for root, weight in zip(self.roots, self.weights, strict=True)])

    def torchs(self, inputs: Sequence[torch.Tensor], noise: Noise | None) -> torch.Tensor:
        """The sum, of the references."""
        values = values_of(self.program, (), noise, dict(zip(self.places, inputs, strict=True)) | self.others)
        total: torch.Tensor = _added(
            [(values[root] * weight).sum() for root, weight in zip(self.roots, self.weights, strict=True)]
        )
        return total


class _Slope:
    """The sum of a scalar's gradients, each element times a weight."""

    def __init__(self, scalar: _Scalar, chance: torch.Generator) -> None:
        self.scalar = scalar
        shapes = [_input(scalar.program, place).shape for place in scalar.places]
        self.weights = [torch.randn(shape, generator=chance, dtype=torch.float64) for shape in shapes]

    def ours(self, *inputs: Any) -> Any:
        """The sum, as a pending tensor."""
        slopes = grad.grad(self.scalar.ours, range(len(inputs)))(*inputs)
        return _added([op.sum(slope * weight) for slope, weight in zip(slopes, self.weights, strict=True)])

    def torchs(self, inputs: Sequence[torch.Tensor], noise: Noise | None) -> torch.Tensor:
        """The sum, of torch's gradients of the references."""
        value = self.scalar.torchs(inputs, noise)
        slopes = _slopes(value, inputs, create_graph=True)
        total: torch.Tensor = _added(
            [(slope * weight).sum() for slope, weight in zip(slopes, self.weights, strict=True)]
        )
        return total


def _added(terms: Sequence[Any]) -> Any:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _slopes(value: torch.Tensor, inputs: Sequence[torch.Tensor], create_graph: bool) -> list[torch.Tensor]:
    if not value.requires_grad:
        return [torch.zeros_like(each) for each in inputs]
    found = torch.autograd.grad(value, list(inputs), create_graph=create_graph, materialize_grads=True)
    return list(found)


def _expected(function: _Scalar | _Slope, inputs: Sequence[torch.Tensor]) -> list[Expected]:
    def slopes(noise: Noise | None) -> list[torch.Tensor]:
        own = [tensor.clone().requires_grad_() for tensor in inputs]
        return [slope.detach() for slope in _slopes(function.torchs(own, noise), own, create_graph=False)]

    exact = slopes(None)
    moved = [slopes(Noise(run, rounding=False)) for run in range(RUNS)]
    found = [_loosened(spread_of(value, [run[place] for run in moved], fp64)) for place, value in enumerate(exact)]
    if isinstance(function, _Slope):
        # torch's second derivative of `0 ** y` by y is 0 * inf, and NaN; nothing is said of ours then, which is 0.
        found = [replace(each, judged=each.judged & ~each.value.isnan()) for each in found]
    return found


def _loosened(expected: Expected) -> Expected:
    """With a bound for what the runs do not show, as they move values and not cotangents: `1 - t * t` of a saturated
    tanh, and sums of cotangents in another order than torch's.
    """
    value = expected.value
    finite = value.abs()[value.isfinite()]
    largest = float(finite.max()) if finite.numel() else 0.0
    return replace(expected, bound=expected.bound + RELATIVE * largest + ABSOLUTE)
