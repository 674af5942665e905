"""The scores of attention as users write them: a product of queries and keys, scaled, masked and cast in any order.

where(visible, cast(matmul(q, k^T)) / c + bias, -inf) * d      =      q k^T / c * d  + bias * d,  hidden: -inf
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias

from xdsl.ir import SSAValue

from tessera.ir.graph.operations import GraphOperation
from tessera.rewrite.engine import dims_of
from tessera.rewrite.rules.algebra import constant_of, dtype

Scaling: TypeAlias = tuple[str, SSAValue]
"""`mul` or `div`, and a value without dimensions."""

HIDDEN: Final = float("-inf")
"""The score of a key that a query may not see."""
SWALLOWS: Final = -1e8
"""Scores that are added to such a number, or a lower one, in fp32 leave it as it is: it stands for -inf."""


@dataclass(frozen=True)
class Mask:
    """What is done to the scores before `scalings`: they become `lowest` where `value` is true ("hidden") or is not
    ("visible"), or `value` is "added" or "subtracted".
    """

    kind: Literal["visible", "hidden", "added", "subtracted"]
    value: SSAValue
    scalings: tuple[Scaling, ...] = ()
    lowest: float = HIDDEN


@dataclass(frozen=True)
class Scores:
    """The product, what it is multiplied and divided by, and the masks."""

    product: GraphOperation
    scalings: tuple[Scaling, ...] = ()
    masks: tuple[Mask, ...] = ()


def trace_scores(value: SSAValue) -> Scores | None:
    """What `value` is made of, where it is scores that are used nowhere else; None where it is anything else."""
    operation = value.owner
    if not isinstance(operation, GraphOperation) or not only_use(value):
        return None
    if operation.operator == "matmul":
        return Scores(operation)
    for source, step in _steps(operation):
        if dims_of(source) != dims_of(value):
            continue
        found = trace_scores(source)
        if found is not None:
            return _after(found, step)
    return None


def _after(found: Scores, step: Scaling | Mask | None) -> Scores:
    """The scores with one more step done to them."""
    if step is None:
        return found
    if isinstance(step, Mask):
        return replace(found, masks=(*found.masks, step))
    masks = tuple(replace(mask, scalings=(*mask.scalings, step)) for mask in found.masks)
    return replace(found, scalings=(*found.scalings, step), masks=masks)


def _steps(operation: GraphOperation) -> Iterator[tuple[SSAValue, Scaling | Mask | None]]:
    """The operands that may be scores, and what is then done to them."""
    operator, operands = operation.operator, list(operation.inputs)
    if operator == "cast":
        if all(dtype(x).kind == "float" for x in (operands[0], operation.result)):
            yield operands[0], None
    elif (scaled := scaling_of(operation)) is not None:
        yield scaled
    elif operator == "add":
        a, b = operands
        yield a, Mask("added", b)
        yield b, Mask("added", a)
    elif operator == "sub":
        yield operands[0], Mask("subtracted", operands[1])
    elif operator == "where":
        condition, a, b = operands
        if (lowest := _hiding(b)) is not None:
            yield a, Mask("visible", condition, (), lowest)
        elif (lowest := _hiding(a)) is not None:
            yield b, Mask("hidden", condition, (), lowest)


def scaling_of(operation: GraphOperation) -> tuple[SSAValue, Scaling] | None:
    """What is multiplied or divided by a value without dimensions, and how."""
    if operation.operator not in ("mul", "div"):
        return None
    a, b = operation.inputs
    if not dims_of(b) and dims_of(a):
        return a, (operation.operator, b)
    return (b, ("mul", a)) if operation.operator == "mul" and dims_of(b) and not dims_of(a) else None


def _hiding(value: SSAValue) -> float | None:
    """The number that stands for the score of a hidden key."""
    number = constant_of(value)
    return float(number) if number is not None and number <= SWALLOWS else None


def only_use(value: SSAValue) -> bool:
    """Whether one operation uses a value, once; a result of the function is a use, too."""
    return value.uses.get_length() == 1


def joined_dims(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    """The extents that two values broadcast to."""
    rank = max(len(a), len(b))
    padded = [("1",) * (rank - len(names)) + names for names in (a, b)]
    return tuple(second if first == "1" else first for first, second in zip(*padded, strict=True))


def swapped_dims(names: tuple[str, ...]) -> tuple[str, ...]:
    """With the last two exchanged."""
    return (*names[:-2], names[-1], names[-2])
