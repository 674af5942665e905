"""Operators on lists of tensors, taken apart into those on each: what optimizers are written with."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

aten = torch.ops.aten

ALIKE = (
    "abs ceil clamp_max clamp_min copy cos div erf exp expm1 floor lerp log log1p mul neg pow reciprocal round rsqrt "
    "sigmoid sign sin sqrt sub add tan tanh trunc"
).split()
"""Names of operators that are called alike on a tensor."""


def _addcmul(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: float = 1) -> torch.Tensor:
    result: torch.Tensor = aten.addcmul(x, a, b, value=value)
    return result


def _addcdiv(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, value: float = 1) -> torch.Tensor:
    result: torch.Tensor = aten.addcdiv(x, a, b, value=value)
    return result


SINGLE: dict[str, Callable[..., Any]] = {
    **{name: getattr(aten, name) for name in ALIKE},
    "addcdiv": _addcdiv,
    "addcmul": _addcmul,
    "maximum": aten.clamp_min,
    "minimum": aten.clamp_max,
    "norm": aten.linalg_vector_norm,
    "zero": aten.zeros_like,
}
"""The operator on a tensor by the name of that on a list."""


def decompositions() -> Iterator[tuple[Any, Callable[..., Any]]]:
    """Each overload with the function that takes it apart."""
    for name, single in SINGLE.items():
        packet = getattr(aten, f"_foreach_{name}")
        for overload in packet.overloads():
            # One tensor of numbers has one for each of the list: which they are, torch looks up when it runs.
            if not overload.endswith("out") and not (overload == "Tensor" and name in ("addcdiv", "addcmul")):
                target = getattr(packet, overload)
                yield target, _of_each(target, single)


def _of_each(target: Any, single: Callable[..., Any]) -> Callable[..., Any]:
    has_many = [isinstance(argument.type, torch.ListType) for argument in target._schema.arguments]

    def apply(*given: Any, **options: Any) -> list[Any]:
        count = next(len(value) for value, many in zip(given, has_many, strict=False) if many)
        return [
            single(*[value[place] if many else value for value, many in zip(given, has_many, strict=False)], **options)
            for place in range(count)
        ]

    return apply
