"""What each engine has to say of a recorded run, and where it says something else."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import polars
from polars import col

from tessera import analyze
from tessera.profiling.export.chrome_facts import SLICES
from tessera.profiling.export.formats import chrome
from tessera.profiling.trace.table import Trace
from tests.engines import perfetto

MOST_NS = 1
"""By how much a duration may differ, as times are written in microseconds."""
MOST_US = 0.1
"""By how much the sum of some dozens of durations may."""
MOST_PCT = 0.01


def perfetto_differences(trace: Trace, exported: Trace, modules: Path) -> Iterator[str]:
    """Where Perfetto sees other slices in the Chrome trace of what was `exported` than `trace` has, by category: their
    number, each one's place and duration; and launches without an arrow.
    """
    queries = [
        "select category, name, ts, dur from slice order by category, ts, dur",
        "select count(*) from flow",
        "select count(*) from counter",
    ]
    slices, flows, counters = perfetto.ask(b"".join(chrome.pieces(exported)), queries, modules)
    events = trace.events.collect()
    names = polars.coalesce("operator", "kernel_name").cast(polars.String)
    for kind in SLICES:
        own = events.filter(col("kind") == kind).select(name=names, at="start_ns", taken="dur_ns").sort("at", "taken")
        theirs = [row for row in slices if row[0] == kind]
        if len(own) != len(theirs):
            yield f"perfetto: {len(theirs)} slices of category {kind}, recorded were {len(own)}"
            continue
        for (name, at, taken), row in zip(own.iter_rows(), theirs, strict=True):
            assert isinstance(row[2], int)
            assert isinstance(row[3], int)
            if name != row[1] or abs(at - row[2]) > MOST_NS or abs(taken - row[3]) > MOST_NS:
                yield f"perfetto: {row}, recorded was {kind} {name} at {at} ns for {taken} ns"
                break
    linked = events.drop_nulls("correlation").group_by("rank", "correlation").len()
    arrows = int((linked["len"] - 1).sum())
    if flows[0][0] != arrows:
        yield f"perfetto: {flows[0][0]} flows, recorded were {arrows} launches"
    values = int(events["kind"].is_in(["counter", "sample"]).sum())
    if counters[0][0] != values:
        yield f"perfetto: {counters[0][0]} values of counters, recorded were {values}"


def holistic_missing() -> str | None:
    """Why HolisticTraceAnalysis cannot run; None where it can."""
    if importlib.util.find_spec("hta") is None:
        return "HolisticTraceAnalysis is not installed: pip install HolisticTraceAnalysis"
    return None


def holistic_differences(trace: Trace, exported: Trace) -> Iterator[str]:
    """Where HolisticTraceAnalysis gives other sums by kernel for the Chrome trace of what was `exported`, or another
    overlap of collectives with kernels, than `analyze` does for `trace`.
    """
    os.environ["HTA_DISABLE_NS_ROUNDING"] = "1"  # it would cut times down to microseconds
    with tempfile.TemporaryDirectory() as folder, _silent():
        path = chrome.write(exported, Path(folder) / "rank0.json")
        from hta.trace_analysis import TraceAnalysis

        found = TraceAnalysis(trace_files={0: str(path)}, trace_dir=folder)
        _, kernels = found.get_gpu_kernel_breakdown(visualize=False)
        overlap = found.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].iloc[0]
    theirs = dict(zip(kernels["name"], kernels["sum (us)"], strict=True))
    on_device = trace.events.filter(col("kind").is_in(["kernel", "collective"]))
    own = on_device.group_by(col("kernel_name").cast(polars.String)).agg(col("dur_ns").sum() / 1e3).collect()
    for name, taken in own.iter_rows():
        if abs(theirs.get(name, 0.0) - taken) > MOST_US:
            yield f"holistic: {name} takes {theirs.get(name)} us, recorded were {taken}"
    if extra := theirs.keys() - set(own["kernel_name"]):
        yield f"holistic: kernels that were not recorded: {', '.join(sorted(extra))}"
    (row,) = analyze.collectives(trace)
    if abs(overlap - row.overlap_pct) > MOST_PCT:
        yield f"holistic: {overlap} % of collectives beside kernels, analyze.collectives has {row.overlap_pct}"


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Keeps its log and warnings to themselves."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)
