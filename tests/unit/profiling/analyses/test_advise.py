"""Advice: every rule fires on a trace that shows its case, and not on one that does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tessera import analyze
from tessera.errors import ArgumentError
from tessera.profiling.analyses.rules import RULES
from tessera.profiling.trace.table import Trace
from tests.unit.profiling.analyses.test_power import BURST
from tests.unit.profiling.analyses.test_roofline import TARGET
from tests.unit.profiling.analyses.traces import collective, kernel, trace

LONG = {"workers": 2, "dtype": "fp32"}
LATE = (
    collective(0, 60, 6e6, rank=0, correlation=1),
    collective(30, 30, 6e6, rank=1, correlation=1),
    kernel("exp", 70, 10, rank=0),
    kernel("exp", 70, 40, rank=1),
)
COMPARED = {"ranks": {"0": {"uncertainty_ns": 0}, "1": {"uncertainty_ns": 1000}}}

CASES: dict[str, tuple[Trace, Trace]] = {
    "low-occupancy": (
        trace(kernel("matmul", 0, 9, sm_occupancy=0.1, mem_stall_pct=70.0)),
        trace(kernel("matmul", 0, 9, sm_occupancy=0.1, mem_stall_pct=5.0)),
    ),
    "divergent-warps": (
        trace(kernel("gather", 0, 9, warp_divergence_pct=30.0)),
        trace(kernel("gather", 0, 9, warp_divergence_pct=3.0)),
    ),
    "uncoalesced-memory": (
        trace(kernel("gather", 0, 9, mem_stall_pct=70.0, dram_read_gbps=1.0, dram_write_gbps=1.0)),
        trace(kernel("gather", 0, 9, mem_stall_pct=70.0, dram_read_gbps=15.0, dram_write_gbps=5.0)),
    ),
    "idle-tensor-cores": (
        trace(kernel("matmul", 0, 9, tc_util_pct=10.0, dtype="bf16")),
        trace(kernel("softmax", 0, 9, tc_util_pct=0.0, dtype="bf16")),
    ),
    "exposed-collectives": (
        trace(collective(0, 60, 6e6), kernel("exp", 70, 10)),
        trace(collective(0, 60, 6e6), kernel("exp", 0, 60)),
    ),
    "late-ranks": (trace(*LATE, metadata=COMPARED), trace(*(each for each in LATE if each["rank"] == 0))),
    "throttled": (BURST, trace(kernel("exp", 0, 1))),
    "power-bursts": (BURST, trace(kernel("exp", 0, 1))),
    "below-the-bound": (
        trace(kernel("matmul", 0, 50_000, flops=2e9, bytes=12e6, **LONG)),
        trace(kernel("matmul", 0, 12_500, flops=2e9, bytes=12e6, **LONG)),
    ),
    "memory-bound": (
        trace(kernel("softmax", 0, 5_000, flops=1e8, bytes=1e8, **LONG)),
        trace(kernel("matmul", 0, 12_500, flops=2e9, bytes=12e6, **LONG)),
    ),
    "launch-gaps": (
        trace(*(kernel("exp", 10 * number, 3) for number in range(20))),
        trace(*(kernel("exp", 10 * number, 9.9) for number in range(20))),
    ),
    "few-workers": (
        trace(kernel("matmul", 0, 5_000, flops=1e8, bytes=1e6, workers=1, dtype="fp32")),
        trace(kernel("matmul", 0, 5_000, flops=1e8, bytes=1e6, **LONG)),
    ),
    "few-threads": (
        trace(kernel("exp", 0, 5_000, workers=1), metadata={"threads": 1}),
        trace(kernel("exp", 0, 5_000, workers=1), metadata={"threads": 2}),
    ),
    "uneven-ranks": (trace(*LATE), trace(kernel("exp", 0, 9, rank=0), kernel("exp", 0, 9, rank=1))),
    "dropped-records": (
        trace(metadata={"launched": 100, "recorded": 90, "dropped_reasons": {"overwritten": 10}}),
        trace(metadata={"launched": 100, "recorded": 100}),
    ),
}


def found(given: Trace, **options: Any) -> set[str]:
    return {row.rule for row in analyze.advise(given, target=TARGET, **options)}


@pytest.mark.parametrize("rule", [rule.name for rule in RULES])
def test_a_rule_finds_its_case_and_no_other(rule: str) -> None:
    shown, sound = CASES[rule]
    assert rule in found(shown)
    assert rule not in found(sound)


def test_advice_has_place_evidence_and_remedy() -> None:
    result = analyze.advise(CASES["below-the-bound"][0], target=TARGET)
    (row,) = result
    assert (row.rule, row.subject, row.share_pct) == ("below-the-bound", "matmul fp32", pytest.approx(100.0))
    assert "20 % of the bound by compute" in row.evidence
    assert "autotune" in row.remedy
    assert "below-the-bound" in str(result)


def test_rules_that_cannot_be_judged_say_why() -> None:
    bare = trace(kernel("exp", 0, 9), capability={"warp_divergence_pct": "no counters here"})
    shown = str(analyze.advise(bare, target=TARGET))
    assert "divergent-warps (by warp_divergence_pct): not judged: no counters here" in shown
    (line,) = [line for line in shown.splitlines() if "no kernel of this trace has it" in line]
    assert "below-the-bound, memory-bound, few-workers (by " in line
    assert "nothing found by" in shown


def test_a_reason_of_many_rules_is_told_once() -> None:
    why = "the administrator does not allow it"
    needed = {name for rule in RULES for name in rule.needs}
    shown = str(analyze.advise(trace(capability=dict.fromkeys(needed, why))))
    (line,) = [line for line in shown.splitlines() if why in line]
    assert line.startswith("low-occupancy, divergent-warps, uncoalesced-memory, idle-tensor-cores, ")
    assert "(by sm_occupancy, mem_stall_pct, warp_divergence_pct, dram_read_gbps, " in line


def test_rules_on_the_device_need_to_know_it() -> None:
    elsewhere = trace(
        kernel("exp", 0, 900, flops=1.0, bytes=8.0, workers=1), metadata={"target": {"arch": "z", "name": "Another"}}
    )
    result = analyze.advise(elsewhere)
    shown = str(result)
    assert "below-the-bound, memory-bound: not judged: no ceilings of the device" in shown
    assert "few-workers, few-threads: not judged: not the trace of a CPU that is known here" in shown
    assert len(result) == 0


def test_threads_that_the_user_allowed_are_not_the_problems_fault() -> None:
    long = kernel("matmul", 0, 5_000, flops=1e8, bytes=1e6, workers=1, dtype="fp32")
    assert "few-workers" not in found(trace(long, metadata={"threads": 1}))


def test_ranks_are_late_only_beyond_what_their_clocks_may_be_apart() -> None:
    apart = {"ranks": {"0": {"uncertainty_ns": 0}, "1": {"uncertainty_ns": 40_000}}}
    assert "late-ranks" not in found(trace(*LATE, metadata=apart))
    assert "late-ranks: not judged: needs the traces of several ranks" in str(analyze.advise(trace(*LATE)))


def test_a_collective_of_unknown_size_is_told_by_name() -> None:
    (row,) = analyze.advise(trace(collective(0, 60, 6e6, collective_bytes=None), kernel("exp", 70, 10)), target=TARGET)
    assert (row.rule, row.subject) == ("exposed-collectives", "all_reduce")


def test_dropped_records_are_told_with_their_reasons() -> None:
    (row,) = analyze.advise(CASES["dropped-records"][0], target=TARGET)
    assert "10 of 100 kernels are missing: 10 overwritten" in row.evidence


def test_the_picture_has_the_shares(tmp_path: Path) -> None:
    assert "launch-gaps" in analyze.advise(CASES["launch-gaps"][0], target=TARGET).plot(tmp_path / "a.svg").read_text()
    only_late = trace(*LATE[:2], metadata=COMPARED)
    with pytest.raises(ArgumentError, match="no finding"):
        analyze.advise(only_late, target=TARGET).plot(tmp_path / "b.svg")
