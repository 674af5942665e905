"""The events of a Chrome trace as lines of text, made by columns: a quarter of a microsecond each."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy
import polars
from polars import col

from tessera.profiling.export.chrome_facts import ARGUMENTS, FACTS, SLICES

DETAILED: Final = 10_000
"""Events up to which every slice has all that is known of it, so that a click on it in a viewer shows it."""

_DIGITS: Final = 4
_JSON: Final = ("shapes", "traffic")
_BATCH: Final = 1 << 18


def lines(
    rows: polars.DataFrame, kinds: polars.DataFrame, lanes: polars.DataFrame, own: Sequence[str]
) -> Iterator[bytes]:
    """A line for each row, `,{"name": ...}`.

    `rows` has `kind`, `ts`, `dur`, `value`, the columns of `own`, and `number`, the row of `kinds` that says the rest;
    `lanes` says which `process`, `track`, `device` and `stream_id` a lane is.
    """
    places = lanes.to_dicts()
    texts = [_texts(row, places[row["lane"]]) for row in kinds.iter_rows(named=True)]
    heads = polars.Series([head for head, _, _ in texts], dtype=polars.String)
    tails = polars.Series([brief for _, brief, _ in texts] + [full for _, _, full in texts], dtype=polars.String)
    detailed = numpy.full(len(rows), int(len(rows) <= DETAILED))
    detailed[kinds["row"].to_numpy()] = 1
    line = _line(own)
    for begin in range(0, len(rows), _BATCH):
        batch = rows[begin : begin + _BATCH]
        number = batch["number"]
        tail = tails.gather(number + len(texts) * polars.Series(detailed[begin : begin + _BATCH]))
        yield _joined(batch.with_columns(head=heads.gather(number), tail=tail).select(line))


def _texts(row: Mapping[str, Any], lane: Mapping[str, Any]) -> tuple[str, str, str]:
    """What stands before the time of events of one number; and what stands after it, brief and with all facts."""
    kind = row["kind"]
    name = row["operator"] if kind == "kernel" and row["operator"] else row["kernel_name"]
    phase = "X" if kind in SLICES else "i" if kind == "mark" else "C"
    head = f',{{"name":{json.dumps(name or "")},"ph":"{phase}","ts":'
    tail = f',"pid":{lane["process"]},"tid":{lane["track"]},"cat":"{kind}"'
    if kind == "region":
        return head, tail, tail
    if kind == "mark":
        tail += ',"s":"t"'
        return head, tail, tail
    if phase == "C":
        # Viewers tell counters of one process apart by their names and `id`.
        said = {"id": row["device"] if kind == "sample" else None, "throttle_reason": row["throttle_reason"]}
        said["stack"] = row["stack"]
        tail += "".join(f',"{name}":{json.dumps(value)}' for name, value in said.items() if value is not None)
        tail += f',"args":{{{json.dumps(row["unit"] or "value")}:'
        return head, tail, tail
    tail += f',"args":{{"k":{row["k"]}'
    if not lane["device"].startswith("cpu"):  # by the names under which HolisticTraceAnalysis looks for them
        index = lane["device"].rpartition(":")[2]
        tail += f',"device":{index if index.isdecimal() else 0},"stream":{lane["stream_id"]}'
    return head, tail, "".join([tail, *(f',"{name}":{text}' for name, text in _facts(row))])


def _facts(row: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Arguments that tell what a kernel is, as JSON."""
    for name in FACTS:
        value = row[name]
        if value is None or (row["kind"] == "collective" and name == "bytes"):
            continue
        if isinstance(value, float):
            if not math.isfinite(value):
                continue
            value = int(value) if value.is_integer() else value
        yield ARGUMENTS.get(name, name), value if name in _JSON else json.dumps(value)


def _line(own: Sequence[str]) -> polars.Expr:
    value = polars.when(col("value").is_finite()).then(col("value").cast(polars.String)).fill_null("null")
    return polars.concat_str(
        "head",
        "ts",
        polars.when(col("kind").is_in(SLICES)).then(polars.concat_str(polars.lit(',"dur":'), "dur")),
        "tail",
        polars.when(col("kind").is_in(("counter", "sample"))).then(value),
        *map(_argument, own),
        polars.when(col("kind").is_in(("region", "mark"))).then(polars.lit("}")).otherwise(polars.lit("}}")),
        ignore_nulls=True,
    )


def _argument(name: str) -> polars.Expr:
    """`,"name":number` for slices that have arguments and for which the number is known."""
    known = col("kind").is_in(SLICES[:-1]) & col(name).is_finite()
    number = col(name) if name == "correlation" else col(name).round_sig_figs(_DIGITS)
    text = polars.concat_str(polars.lit(f',"{ARGUMENTS.get(name, name)}":'), number.cast(polars.String))
    return polars.when(known).then(text)


def arrows(rows: polars.DataFrame, lanes: polars.DataFrame) -> bytes:
    """Flow events: from the first slice of a correlation, the launch, to each later one."""
    linked = (
        rows.select("rank", "correlation", "ts", "lane")
        .drop_nulls("correlation")
        .filter(polars.len().over("rank", "correlation") > 1)
    )
    launch = polars.struct("rank", "correlation").is_first_distinct()
    line = polars.format(
        ',{{"name":"launch","cat":"launch",{},"id":{},"ts":{},"pid":{},"tid":{}}}',
        polars.when(launch).then(polars.lit('"ph":"s"')).otherwise(polars.lit('"ph":"f","bp":"e"')),
        # One number for a launch of a rank; viewers read numbers exactly up to 2 to the 53rd.
        col("rank").cast(polars.Int64).fill_null(0) * (1 << 40) + col("correlation"),
        "ts",
        "process",
        "track",
    )
    places = lanes[linked["lane"]].select("process", "track")
    return _joined(linked.hstack(places).select(line))


def _joined(texts: polars.DataFrame) -> bytes:
    """The lines of a table of one column. CSV without quotes is the fastest way out of polars."""
    buffer = io.BytesIO()
    texts.write_csv(buffer, include_header=False, quote_style="never")
    return buffer.getvalue()
