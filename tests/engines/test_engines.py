"""Other engines see in our exports what was recorded, where they are installed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars
import pytest

from tessera.profiling.trace.table import Trace
from tests.engines import checks, perfetto, recorded
from tests.unit.viewer.made import whole_run

MODULES = Path(__file__).parents[2] / "node_modules"


@pytest.fixture
def modules() -> Path:
    """Where npm installed Perfetto's engine."""
    reason = perfetto.missing(MODULES)
    if reason is not None:
        pytest.skip(reason)
    return MODULES


def slower(trace: Trace) -> Trace:
    """The trace with its longest kernel a microsecond longer."""
    taken = polars.col("dur_ns")
    longest = (polars.col("kind") == "kernel") & (taken == taken.filter(polars.col("kind") == "kernel").max())
    return Trace(trace.events.with_columns(taken + longest.fill_null(False).cast(polars.Int64) * 1000), trace.metadata)


@pytest.mark.parametrize("run", [whole_run, recorded.trace])
def test_perfetto_sees_what_was_recorded_to_the_nanosecond(run: Callable[[], Trace], modules: Path) -> None:
    trace = run()
    assert list(checks.perfetto_differences(trace, trace, modules)) == []
    assert any("kernel" in each for each in checks.perfetto_differences(trace, slower(trace), modules))


def test_holistic_trace_analysis_has_our_sums_and_our_overlap() -> None:
    reason = checks.holistic_missing()
    if reason is not None:
        pytest.skip(reason)
    trace = recorded.trace()
    assert list(checks.holistic_differences(trace, trace)) == []
    assert list(checks.holistic_differences(trace, slower(trace))) != []
