"""The code of kernels: what the trace holds of them, and texts that another process makes again from their plans.

The compiler loads torch and LLVM, and plans come from files: it works in a process of its own, for a limited time.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any, Final

import polars
from polars import col

from tessera.errors import ArgumentError, ProfileError
from tessera.profiling.analyses import kernels
from tessera.profiling.analyses.presentation.result import work
from tessera.profiling.trace.table import Trace
from tessera.viewer.pages.scope import Parameters
from tessera.viewer.pages.tables import plain
from tessera.viewer.runs import Run

MOST_PROGRAMS: Final = 50
"""Kernels whose code is offered: those that take most time."""
LIMIT_S: Final = 40.0
"""Of which torch's import takes three, and many where other programs want the cores."""
_COMPILER: Final = "tessera.compiler.explain.code"
_LONGEST_STACK: Final = 4000
_SAME: Final = {"label": "operator", "dtype": "dtype", "schedule": "schedule", "flops": "flops", "bytes": "bytes"}
"""What tells one program from another, and what rows of `graph.profile` call it."""
_PLACE: Final = {"plan": "plan_id", "step": "step_id"}
_FIGURES: Final = ("latency_us", "fastest_us", "slowest_us", "tiles", "occupancy_pct", "clock_pct")
"""What the page shows of tiles."""


def programs(run: Run, _: Parameters) -> dict[str, Any]:
    """The kernels with code of their own, a row for each name, dtype, work and schedule, what takes most time first:
    what ran and how long, the Python stack that made the first of them, whether the trace says what it computes, and
    `tiles`, what `graph.profile` measured of them, or null.
    """
    return run.answer("programs", _programs)


def _programs(trace: Trace) -> dict[str, Any]:
    plans = trace.metadata.get("plans") or {}
    is_told = col("plan_id").is_in([int(number) for number in plans if number.isdecimal()])
    texts = {"kernel": kernels.NAME, "dtype": col("dtype"), "schedule": col("schedule")}
    keys = {**texts, "flops": col("flops"), "bytes": col("bytes")}
    found = (
        kernels.kernels(trace)
        .group_by([each.alias(name) for name, each in keys.items()])
        .agg(
            col("stack").cast(polars.String).drop_nulls().first().str.slice(0, _LONGEST_STACK),
            col("operator").cast(polars.String).first().fill_null("").alias("label"),
            **{name: polars.coalesce(col(of).filter(is_told).first(), col(of).first()) for name, of in _PLACE.items()},
            calls=polars.len(),
            total_ms=col("dur_ns").sum() / 1e6,
            median_us=col("dur_ns").median() / 1e3,
        )
        .with_columns(col(*texts).cast(polars.String).fill_null(""))
        .sort("total_ms", *keys, descending=[True, *[False] * len(keys)])
        .collect()
    )
    tiles = _tiles(trace)
    rows = [
        {
            **row,
            "work": work(row["flops"], row["bytes"]),
            "known": str(row["plan"]) in plans,
            "tiles": tiles.get(tuple(row[name] for name in _SAME)),
        }
        for row in found.head(MOST_PROGRAMS).iter_rows(named=True)
    ]
    return {"programs": rows, "total": len(found)}


def _tiles(trace: Trace) -> dict[tuple[Any, ...], dict[str, Any]]:
    """What `graph.profile` measured of kernels' tiles while the session was on, by what tells kernels apart."""
    told = trace.metadata.get("tiles") or []
    try:
        found = {tuple(row[name] for name in _SAME.values()): plain([row[name] for name in _FIGURES]) for row in told}
    except (TypeError, LookupError) as error:
        raise ProfileError("the tiles in the trace's metadata are damaged") from error
    return {key: dict(zip(_FIGURES, figures, strict=True)) for key, figures in found.items()}


def code(run: Run, asked: Parameters) -> dict[str, Any]:
    """The texts of one of `programs`, by its number in the list: `texts` by level, `target`, `version`, `estimate`, and
    `recorded` by and on what; or `reason`, why there are none.
    """
    number, rows = asked.get("program", ""), programs(run, {})["programs"]
    if not number.isdecimal() or int(number) >= len(rows):
        raise ArgumentError(f"program={number!r}", hints=[f"a whole number below {len(rows)}"])
    (found,) = codes(run, [int(number)])
    return found


def codes(run: Run, numbers: list[int]) -> list[dict[str, Any]]:
    """The same of several, which one process makes."""
    rows, metadata = programs(run, {})["programs"], run.trace().metadata
    wanted = [number for number in numbers if rows[number]["known"] and not run.knows(("code", number))]
    made = dict(zip(wanted, _made([_question(rows[number], metadata) for number in wanted]), strict=True))
    name = (metadata.get("target") or {}).get("name")
    answers = []
    for number in numbers:
        untold = {"reason": "the trace does not say what this kernel computes: it is none of Tessera's plans"}
        told = made.get(number, untold)
        answers.append(run.answer(("code", number), functools.partial(_recorded_on, name, told)))
    return answers


def _recorded_on(name: str | None, told: dict[str, Any], _: Trace) -> dict[str, Any]:
    return {**told, "recorded": name}


def _question(row: dict[str, Any], metadata: Any) -> dict[str, Any]:
    expression = metadata["plans"][str(row["plan"])]
    return {"expression": expression, **{name: row[name] for name in ("step", "label", "schedule")}}


def _made(questions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not questions:
        return []
    limit = LIMIT_S + len(questions)
    try:
        done = subprocess.run(
            [sys.executable, "-m", _COMPILER],
            input="".join(json.dumps(each) + "\n" for each in questions),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return [{"reason": f"the compiler has not made it again within {limit:.0f} s"} for _ in questions]
    except OSError as error:
        raise ProfileError(f"the compiler cannot be started: {error.strerror or error}") from error
    lines = done.stdout.splitlines()
    said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    ended = {"reason": f"the compiler has ended: {said[:400]}"}
    return [json.loads(line) for line in lines] + [ended] * (len(questions) - len(lines))
