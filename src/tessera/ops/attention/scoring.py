"""What is done to the scores of attention before the softmax: elementwise operators in a straight line.

    (("div", (0, 1), (), "fp32"), ("tanh", (-1,), (), "fp32"), ("mul", (-2, 1), (), "fp32"))   cap * tanh(score / cap)

Each step names the record of an elementwise operator, what it is applied to (0 is the score, 1, 2, ... are operands
beside it, which broadcast to the scores; -1, -2, ... are the first step, the second, ...), attributes as text, and the
dtype of what it gives. A "constant" is a step of no operand. The last step gives the score that the softmax sees; no
step at all leaves it as it is.

So records say what a step means, what its gradient is and what kernels do, as everywhere: here they are walked.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, TypeAlias, TypeVar

import torch

from tessera.dtypes import DType, accumulator, bool_, dtype_of
from tessera.ops.algebra import call, literal
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import OPERATORS

N: TypeAlias = Any
T = TypeVar("T")

Step: TypeAlias = tuple[str, tuple[int, ...], tuple[tuple[str, str], ...], str]
"""(operator, what it is applied to, attributes as text, the dtype of the result)."""
Scoring: TypeAlias = tuple[Step, ...]

CONSTANT: Final = "constant"
SCORE: Final = 0
"""What stands for the score among the operands of steps."""

_NUMBERS: Final = {"inf": float("inf"), "-inf": float("-inf"), "nan": float("nan")}


class ScoreRecording:
    """Steps while they are found, each once."""

    def __init__(self) -> None:
        self._steps: dict[Step, int] = {}

    def step(self, operator: str, operands: Sequence[int], attributes: Mapping[str, Any], dtype: DType) -> int:
        """The number of a step."""
        texts = tuple([(name, as_text(value)) for name, value in attributes.items()])
        return self._steps.setdefault((operator, tuple(operands), texts, dtype.name), -1 - len(self._steps))

    def constant(self, value: bool | int | float, dtype: DType) -> int:
        """The number of a literal."""
        return self.step(CONSTANT, (), {"value": value}, dtype)

    def ending_in(self, last: int, dtype: DType) -> Scoring:
        """The steps that give `last` in `dtype`, that of scores."""
        if last >= 0 or tuple(self._steps)[-1 - last][3] != dtype.name:
            last = self.step("cast", (last,), {"dtype": dtype}, dtype)
        return tuple(self._steps)[:-last]


def masking(masks: Sequence[DType], dtype: DType) -> Scoring:
    """The steps that apply the one mask there may be, the first operand beside a score in `dtype`: a mask of booleans
    hides keys, another one is added.
    """
    recording = ScoreRecording()
    if not masks:
        return ()
    if masks[0] is bool_:
        hidden = recording.constant(-math.inf, dtype)
        return recording.ending_in(recording.step("where", (1, SCORE, hidden), {}, dtype), dtype)
    own = 1 if masks[0] is dtype else recording.step("cast", (1,), {"dtype": dtype}, dtype)
    return recording.ending_in(recording.step("add", (SCORE, own), {}, dtype), dtype)


def as_text(value: Any) -> str:
    """An attribute as it stands in a step: texts, unlike numbers, are equal only where they mean the same."""
    return value.name if isinstance(value, DType) else repr(value)


@lru_cache(maxsize=1024)
def _attribute(name: str, text: str) -> Any:
    if name == "dtype":
        return dtype_of(text)
    return _NUMBERS[text] if text in _NUMBERS else ast.literal_eval(text)


def attributes_of(step: Step) -> dict[str, Any]:
    """The attributes of a step as its record takes them; the value of a constant."""
    return {name: _attribute(name, text) for name, text in step[2]}


def walk(scoring: Scoring, operands: Sequence[T], apply: Callable[[Step, Sequence[T]], T]) -> list[T]:
    """What each step gives: `operands` are the score and what is beside it, `apply(step, operands)` does a step."""
    found: list[T] = []
    for step in scoring:
        found.append(apply(step, [operands[place] if place >= 0 else found[-1 - place] for place in step[1]]))
    return found


def last_of(found: Sequence[T], score: T) -> T:
    """What the softmax sees."""
    return found[-1] if found else score


def emitted(scoring: Scoring, e: Emitter[V], score: V, extras: Sequence[V]) -> V:
    """The steps as part of a tile body."""

    def apply(step: Step, operands: Sequence[V]) -> V:
        operator, _, _, dtype = step
        attributes, own = attributes_of(step), dtype_of(dtype)
        if operator == CONSTANT:
            return e.constant(attributes["value"], accumulator(own))
        wide = [e.cast(operand, accumulator(operand.dtype)) for operand in operands]
        result: V = OPERATORS[operator].body(e, *wide, **attributes)
        return e.cast(result, own) if own.kind == "int" else result  # integers wrap around after each operator

    return last_of(walk(scoring, (score, *extras), apply), score)


def referred(scoring: Scoring, score: torch.Tensor, extras: Sequence[torch.Tensor]) -> torch.Tensor:
    """The steps by the records' references, in the dtype of `score`, which is float64."""

    def apply(step: Step, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        operator, _, _, dtype = step
        attributes, own = attributes_of(step), dtype_of(dtype)
        wide = score.dtype if own.kind == "float" else own.torch
        if operator == CONSTANT:
            return torch.tensor(attributes["value"], dtype=wide)
        result: torch.Tensor = OPERATORS[operator].reference(*operands, **attributes)
        return result.to(wide)

    return last_of(walk(scoring, (score, *extras), apply), score)


def applied(scoring: Scoring, score: N, extras: Sequence[N]) -> list[N]:
    """The nodes of the steps, over a score and what is beside it."""

    def apply(step: Step, operands: Sequence[N]) -> N:
        attributes = attributes_of(step)
        if step[0] == CONSTANT:
            return literal(attributes["value"], dtype_of(step[3]))
        return call(step[0], *operands, **attributes)

    return walk(scoring, (score, *extras), apply)


def pulled_back(
    scoring: Scoring, cotangent: N, score: N, extras: Sequence[N], steps: Sequence[N]
) -> tuple[N, list[N | None]]:
    """The cotangents of the score and of what is beside it, for that of the last of `steps`, which `applied` gave."""
    operands = (score, *extras)
    arriving: dict[int, N] = {-len(scoring) if scoring else SCORE: cotangent}
    for number in range(len(scoring) - 1, -1, -1):
        operator, places, _, _ = scoring[number]
        own = arriving.pop(-1 - number, None)
        if own is None or operator == CONSTANT:
            continue
        inputs = tuple([operands[place] if place >= 0 else steps[-1 - place] for place in places])
        rule = OPERATORS[operator].gradient
        parts = rule(own, inputs, steps[number], **{**OPERATORS[operator].attributes, **attributes_of(scoring[number])})
        for place, value, part in zip(places, inputs, parts, strict=True):
            if part is not None and value.dtype.kind == "float":
                arriving[place] = part if place not in arriving else arriving[place] + part
    return arriving.get(SCORE), [arriving.get(1 + place) for place in range(len(extras))]
