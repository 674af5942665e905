"""The suite `tune-cache` measures what it says: all layouts hold the same winners, and writers lose none."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.probes import winners
from bench.suites import winners as suite
from tessera.tuning.store import packs
from tessera.tuning.store.database import TuningDatabase


@pytest.fixture
def files(tmp_path: Path) -> Path:
    winners.fill(tmp_path / "files", 2, 3)
    return tmp_path / "files"


def test_both_layouts_hold_the_same_winners(files: Path, tmp_path: Path) -> None:
    made = [winners.entry(kernel, shape) for kernel in range(2) for shape in winners.shapes(3)]
    packs.write_packs(made, tmp_path / "packed")
    for folder in (files, tmp_path / "packed"):
        found = TuningDatabase(folder, shipped=None).entries()
        assert {entry.identity: entry for entry in found} == {entry.identity: entry for entry in made}


def test_openings_and_look_ups_are_figures_with_limits(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "CALLS", 1)
    packs.write_packs([winners.entry(k, s) for k in range(2) for s in winners.shapes(3)], tmp_path / "packed")
    figures = [*suite.openings(files, tmp_path / "packed", tmp_path / "empty", 1, 2), *suite.look_ups(files, 1)]
    assert [(figure.unit, figure.limit) for figure in figures] == [("ms", 20.0)] * 4 + [
        ("us", 5.0),
        ("us", None),
        ("us", None),
    ]
    assert all(figure.value is not None and figure.value > 0 for figure in figures)


def test_a_writer_writes_its_own_winners_and_the_shared_one(tmp_path: Path) -> None:
    winners.write(tmp_path, 3, 4)
    found = {entry.identity for entry in TuningDatabase(tmp_path, shipped=None).entries()}
    assert found == {winners.identity(3, shape) for shape in winners.shapes(4)} | {winners.identity(-1, winners.SHARED)}


def test_a_writer_that_cannot_store_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AssertionError, match="could not be stored"), pytest.warns(UserWarning, match="E_CACHE_IO"):
        winners.write(tmp_path / "file", 0, 1)
