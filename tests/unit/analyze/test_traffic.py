"""The memory breakdown: bytes by memory level as the compiler estimates them, beside what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tessera import analyze, op, profile
from tessera.errors import ProfileError
from tests.unit.analyze.traces import kernel, trace

ESTIMATE = '{"L1":3000000,"L2":2000000,"L3":1000000,"DRAM":500000,"scratch":4000000}'


def test_estimates_are_of_all_calls_and_scratch_is_the_most_of_one() -> None:
    smaller = json.dumps({**json.loads(ESTIMATE), "scratch": 1_000_000})
    (row,) = analyze.memory(
        trace(
            kernel("exp", 0, 5, traffic=ESTIMATE),
            kernel("exp", 9, 5, traffic=ESTIMATE),
            kernel("exp", 19, 5, traffic=smaller),
        )
    )
    assert (row.l1_mb, row.l2_mb, row.l3_mb, row.dram_mb, row.scratch_mb) == (9, 6, 3, 1.5, 4)


def test_a_call_without_an_estimate_leaves_its_kernel_without_one() -> None:
    known, unknown = analyze.memory(
        trace(kernel("exp", 0, 50, traffic=ESTIMATE), kernel("topk", 60, 5, traffic=ESTIMATE), kernel("topk", 70, 5))
    )
    assert known.dram_mb == 0.5
    assert (unknown.name, unknown.dram_mb) == ("topk", None)


def test_without_estimates_the_columns_are_missing_and_say_so() -> None:
    result = analyze.memory(trace(kernel("exp", 0, 5)))
    assert "dram_mb" in result.missing
    assert "est. DRAM" not in str(result).splitlines()[2]


@pytest.mark.parametrize("text", ["[1]", "{", '{"L1": "much"}', "7"])
def test_what_is_no_estimate_is_refused(text: str) -> None:
    with pytest.raises(ProfileError, match="traffic"):
        analyze.memory(trace(kernel("exp", 0, 5, traffic=text)))


def test_kernels_of_a_session_have_estimates_that_files_keep(tmp_path: Path) -> None:
    x = torch.randn(256, 512)
    with profile.session() as session:
        (op.tensor(x) + 1.0).eval()
    (record,) = (record for record in session.records() if record.kind == "kernel")
    estimate = dict(record.traffic)
    assert list(estimate) == ["L1", "L2", "L3", "DRAM", "scratch"]
    # Every byte comes from and goes to some level, where it lies.
    assert sum(estimate[level] for level in ("L2", "L3", "DRAM")) + estimate["L1"] >= (record.bytes or 0)
    (row,) = analyze.memory(session)
    assert row.dram_mb == pytest.approx(estimate["DRAM"] / 1e6)
    assert "est." in str(analyze.memory(session))


def test_scratch_memory_is_that_of_all_workers() -> None:
    with profile.session() as session:
        op.matmul(torch.randn(200, 200), torch.randn(200, 200), tile_shape=(48, 64, 32)).eval()
    (record,) = (record for record in session.records() if record.operator == "matmul")
    assert dict(record.traffic)["scratch"] % record.workers == 0
