"""Schedules: immutable mappings that print, parse, hash and travel as JSON without a loss."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ScheduleError
from tessera.scheduling.language.schedule import Schedule

KNOBS = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("and", "as", "def", "del", "elif", "else", "for", "from", "if", "in", "is", "not", "or")
)
VALUES = st.one_of(
    st.booleans(),
    st.integers(-(1 << 40), 1 << 40),
    st.text(st.characters(codec="utf-8"), max_size=8),
    st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple),
)
SCHEDULES = st.dictionaries(KNOBS, VALUES, max_size=6).map(Schedule)


def test_prints_as_the_specification_writes_it() -> None:
    schedule = Schedule(tile=(128, 128, 64), pipeline_depth=3, fusion=True, parallel="rows")
    assert str(schedule) == "tile=(128,128,64), pipeline_depth=3, fusion=True, parallel='rows'"


@given(SCHEDULES)
def test_what_is_printed_is_parsed_back(schedule: Schedule) -> None:
    again = Schedule.parse(str(schedule))
    assert again == schedule
    assert str(again) == str(schedule)
    # Equal to Python, but not the same knob value: True is not 1.
    assert [type(value) for value in again.values()] == [type(value) for value in schedule.values()]


@given(SCHEDULES)
def test_json_keeps_everything(schedule: Schedule) -> None:
    assert Schedule.from_json(json.loads(json.dumps(schedule.to_json()))) == schedule


@given(SCHEDULES)
def test_the_order_of_knobs_does_not_matter(schedule: Schedule) -> None:
    backwards = Schedule(dict(reversed(list(schedule.items()))))
    assert backwards == schedule
    assert hash(backwards) == hash(schedule)


@pytest.mark.parametrize(
    "text", ["tile", "tile=", "tile=(1,2", "1", "tile=x", "tile=f(1)", "tile=1; import os", "tile=1 + 1"]
)
def test_text_that_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(ScheduleError, match="is no schedule") as error:
        Schedule.parse(text)
    assert error.value.code == "E_SCHEDULE_ILLEGAL"


def test_replace_leaves_the_original() -> None:
    schedule = Schedule(tile=(1, 2), keep=0)
    assert schedule.replace(keep=4) == Schedule(tile=(1, 2), keep=4)
    assert schedule["keep"] == 0


def test_knobs_are_read_by_type() -> None:
    schedule = Schedule(tile=(1, 2), keep=4)
    assert schedule.integer("keep") == 4
    assert schedule.integers("tile") == (1, 2)
