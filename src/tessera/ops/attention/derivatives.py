"""Derivatives of what is done to scores: elementwise operators in a straight line again.

    tanh(score / cap) * cap     ->     cotangent * (1 - tanh(score / cap)^2), and what it is by the cap

The gradient rules of the steps' records are followed once, over placeholders, and what they make is read back as steps.
So kernels form a derivative where they form the score, and the derivative has a gradient as any steps have.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias

from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import leaf_node
from tessera.ops.attention import scoring
from tessera.ops.attention.scoring import CONSTANT, SCORE, Scoring, Step, as_text
from tessera.ops.attention.traced import placeholder, scoring_of

N: TypeAlias = Any

_SOME: Final = (2, 2)
"""A shape that all operands have while rules are followed, so that nothing is summed up."""


@lru_cache(maxsize=1024)
def derivatives(scores: Scoring, dtype: DType, extras: tuple[DType, ...]) -> tuple[Scoring | None, ...] | None:
    """The cotangents of a score in `dtype` and of each operand beside it, as steps over these and, behind them, the
    cotangent of what `scores` give. None stands for what has none; it is all there is where a rule is not elementwise.

    Floats beside the score are taken in its dtype.
    """
    leaves = [placeholder(_SOME, own, None) for own in (dtype, *wide(extras, dtype), dtype)]
    score, *beside, cotangent = (leaf_node(leaf) for leaf in leaves)
    steps = scoring.applied(scores, score, beside)
    d_score, d_beside = scoring.pulled_back(scores, cotangent, score, beside, steps)
    try:
        return tuple([None if each is None else _steps_of(each, leaves) for each in (d_score, *d_beside)])
    except ArgumentError:
        return None


def wide(extras: Sequence[DType], dtype: DType) -> list[DType]:
    """The dtypes in which derivatives take operands beside a score."""
    return [dtype if extra.kind == "float" else extra for extra in extras]


def _steps_of(derivative: N, leaves: Sequence[Leaf]) -> Scoring:
    """The steps over leaves that make a derivative, numbers of the rules among them. Raises ArgumentError where there
    are none.
    """
    steps, operands = scoring_of(derivative, leaves[0])
    places, numbers = {SCORE: SCORE}, list[Step]()
    for place, operand in enumerate(operands, 1):
        structure, (leaf, *_) = operand.state
        if structure.kind == "scalar":
            numbers.append((CONSTANT, (), (("value", as_text(leaf.owner)),), structure.dtype.name))
            places[place] = -len(numbers)
        elif structure.kind == "buffer" and leaf in leaves:
            places[place] = list(leaves).index(leaf)
        else:
            raise ArgumentError("a gradient that is not elementwise")
    before = len(numbers)
    return (
        *numbers,
        *(
            (name, tuple([places[place] if place >= 0 else place - before for place in read]), attributes, dtype)
            for name, read, attributes, dtype in steps
        ),
    )
