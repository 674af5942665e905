"""`tests.baseline`: what one revision makes is written down, and what differs from another one's is said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.baseline.__main__ import compare, record


def _written(folder: Path, code: str, text: str = "a\n") -> Path:
    device = folder / "avx2"
    device.mkdir(parents=True)
    (device / f"{code}.mlir").write_text(text)
    (device / "made.json").write_text(json.dumps({"rows, schedule 0": [[code, code]]}))
    return folder


def test_what_differs_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before, after = _written(tmp_path / "1", "x"), _written(tmp_path / "2", "y", "b\n")

    assert compare(before, before) == 0
    assert compare(before, after) == 1

    told = capsys.readouterr().out
    assert "avx2, rows, schedule 0: the code of 1 kernels differs" in told
    assert "    -a\n    +b\n" in told


def test_a_gpu_s_kernels_are_the_same_in_every_process(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    for folder in ("1", "2"):
        record(tmp_path / folder, root, ("gfx942",))
    made = json.loads((tmp_path / "1" / "gfx942" / "made.json").read_text())
    assert compare(tmp_path / "1", tmp_path / "2") == 0
    assert all(made.values())
