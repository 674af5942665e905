"""A program that ends by an error of Tessera shows the user's line last."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import forked

PROGRAM = """
import torch
from tessera import op

def layer(x):
    return op.matmul(x, torch.ones(5, 6))

layer(torch.ones(3, 4))
"""


@pytest.mark.parametrize(("wanted", "last"), [("short", "in layer"), ("full", "in result_of")])
def test_frames_of_tessera_are_folded_unless_all_are_wanted(tmp_path: Path, wanted: str, last: str) -> None:
    done = forked.run(PROGRAM, environment={**os.environ, "TESSERA_TRACEBACK": wanted}, warm=True)
    assert done.returncode == 1
    frames = [line for line in done.stderr.splitlines() if line.startswith("  File ")]
    assert frames[-1].endswith(last)
    assert ("frames inside of Tessera are not shown: TESSERA_TRACEBACK=full shows them" in done.stderr) == (
        wanted == "short"
    )
    assert "\ntessera.errors.ShapeMismatchError: E_SHAPE_MISMATCH: " in done.stderr


def test_errors_of_others_keep_their_frames() -> None:
    done = forked.run("import tessera.op\nraise ValueError('not of Tessera')")
    assert "not of Tessera" in done.stderr
    assert "frames inside" not in done.stderr
