"""The portable records that `session.records()` gives, made of columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any, Final

import polars

from tessera.profiling.recording.facts import Traffic
from tessera.profiling.trace.schema import CAPABILITIES, Record

_SAME: Final = tuple(
    each.name
    for each in fields(Record)
    if each.name not in ("start_us", "end_us", "fused", "rewrites", "traffic", "shapes", "stack", "capability")
)
"""Fields that are columns."""

_WITHOUT_COUNTERS: Final = ("region", "mark", "counter", "sample", "operator")
"""Kinds of which nobody expects hardware counters."""


def of_events(events: polars.DataFrame, capability: Mapping[str, str]) -> list[Record]:
    """A record for each row, in order. `capability` says why columns are null, where more is known than the kind."""
    known = {**CAPABILITIES, **capability}
    reasons = {kind: _missing(part, known) for (kind,), part in events.partition_by("kind", as_dict=True).items()}
    same = [name for name in _SAME if name in events.columns]
    made = []
    for row in events.iter_rows(named=True):
        told: dict[str, Any] = {name: row[name] for name in same if row[name] is not None}
        told.setdefault("stream_id", 0)
        told["start_us"] = row["start_ns"] / 1000
        told["end_us"] = (row["start_ns"] + row["dur_ns"]) / 1000
        for name, read in _READ:
            if row.get(name) is not None:
                told[name] = read(row[name])
        made.append(Record(**told, capability=reasons[row["kind"]]))
    return made


def _missing(events: polars.DataFrame, reasons: Mapping[str, str]) -> dict[str, str]:
    """Why events of one kind lack portable counters."""
    if events["kind"][0] in _WITHOUT_COUNTERS:
        return {}
    absent = [name for name in CAPABILITIES if name not in events.columns or events[name].null_count() == len(events)]
    return {name: reasons[name] for name in absent}


def _sum(text: str) -> tuple[str, ...]:
    return tuple(text.split("+"))


def _list(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def _stack(text: str) -> tuple[str, ...]:
    return tuple(text.split(";"))


@cache
def _shapes(text: str) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(shape) for shape in json.loads(text))


@cache
def _traffic(text: str) -> Traffic:
    return tuple((level, float(nbytes)) for level, nbytes in json.loads(text).items())


_READ: Final = (
    ("fused", _sum),
    ("rewrites", _list),
    ("traffic", _traffic),
    ("stack", _stack),
    ("shapes", _shapes),
)
"""Columns that are texts of several values, and how they are read."""
