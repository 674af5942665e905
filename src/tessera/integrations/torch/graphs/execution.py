"""Steps one after the other over numbered values: how a graph of partitions and of calls of torch runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

Slots: TypeAlias = list[Any]
"""The values of a call, by number: inputs, results of steps, None where nobody needs one any more."""


@dataclass(frozen=True)
class ResultSlot:
    """The place of a value among a graph's results."""

    number: int


@dataclass(frozen=True)
class CallStep:
    """One thing that happens in a call: `function` of these slots, its results into those; then `dead` are emptied."""

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    several: bool
    """Whether the function gives a sequence with a value for each of `outputs`."""
    dead: tuple[int, ...]


class Execution:
    """What runs in a call. `results` are slots, and values that are no tensors; `constants` are (slot, value)."""

    def __init__(
        self,
        steps: Sequence[CallStep],
        results: Sequence[Any],
        input_count: int,
        slot_count: int,
        constants: Sequence[tuple[int, Any]],
    ) -> None:
        self.results, self.constants = tuple(results), tuple(constants)
        self.input_count, self.slot_count = input_count, slot_count
        self.steps = _with_ends(steps, {each.number for each in results if isinstance(each, ResultSlot)})

    def __call__(self, arguments: Slots) -> list[Any]:
        """The results. The list of inputs becomes the slots, so that inputs end when no step needs them."""
        slots = arguments
        slots += [None] * (self.slot_count - self.input_count)
        for number, value in self.constants:
            slots[number] = value
        for step in self.steps:
            found = step.function(*[slots[number] for number in step.inputs])
            if step.several:
                for number, value in zip(step.outputs, found, strict=True):
                    slots[number] = value
            else:
                slots[step.outputs[0]] = found
            for number in step.dead:
                slots[number] = None
        return [slots[each.number] if isinstance(each, ResultSlot) else each for each in self.results]


def _with_ends(steps: Sequence[CallStep], kept: set[int]) -> tuple[CallStep, ...]:
    """Steps that let go of what no later one reads."""
    last: dict[int, int] = {}
    for place, step in enumerate(steps):
        last.update(dict.fromkeys((*step.inputs, *step.outputs), place))
    dead: list[list[int]] = [[] for _ in steps]
    for number, place in last.items():
        if number not in kept:
            dead[place].append(number)
    return tuple(
        CallStep(step.function, step.inputs, step.outputs, step.several, tuple(ends))
        for step, ends in zip(steps, dead, strict=True)
    )
