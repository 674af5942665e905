"""What checks a whole model: its weights, and its value and every node's by the records' references in float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from tessera import grad, op
from tessera.dtypes import DType
from tessera.handle import Tensor
from tessera.lazy.structures.building import apply
from tessera.ops import OPERATORS
from tests.property.checking import evaluated, evaluated_together

BOUND = {"fp64": 1e-12, "fp32": 2e-5, "bf16": 6e-2}
"""Largest error as a share of the largest element: that of some twenty products, one after the other."""

GRADIENT_BOUND = 1e-4
"""The same for fp32 gradients, which go through a model twice."""

Model: TypeAlias = Callable[["Weights", Tensor], Tensor]


class Weights:
    """The parameters of a model, drawn or given, in the order in which the model asks for them."""

    def __init__(self, dtype: torch.dtype = torch.float32, given: Sequence[Tensor] = ()) -> None:
        self._generator = torch.Generator().manual_seed(20)
        self._dtype = dtype
        self._given = list(given)
        self.taken: list[Tensor] = []

    def __call__(self, *shape: int) -> Tensor:
        """A weight whose products keep the size of what they multiply: variance 1 / (elements of one output)."""
        fan_in = torch.Size(shape[1:]).numel()
        return self._take(shape, lambda drawn: drawn / fan_in**0.5)

    def vector(self, *shape: int) -> Tensor:
        """A gain, an offset, or a variance: numbers between 0.2 and 0.8."""
        return self._take(shape, lambda drawn: drawn.sigmoid() * 0.6 + 0.2)

    def _take(self, shape: tuple[int, ...], scaled: Callable[[torch.Tensor], torch.Tensor]) -> Tensor:
        number = len(self.taken)
        if number < len(self._given):
            tensor = self._given[number]
        else:
            tensor = op.tensor(scaled(torch.randn(shape, generator=self._generator)).to(self._dtype))
        assert tensor.shape == shape
        self.taken.append(tensor)
        return tensor


def image(batch: int, channels: int, size: int, layout: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random images (batch, channels, size, size) whose memory lies as `layout` says: "first" or "last" channels."""
    drawn = torch.randn(batch, channels, size, size, generator=torch.Generator().manual_seed(batch)).to(dtype)
    return drawn.contiguous(memory_format=torch.channels_last) if layout == "last" else drawn


def check(root: Tensor, *, nodes: bool = True, alone: bool = False) -> None:
    """Asserts that the result of a model is right: as it is, with every node as a result beside it (`nodes`), and each
    node computed of the nodes before it (`alone`).
    """
    values = replayed(root)
    assert_near(evaluated(Tensor(root.state)), values[-1], root.dtype)
    if nodes:
        made = [(tensor, value) for tensor, value in zip(rebuilt(root), values, strict=True) if tensor.is_pending]
        for result, (tensor, value) in zip(evaluated_together([tensor for tensor, _ in made]), made, strict=True):
            assert_near(result, value, tensor.dtype)
    if alone:
        for tensor, value in zip(rebuilt(root, alone=True), values, strict=True):
            assert_near(tensor.torch(), value, tensor.dtype)


def check_gradients(model: Model, x: torch.Tensor) -> None:
    """Asserts that the gradients of a model by its input and by all its weights are those of torch in float64."""
    drawn = Weights()
    model(drawn, op.tensor(x))
    arguments = [op.tensor(x), *drawn.taken]

    def loss(first: Tensor, *weights: Tensor) -> Tensor:
        result = model(Weights(given=weights), first)
        return op.mean(result * op.tanh(result))

    value, gradients = grad.value_and_grad(loss, range(len(arguments)))(*arguments)
    inputs = [tensor.torch().double().requires_grad_() for tensor in arguments]
    known = {id(tensor.leaves[0]): given for tensor, given in zip(arguments, inputs, strict=True)}
    expected = torch.autograd.grad(replayed(value, known)[-1], inputs)
    for result, wanted in zip(evaluated_together(list(gradients)), expected, strict=True):
        assert_near(result, wanted, gradients[0].dtype, GRADIENT_BOUND)


def rebuilt(root: Tensor, alone: bool = False) -> list[Tensor]:
    """The tensor of every node below a result, operands first; with `alone` each is computed before it is used."""
    structure, leaves = root.state
    tensors: list[Tensor] = []
    for below, operands, leaf in structure.post_order():
        if leaf is not None:
            tensors.append(Tensor((below, (leaves[leaf],))))
        elif below.operator is None:
            tensors.append(Tensor((below, ())))
        else:
            made = apply(below.operator, below.attributes, [tensors[operand] for operand in operands])
            tensors.append(made.eval() if alone else made)
    return tensors


def replayed(root: Tensor, known: dict[int, torch.Tensor] | None = None) -> list[torch.Tensor]:
    """The float64 value of every node below a result, by the operators' references; leaves may be given by their
    identity, for autograd to follow them.
    """
    structure, leaves = root.state
    values: list[torch.Tensor] = []
    for below, operands, leaf in structure.post_order():
        wide = torch.float64 if below.dtype.kind == "float" else below.dtype.torch
        if leaf is not None:
            own = leaves[leaf]
            found = None if known is None else known.get(id(own))
            values.append(Tensor((below, (own,))).torch().to(wide) if found is None else found)
        elif below.operator is None:
            values.append(torch.tensor(below.value, dtype=wide))
        else:
            record = OPERATORS[below.operator.name]
            below_it = [values[operand] for operand in operands]
            values.append(record.reference(*below_it, **below.named_attributes).to(wide))
    return values


def assert_near(result: torch.Tensor, expected: torch.Tensor, dtype: DType, bound: float | None = None) -> None:
    """Asserts that the largest error is within the bound of the dtype; integers and bools are equal."""
    assert tuple(result.shape) == tuple(expected.shape)
    assert result.dtype == dtype.torch
    if dtype.kind != "float":
        assert torch.equal(result, expected)
        return
    assert not bool(expected.isnan().any())
    finite = expected.isfinite()
    assert torch.equal(result[~finite].double(), expected[~finite])  # masks add -inf
    largest = float(expected.abs().masked_fill(~finite, 0).max())
    error = float((result.double() - expected).masked_fill(~finite, 0).abs().max())
    assert error <= (bound or BOUND[dtype.name]) * largest, (
        f"an error of {error:.3g} where the largest is {largest:.3g}"
    )
