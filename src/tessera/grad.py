"""Gradients of expressions and of functions, built as expressions: reverse mode over the operators' gradient rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tessera.doors.cotangents import input_leaf, pulled_back
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.leaf import Leaf

__all__ = ["grad", "value_and_grad", "vjp"]


def vjp(output: Tensor, inputs: Sequence[Tensor], cotangent: object = None) -> list[Tensor]:
    """The cotangent of each input, lazy, for one of the output (ones by default): vector-Jacobian products.

    Inputs are evaluated tensors that the output was made of; one that it does not depend on gets zeros. Raises
    ArgumentError (E_ARGUMENT) for an input of another library, a pending one, and one that the output reads through a
    view (`x.T` of an evaluated x), DTypeError (E_DTYPE) where output or an input is no floating-point tensor.
    """
    _refuse_views(output, [input_leaf(tensor) for tensor in inputs])
    return pulled_back([output], inputs, [cotangent])


def grad(function: Callable[..., Tensor], argument: int | Sequence[int] = 0) -> Callable[..., Any]:
    """The function that gives the gradient of a function of one-element result by one argument, or by several (a
    tuple).
    """
    both = value_and_grad(function, argument)

    def gradient(*arguments: object, **options: object) -> Any:
        return both(*arguments, **options)[1]

    return gradient


def value_and_grad(
    function: Callable[..., Tensor], argument: int | Sequence[int] = 0
) -> Callable[..., tuple[Tensor, Any]]:
    """As `grad`, with the function's value first: `(value, gradient)`. Raises ShapeMismatchError for a larger
    result.
    """
    numbers = (argument,) if isinstance(argument, int) else tuple(argument)

    def both(*arguments: object, **options: object) -> tuple[Tensor, Any]:
        tensors = list(arguments)
        own: dict[Leaf, Leaf] = {}
        for number in numbers:
            leaf = input_leaf(cast(Tensor, as_node(arguments[number])).eval())
            watched = _WatchedLeaf(leaf.structure, leaf.address, leaf.owner, leaf.version, leaf.origin)
            tensors[number], own[watched] = Tensor((leaf.structure, (watched,))), leaf
        value = function(*tensors, **options)
        if value.size != 1:
            raise ShapeMismatchError(
                f"the gradient of a result of shape {value.shape}", hints=["reduce it, or use vjp"]
            )
        # Not `vjp`: views of a watched argument are part of the expression, and what else is read is held still.
        found = pulled_back([value], [cast(Tensor, tensors[number]) for number in numbers], [None])
        gradients = [_over(own, gradient) for gradient in found]
        return _over(own, value), gradients[0] if isinstance(argument, int) else tuple(gradients)

    return both


class _WatchedLeaf(Leaf):
    """An argument by which a gradient is asked. Layout operators on it stay part of the expression, where views of an
    ordinary leaf would be leaves of their own.
    """

    __slots__ = ()


def _over(own: Mapping[Leaf, Leaf], tensor: Tensor) -> Tensor:
    """A result over the caller's leaves, so that a gradient around this one follows them."""
    structure, leaves = tensor.state
    return Tensor((structure, tuple(own.get(leaf, leaf) for leaf in leaves)))


def _refuse_views(output: Tensor, wanted: Sequence[Leaf]) -> None:
    owners = {id(leaf.owner) for leaf in wanted}
    for leaf in output.state[1]:
        if id(leaf.owner) in owners and leaf not in wanted:
            raise ArgumentError(
                f"the output reads a view of shape {leaf.shape} of an input, which gradients do not follow",
                hints=["take the gradient of a function of the input: grad(function)(x)"],
            )
