"""What to do about a trace: the rules of `rules.py`, judged on it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import polars
from polars import col

from tessera.errors import ArgumentError
from tessera.profiling.analyses import collectives, kernels, power, roofline
from tessera.profiling.analyses.presentation.result import Analysis, bars
from tessera.profiling.analyses.rules import RULES, Facts
from tessera.profiling.analyses.sweep import Span
from tessera.profiling.trace.table import Trace
from tessera.target import Target

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_HEADINGS: Final = {
    "rule": "Rule",
    "subject": "Where",
    "share_pct": "Share(%)",
    "evidence": "Evidence",
    "remedy": "Remedy",
}
_SCHEMA: Final = {
    "rule": polars.String,
    "subject": polars.String,
    "share_pct": polars.Float64,
    "evidence": polars.String,
    "remedy": polars.String,
}


_CEILINGS: Final = "no ceilings of the device: `tessera quickstart` measures this CPU's, arch= names a GPU"
_UNKNOWN: Final = {
    "roofline": _CEILINGS,
    "memory_gbps": _CEILINGS,
    "processors": "not the trace of a CPU that is known here",
    "clocks_us": "needs the traces of several ranks whose clocks were compared",
}
"""Why a field of `Facts` is None."""


def advise(trace: Trace, target: Target | None) -> Analysis:
    """The findings of all rules, by the share of the time that they concern. `target` has the ceilings; without them
    what needs them is not judged, and the notes say so.
    """
    facts = _facts(trace, target)
    unjudged = _unjudged(trace, facts)
    judged = [rule for rule in RULES if rule.name not in unjudged]
    rows = [
        (rule.name, found.subject, found.share_pct, found.evidence, rule.remedy)
        for rule in judged
        for found in rule.find(facts)
    ]
    table = polars.DataFrame(rows, schema=_SCHEMA, orient="row").sort(
        "share_pct", descending=True, nulls_last=True, maintain_order=True
    )
    found_rules = set(table["rule"])
    quiet = [rule.name for rule in judged if rule.name not in found_rules]
    notes = [f"nothing found by: {', '.join(quiet)}"] if quiet else []
    notes += [f"{_of(each)}: not judged: {why}" for why, each in _grouped(unjudged).items()]
    return Analysis("Advice", table, _HEADINGS, tuple(notes), drawing=_draw)


def _facts(trace: Trace, target: Target | None) -> Facts:
    model = None
    if target is not None and target.ceilings is not None:
        model = roofline.Roofline(tuple(roofline.points(trace)), target).to_polars()
    events, spans = collectives.overlapped(trace)
    return Facts(
        kernels=kernels.grouped(trace, "kernel"),
        roofline=model,
        collectives=collectives.by_kind(events),
        power=power.power(trace).table,
        ranks=_ranks(spans),
        metadata=trace.metadata,
        processors=target.cores if target is not None and target.kind == "cpu" else None,
        memory_gbps=_memory_gbps(target),
        clocks_us=trace.clocks_us(),
    )


def _memory_gbps(target: Target | None) -> float | None:
    """The peak of a device's memory for all of it, None where nobody has measured or published it."""
    if target is None or not target.memory:
        return None
    rate = target.byte_per_s(target.memory[-1].name)
    return None if rate is None else rate / 1e9


def _ranks(spans: Mapping[int, Span]) -> polars.DataFrame:
    rows = [(rank, span.busy_ns / 1e6, span.span_ns / 1e6, span.events) for rank, span in sorted(spans.items())]
    schema = {"rank": polars.Int32, "busy_ms": polars.Float64, "span_ms": polars.Float64, "kernels": polars.Int64}
    return polars.DataFrame(rows, schema=schema, orient="row")


def _present(trace: Trace) -> dict[str, bool]:
    """Which of the columns that rules need have a value anywhere."""
    names = sorted({name for rule in RULES for name in rule.needs})
    asked = [name for name in names if name not in trace.capability]
    found = kernels.present(trace, asked)
    return {name: name in found for name in names}


@dataclass(frozen=True)
class _Lack:
    """What a rule cannot be judged without, and why that is not there: a column, "" for what is none."""

    column: str
    why: str


def _unjudged(trace: Trace, facts: Facts) -> dict[str, list[_Lack]]:
    """What rules that cannot be judged lack, by name."""
    present = _present(trace)
    reasons = kernels.missing_in_trace(trace, (name for name, there in present.items() if not there))
    found = {}
    for rule in RULES:
        lacks = [_Lack(name, reasons[name]) for name in rule.needs if not present[name]]
        if rule.known and getattr(facts, rule.known) is None:
            lacks.append(_Lack("", _UNKNOWN[rule.known]))
        if lacks:
            found[rule.name] = lacks
    return found


def _grouped(unjudged: Mapping[str, list[_Lack]]) -> dict[str, tuple[list[str], list[str]]]:
    """By reason the rules and the columns that have it, each reason once."""
    found: dict[str, tuple[list[str], list[str]]] = {}
    for rule, lacks in unjudged.items():
        for lack in lacks:
            rules, columns = found.setdefault(lack.why, ([], []))
            rules += [rule] * (rule not in rules)
            columns += [lack.column] * (lack.column not in ("", *columns))
    return found


def _of(group: tuple[list[str], list[str]]) -> str:
    rules, columns = (", ".join(names) for names in group)
    return f"{rules} (by {columns})" if columns else rules


def _draw(figure: Figure, rows: polars.DataFrame) -> None:
    shown = rows.filter(col("share_pct").is_not_null()).head(20)
    if shown.is_empty():
        raise ArgumentError("no finding concerns a share of the time that could be drawn", hints=["print the advice"])
    labels = [f"{row['rule']}: {row['subject']}" for row in shown.iter_rows(named=True)]
    bars(figure, labels, shown["share_pct"].to_list(), "share of the time, %", "Advice")
