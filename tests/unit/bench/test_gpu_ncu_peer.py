"""Counters beside those of `ncu`, without a GPU: what its table says, and what is said where it has none."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from bench.gpu import ncu_peer
from bench.gpu.ncu_peer import NotCountedError, Row, columns, compared, main, markdown
from tessera.profiling.counters.nvidia_metrics import RANGES


def table(value: str) -> str:
    """What `ncu --csv --page raw` writes of one kernel."""
    names = ["ID", "Kernel Name", *(metric.name for metric in RANGES.values())]
    units = ["" for _ in names]
    values = ["0", "fused, one", *(value for _ in RANGES)]
    lines = [
        "==PROF== Connected to process 7",
        *(",".join(f'"{cell}"' for cell in row) for row in (names, units, values)),
    ]
    return "\n".join(lines)


def test_columns_of_ncu_are_in_the_units_of_ours() -> None:
    (found,) = columns(table("1,600"))
    assert found["dram_read_gbps"] == pytest.approx(1.6e-6)
    assert found["sm_occupancy"] == pytest.approx(16)
    assert found["warp_divergence_pct"] == pytest.approx(100 - 1600 * 100 / 32)
    assert set(found) == set(RANGES)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "ERR_NVGPUCTRPERM"),
        ("", "counted no kernel"),
        (table("1").replace("lts__t_sector_hit_rate", "else"), "no lts__t_sector_hit_rate"),
    ],
)
def test_what_is_not_counted_is_said(text: str, said: str) -> None:
    with pytest.raises(NotCountedError, match=said):
        columns(text)


def test_a_process_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import sys; print('==ERROR== ERR_NVGPUCTRPERM', file=sys.stderr); sys.exit(3)"
    monkeypatch.setattr(ncu_peer, "_once", lambda kernel, how: [sys.executable, "-c", program])
    with pytest.raises(NotCountedError, match="ERR_NVGPUCTRPERM"):
        compared("matmul")


def test_both_count_one_kernel_by_processes_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "table").write_text(table("2"))
    ncu = tmp_path / "ncu"
    ncu.write_text(f"#!/bin/sh\ncat {tmp_path}/table\n")
    ncu.chmod(0o755)
    ours = json.dumps(dict.fromkeys(RANGES, 1.0))
    monkeypatch.setattr(ncu_peer, "_once", lambda kernel, how: [sys.executable, "-c", f"print('{ours}')"])
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    rows = {row.column: row for row in compared("matmul")}
    assert set(rows) == set(RANGES)
    assert rows["alu_util_pct"] == Row("matmul", "alu_util_pct", "%", 1.0, 2.0)


def test_the_table_says_what_lies_too_far_apart_and_what_was_not_measured() -> None:
    rows = [Row("matmul", "tc_util_pct", "%", 96.0, 100.0), Row("matmul", "l2_hit_rate", "", 0.5, 0.8)]
    text = markdown(rows, {"softmax": "no permission"}, "Counters")
    assert "| 96 | 100 | 4.0 % |" in text
    assert "37.5 % (NOT within 5%)" in text
    assert "| softmax | not measured: no permission |" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="it would measure")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 1
    assert "torch sees no CUDA device" in capsys.readouterr().err
