"""The Gantt picture shows every program where the simulator put it."""

from __future__ import annotations

from pathlib import Path

import pytest
from matplotlib.patches import Rectangle

from tessera.errors import ArgumentError, CacheIOError
from tessera.sharding.pipeline.generators import schedule
from tessera.sharding.pipeline.picture import draw, save
from tessera.sharding.pipeline.simulator import ProgramTimes, simulate

LINES = [simulate(schedule(name, 3, 4), ProgramTimes(1e-3, 1e-3, 1e-3)) for name in ("1f1b", "zb1p")]


def test_every_span_is_a_bar_of_its_length_on_the_row_of_its_rank() -> None:
    for axes, line in zip(draw(LINES).axes, LINES, strict=True):
        drawn = sorted(
            (round(bar.get_y() + bar.get_height() / 2), bar.get_x(), bar.get_width())
            for bar in axes.patches
            if isinstance(bar, Rectangle) and bar.get_width() and bar.get_height() == pytest.approx(0.9)
        )
        wanted = sorted((span.rank, 1e3 * span.start, 1e3 * (span.end - span.start)) for span in line.spans)
        assert [bar[0] for bar in drawn] == [span[0] for span in wanted]
        for bar, span in zip(drawn, wanted, strict=True):
            assert bar[1:] == pytest.approx(span[1:])
        assert "ms predicted" in axes.get_title(loc="left")


def test_files_are_written_and_failures_named(tmp_path: Path) -> None:
    assert save(LINES, tmp_path / "gantt.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ArgumentError, match="bmp"):
        save(LINES, tmp_path / "gantt.bmp")
    with pytest.raises(CacheIOError, match="cannot write"):
        save(LINES, tmp_path / "missing" / "gantt.png")
    with pytest.raises(ArgumentError, match="no timeline"):
        draw([])
