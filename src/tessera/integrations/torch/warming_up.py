"""Compiles a model for shapes that will come, before they come."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tessera.errors import ArgumentError
from tessera.integrations.torch.partitions import background


def warmup(
    model: Callable[..., Any], *args: Any, shapes: Iterable[Sequence[Sequence[int]]] = (), **kwargs: Any
) -> None:
    """Compiles all that a compiled model needs for these arguments, and for arguments like them of other `shapes`: for
    each call the shapes of its tensors, in their order. It calls the model, with zeros where the shapes are others, and
    returns when nothing is compiled any more in the background, either.

    So buffers that the model writes to are written to. Raises ArgumentError (E_ARGUMENT) for shapes that do not fit.
    """
    model(*args, **kwargs)
    flat, spec = pytree.tree_flatten((args, kwargs))
    places = [place for place, value in enumerate(flat) if isinstance(value, torch.Tensor)]
    for each in shapes:
        if len(each) != len(places) or any(
            len(shape) != flat[place].dim() for place, shape in zip(places, each, strict=False)
        ):
            ranks = ", ".join(f"{flat[place].dim()}" for place in places)
            raise ArgumentError(
                f"warmup of shapes {[*map(tuple, each)]}, where the call has tensors of {ranks} dimensions",
                hints=["a shape for each tensor among the arguments, in their order"],
            )
        values = list(flat)
        for place, shape in zip(places, each, strict=True):
            if tuple(shape) != tuple(flat[place].shape):
                values[place] = torch.zeros(
                    tuple(shape),
                    dtype=flat[place].dtype,
                    device=flat[place].device,
                    requires_grad=flat[place].requires_grad,
                )
        again, named = pytree.tree_unflatten(values, spec)
        model(*again, **named)
    background.wait()
