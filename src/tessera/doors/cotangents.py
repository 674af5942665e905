"""Cotangents of expressions: reverse mode over the operators' gradient rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tessera.dtypes import DType
from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.ops.algebra import filled
from tessera.ops.reverse import by_leaves
from tessera.sharding.regions.varying import as_varying
from tessera.sharding.tensors.making import zeros_like


def pulled_back(outputs: Sequence[Tensor], inputs: Sequence[Tensor], cotangents: Sequence[object]) -> list[Tensor]:
    """The cotangent of each input for a cotangent of each of several outputs (None: ones). Inputs are leaves; gradients
    follow views of them where these are part of the expressions, as over placeholders.
    """
    wanted = [input_leaf(tensor) for tensor in inputs]
    for output in outputs:
        if output.dtype.kind != "float":
            raise DTypeError(
                f"the gradient of a tensor of {output.dtype}", hints=["gradients are of floating-point tensors"]
            )
    seeds = [_cotangent(output, cotangent) for output, cotangent in zip(outputs, cotangents, strict=True)]
    by_leaf = by_leaves(as_varying(outputs), seeds)
    parts = [by_leaf.get(leaf) for leaf in wanted]
    return [
        _zeros(tensor, leaf) if part is None else _laid_out(part, leaf)
        for part, tensor, leaf in zip(parts, inputs, wanted, strict=True)
    ]


def _laid_out(part: Tensor, leaf: Leaf) -> Tensor:
    """A gradient in the layout of what it is by."""
    layout = leaf.structure.layout
    if layout is None:
        return part
    if all(below.structure.layout is None for below in part.leaves):
        # A constant lies on no mesh; what it is added to does.
        part = cast(Tensor, leaf_node(zeros_like(leaf))) + part
    return part.reshard(layout)


def input_leaf(tensor: Tensor) -> Leaf:
    """The leaf of what a gradient is by. Raises ArgumentError (E_ARGUMENT) for what is pending or no tensor of
    Tessera's, DTypeError (E_DTYPE) for what is no floating-point tensor.
    """
    if not isinstance(tensor, Tensor):
        raise ArgumentError(
            f"the gradient by a {type(tensor).__module__}.{type(tensor).__name__}",
            hints=["make it x = op.tensor(x) before it is used", "or take grad(function)(x)"],
        )
    structure, leaves = tensor.state
    if structure.kind != "buffer":
        raise ArgumentError("the gradient by a pending tensor", hints=["evaluate it before it is used: x.eval()"])
    if structure.dtype.kind != "float":
        raise DTypeError(f"the gradient by a tensor of {structure.dtype}", hints=["cast it to fp32 first"])
    return leaves[0]


def _zeros(tensor: Tensor, leaf: Leaf) -> Tensor:
    if leaf.structure.layout is not None:
        return cast(Tensor, leaf_node(zeros_like(leaf)))
    return cast(Tensor, filled(0, tensor))


def _cotangent(output: Tensor, cotangent: object) -> Tensor:
    if cotangent is None:
        return cast(Tensor, filled(1, output))
    given = cast(Tensor, as_node(cotangent))
    if given.shape != output.shape:
        raise ShapeMismatchError(f"a cotangent of shape {given.shape} for an output of shape {output.shape}")
    return _in_dtype(given, output.dtype)


def _in_dtype(tensor: Tensor, dtype: DType) -> Tensor:
    return tensor if tensor.dtype is dtype else tensor.to(dtype)
