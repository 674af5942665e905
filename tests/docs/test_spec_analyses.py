"""The analyses of the profiling guide as they are written there; tests/unit/sharding/exchange has 8.4 on two ranks."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import analyze, op, profile
from tessera.profiling.analyses.rules import RULES
from tests.docs.snippets import ROOT, SPEC, run_all, snippets

ROOFLINE, STALLS, DIVERGENCE, COLLECTIVES = snippets(SPEC / "003_analyses.md")

SECTION_4 = {
    "4.1 SM Occupancy": "low-occupancy",
    "4.2 Warp Divergence": "divergent-warps",
    "4.3 Memory Stalls": "uncoalesced-memory",
    "4.4 Tensor Core Utilization": "idle-tensor-cores",
    "4.5 Collectives Overlap": "exposed-collectives",
    "4.6 Power/Thermals, throttle": "throttled",
    "4.6 Power/Thermals, crest factor": "power-bursts",
}


@pytest.fixture
def recorded(tmp_path: Path) -> None:
    """A trace.json in the current folder."""
    a, b = torch.randn(64, 48), torch.randn(48, 80)
    with profile.session(activities=["cpu", "collective"], exporters=[profile.chrome(tmp_path / "trace.json")]):
        product = op.softmax(op.matmul(a, b))
        op.all_reduce(product)


def shown(names: dict[str, Any], snippet: Any) -> Any:
    """What the last expression of a snippet gives, as an interactive session shows it."""
    code = snippet.code.splitlines()
    exec("\n".join(code[:-1]), names)
    return eval(code[-1], names)


@pytest.mark.usefixtures("recorded")
def test_8_1_kernels_are_held_against_the_roofline_of_a_gpu() -> None:
    model = shown({}, ROOFLINE)
    assert model.target.arch == "sm_90"
    assert {row.kernel for row in model} == {"matmul", "softmax"}
    assert all(row.binding is not None and 0 < row.efficiency_pct < 100 for row in model)
    assert "matmul" in repr(model)


@pytest.mark.usefixtures("recorded")
def test_8_2_stalls_are_broken_down_by_kernel() -> None:
    result = shown({"analyze": analyze}, STALLS)
    assert {row.kernel for row in result} == {"matmul", "softmax"}
    assert sum(row.share_pct for row in result) == pytest.approx(100)
    # Where the machine counts no stalls, the table says so instead of a figure.
    measured = [row.mem_stall_pct for row in result if row.mem_stall_pct is not None]
    assert all(0 <= pct <= 100 for pct in measured)
    assert bool(measured) != bool(re.search(r"^mem_stall_pct.*: not measured: ", repr(result), re.MULTILINE))


@pytest.mark.usefixtures("recorded")
def test_8_3_divergence_is_scanned() -> None:
    result = shown({"analyze": analyze}, DIVERGENCE)
    assert len(result) == 0  # warps are a matter of GPUs
    assert "warp_divergence_pct: not measured: " in repr(result)


@pytest.mark.usefixtures("recorded")
def test_8_4_collectives_of_64_megabytes_are_listed() -> None:
    assert len(shown({"analyze": analyze}, COLLECTIVES)) == 0
    (small,) = analyze.collectives(trace="trace.json")
    assert (small.collective, small.bytes) == ("all_reduce", 64 * 80 * 4)


@pytest.mark.usefixtures("recorded")
def test_the_snippets_run_in_order() -> None:
    assert "analyze" in run_all([ROOFLINE, STALLS, DIVERGENCE, COLLECTIVES])


def test_4_every_paragraph_on_counters_is_a_rule() -> None:
    assert set(SECTION_4.values()) <= {rule.name for rule in RULES}


def test_the_page_lists_every_rule() -> None:
    page = (ROOT / "docs" / "analyses.md").read_text()
    assert [rule.name for rule in RULES if f"| `{rule.name}` |" not in page] == []
