"""Every trial that was ever logged as a table, for plots and for fitting models."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import polars

from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.tuning.store.database import CacheWarning, TuningDatabase
from tessera.tuning.store.entry import schedule_of, seconds_of
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.layer import LOG_SUFFIX
from tessera.tuning.store.untrusted import printable, whole

_COLUMNS: Mapping[str, Any] = {
    "operator": polars.String,
    "shape": polars.List(polars.Int64),
    "dtypes": polars.List(polars.String),
    "layouts": polars.List(polars.String),
    "math": polars.String,
    "accumulation": polars.String,
    "determinism": polars.String,
    "arch": polars.String,
    "threads": polars.Int64,
    "schedule": polars.String,
    "outcome": polars.String,
    "stage": polars.String,
    "cache": polars.String,
    "launch": polars.String,
    "detail": polars.String,
    "median_s": polars.Float64,
    "low_s": polars.Float64,
    "high_s": polars.Float64,
    "kept": polars.Int64,
    "taken": polars.Int64,
    "contended": polars.Boolean,
    "predicted_s": polars.Float64,
    "layer": polars.String,
    "host": polars.String,
}
_TIMES = ("median_s", "low_s", "high_s", "predicted_s")
_COUNTS = ("kept", "taken")


@dataclass(frozen=True)
class _Row:
    """One trial: the values of `_COLUMNS`, and those that become columns of structs."""

    values: Mapping[str, Any]
    knobs: Mapping[str, KnobValue]
    metrics: Mapping[str, Any]
    provenance: Mapping[str, str]


def dataset(database: TuningDatabase) -> polars.DataFrame:
    """All logged trials of all layers, one row each, in the order of their files: `len` is their number.

    Columns are the fields of the identity; `schedule` as text and `knobs`, a struct with a field for each knob that any
    of the kernels has; `outcome`, `detail`, the `stage` of its tuning, `cache` and `launch` (`Conditions`), the median
    with its 95 % interval (`low_s`, `high_s`) and `predicted_s` in seconds per call; how many samples were `kept` of
    those `taken`; `metrics`, a struct; `provenance`, a struct; and the `layer` and the `host` whose log it is. What a
    trial does not have is null. Lines that are no trials are left out, with a `CacheWarning` that counts them.
    """
    rows, spoiled = [], 0
    for layer in database.layers:
        for path in layer.logs():
            for record in database.log_lines(path):
                try:
                    rows.append(_row(record, layer.name, path.name))
                except (KeyError, TypeError, ValueError, AttributeError):
                    spoiled += 1
    if spoiled:
        warnings.warn(f"{spoiled} lines of the logs are no trials of this format, and left out", CacheWarning, 2)
    columns = [
        polars.Series(name, [row.values.get(name) for row in rows], dtype=dtype) for name, dtype in _COLUMNS.items()
    ]
    structs = {
        "knobs": [row.knobs for row in rows],
        "metrics": [row.metrics for row in rows],
        "provenance": [row.provenance for row in rows],
    }
    return polars.DataFrame([*columns, *(_struct(name, values) for name, values in structs.items())])


def _row(record: Mapping[str, Any], layer: str, name: str) -> _Row:
    """The row of a line; KeyError, TypeError, ValueError or AttributeError for one that is no trial."""
    identity = Identity.from_json(record["identity"])
    schedule = schedule_of(record["schedule"])
    values: dict[str, Any] = {field.name: getattr(identity, field.name) for field in fields(identity)}
    values |= {name: list(value) for name, value in values.items() if isinstance(value, tuple)}
    values |= {"schedule": str(schedule), "outcome": printable(record["outcome"])}
    values |= {key: seconds_of(record.get(key)) for key in _TIMES}
    values |= {key: whole(record[key]) for key in _COUNTS if record.get(key) is not None}
    values |= {key: _text(record.get(key)) for key in ("stage", "cache", "launch")}
    values |= {"contended": _flag(record.get("contended")), "detail": _text(record.get("detail"))}
    values |= {"layer": layer, "host": name.removeprefix(f"{identity.shape_name()}.").removesuffix(LOG_SUFFIX)}
    metrics = {printable(key): _metric(value) for key, value in (record.get("metrics") or {}).items()}
    return _Row(values, schedule, metrics, Provenance.from_json(record.get("provenance") or {}).to_json())


def _struct(name: str, rows: Sequence[Mapping[str, Any]]) -> polars.Series:
    """A column of structs with all fields that any row has; what a row lacks is null."""
    names = list(dict.fromkeys(key for row in rows for key in row))
    columns = [_column(key, [row.get(key) for row in rows]) for key in names]
    if not columns:
        return polars.Series(name, [None] * len(rows), dtype=polars.Struct([]))
    return polars.DataFrame(columns).to_struct(name)


def _column(name: str, values: Sequence[Any]) -> polars.Series:
    """Values of one kind as they are, those of several kinds as text."""
    kinds = {type(value) for value in values if value is not None}
    for kind, dtype in _KINDS:
        if kinds <= kind:
            return polars.Series(name, [_plain(value) for value in values], dtype=dtype)
    return polars.Series(name, [None if value is None else _shown(value) for value in values], dtype=polars.String)


_KINDS: tuple[tuple[set[type], Any], ...] = (
    ({bool}, polars.Boolean),
    ({int}, polars.Int64),
    ({int, float}, polars.Float64),
    ({str}, polars.String),
    ({tuple}, polars.List(polars.Int64)),
)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _shown(value: Any) -> str:
    return str(Schedule(value=value)).removeprefix("value=") if isinstance(value, tuple) else str(value)


def _flag(value: object) -> bool | None:
    if value is not None and not isinstance(value, bool):
        raise TypeError(f"{value!r} is no truth value")
    return value


def _text(value: object) -> str | None:
    """What a candidate's failure says; it may have several lines. Halves of surrogates have no place in a table."""
    if value is not None and not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return None if value is None else value.encode(errors="replace").decode()


def _metric(value: object) -> bool | int | float | str | None:
    """A metric as a table can hold it: numbers that fit into 63 bits as they are, all else as text; reasons why others
    are missing one after another.
    """
    if isinstance(value, Mapping):
        return _text("; ".join(f"{name}: {reason}" for name, reason in value.items()))
    if isinstance(value, float) or value is None or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    return _text(str(value))
