"""Schedules: immutable mappings from knob names to values; printed, cached, replayed, written into Schedule IR."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from tessera.errors import ArgumentError, ScheduleError
from tessera.lazy.symbols.integers import is_symbolic, plain
from tessera.system import notebooks

KnobValue: TypeAlias = bool | int | str | tuple[int, ...]


def _format(value: KnobValue) -> str:
    if isinstance(value, tuple):
        return "(" + ",".join(map(str, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value) if isinstance(value, str) else str(value)


class Schedule(Mapping[str, KnobValue]):
    """An immutable, hashable mapping from knob to value; `str` and `parse` are inverse.

    >>> Schedule(tile=(128, 128, 64), pipeline_depth=3, fusion=True)
    tile=(128,128,64), pipeline_depth=3, fusion=True
    """

    __slots__ = ("_hash", "_values")

    def __init__(self, values: Mapping[str, KnobValue] | None = None, /, **knobs: KnobValue) -> None:
        self._values = {**(values or {}), **knobs}
        self._hash = hash(frozenset(self._values.items()))

    def settled(self) -> Schedule:
        """The schedule where its values may depend on sizes (`lazy/symbols`), which then have to be these."""
        values = self._values.values()
        if not any(is_symbolic(each) for value in values for each in (value if type(value) is tuple else (value,))):
            return self
        return Schedule(
            {
                knob: tuple([plain(each) for each in value]) if isinstance(value, tuple) else plain(value)
                for knob, value in self._values.items()
            }
        )

    @classmethod
    def given(cls, knobs: Mapping[str, object]) -> Schedule:
        """The schedule of knobs as users give them: in one order, lists as tuples. Raises ArgumentError for what can be
        no knob's value.
        """
        values: dict[str, KnobValue] = {}
        for knob, given in sorted(knobs.items()):
            value = tuple(given) if isinstance(given, list) else given
            if not isinstance(value, bool | int | str) and not (
                isinstance(value, tuple) and all(type(extent) is int for extent in value)
            ):
                raise ArgumentError(
                    f"{knob}={given!r} is no knob's value", hints=["a boolean, integer, text or integers"]
                )
            values[knob] = value
        return cls(values)

    def __getitem__(self, knob: str) -> KnobValue:
        return self._values[knob]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Schedule) and self._values == other._values

    def __reduce__(self) -> tuple[type[Schedule], tuple[dict[str, KnobValue]]]:
        return Schedule, (self._values,)  # hashes of strings differ from process to process

    def __repr__(self) -> str:
        return ", ".join(f"{knob}={_format(value)}" for knob, value in self._values.items())

    def _repr_html_(self) -> str:
        return notebooks.table([[knob, _format(value)] for knob, value in self._values.items()], ["knob", "value"])

    def integer(self, knob: str) -> int:
        """The value of an integer knob."""
        value = self._values[knob]
        assert isinstance(value, int)
        return value

    def integers(self, knob: str) -> tuple[int, ...]:
        """The value of a tuple knob."""
        value = self._values[knob]
        assert isinstance(value, tuple)
        return value

    def flag(self, knob: str) -> bool:
        """Whether a knob is neither False nor 0."""
        return bool(self._values[knob])

    def equals(self, knob: str, value: KnobValue) -> bool:
        """Whether a knob has a value."""
        return self._values[knob] == value

    def replace(self, **knobs: KnobValue) -> Schedule:
        """This schedule with some knobs changed."""
        return Schedule(self._values, **knobs)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; `from_json` is the inverse."""
        return {knob: list(value) if isinstance(value, tuple) else value for knob, value in self._values.items()}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Schedule:
        """The schedule that `to_json` wrote."""
        return cls({knob: tuple(value) if isinstance(value, list) else value for knob, value in values.items()})

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """The schedule that `str` printed; E_SCHEDULE_ILLEGAL when the text is none."""
        try:
            call = ast.parse(f"_({text})", mode="eval").body
            if not isinstance(call, ast.Call) or call.args or not all(item.arg for item in call.keywords):
                raise ValueError("something other than knob=value")
            return cls({str(item.arg): ast.literal_eval(item.value) for item in call.keywords})
        except (SyntaxError, ValueError) as error:
            raise ScheduleError(
                f"{text!r} is no schedule", hints=["write knob=value, ... as a schedule prints itself"]
            ) from error
