from __future__ import annotations

import os
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tessera.tuning.measure.trial import Trial
from tessera.tuning.store import pruning
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.layer import Layer
from tessera.tuning.store.pruning import older_than, remove, waste, winners
from tests.unit.tuning.support import MATMUL, OPTIMUM, entry, shaped, timing


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    """A layer with two measured winners, a guess alone, and a log."""
    database = TuningDatabase(tmp_path / "user", shipped=None)
    for made in (entry(), entry(identity=shaped(2, 2, 2)), entry(None, shaped(3, 3, 3))):
        database.put(made)
    database.log(MATMUL, [Trial(OPTIMUM, "ok", timing(1e-3))], {})
    return database.user


def reasons(layer: Layer) -> dict[str, str]:
    return {item.path.name: item.reason for item in waste(layer)}


def test_of_a_tidy_folder_nothing_is_waste(layer: Layer) -> None:
    assert reasons(layer) == {}


def test_what_nothing_needs_is_waste(layer: Layer) -> None:
    folder = layer.path(MATMUL, "measured").parent
    abandoned, live = (folder / f".1x1.json.{number}.tmp" for number in (1, 2))
    for file in (abandoned, live):
        file.write_bytes(b"{")
    os.utime(abandoned, (time.time() - 2 * pruning.ABANDONED_S,) * 2)
    (folder / "1x1.json.kept-0123456789ab").write_bytes(b"{")
    (folder / "9x9x9.json").write_bytes(b"{")
    (folder / "8x8x8.json").write_text('{"format": "tessera-autotune", "version": 99}')
    layer.path(MATMUL, "model").write_bytes(layer.path(shaped(3, 3, 3), "model").read_bytes())
    assert reasons(layer) == {
        abandoned.name: "left by a process that was killed",
        "1x1.json.kept-0123456789ab": "kept aside when it was replaced",
        "9x9x9.json": "damaged",
        layer.path(MATMUL, "model").name: "the model's choice, beside a measured winner",
    }


def test_a_guess_beside_a_damaged_winner_stays(layer: Layer) -> None:
    layer.path(shaped(3, 3, 3), "measured").write_bytes(b"{")
    assert reasons(layer) == {"3x3x3.json": "damaged"}


def test_a_temporary_file_of_a_clock_that_went_backwards_stays(layer: Layer) -> None:
    file = layer.path(MATMUL, "measured").with_name(".1x1.json.1.tmp")
    file.write_bytes(b"{")
    os.utime(file, (time.time() + 1e6,) * 2)
    assert reasons(layer) == {}


def test_a_file_that_was_replaced_since_it_was_looked_at_stays(layer: Layer) -> None:
    path = layer.path(shaped(9, 9, 9), "measured")
    path.write_bytes(b"{")
    found = list(waste(layer))
    TuningDatabase(layer.root, shipped=None).put(entry(identity=MATMUL))
    path.unlink()
    path.write_bytes(layer.path(MATMUL, "measured").read_bytes())
    assert [error for _, error in remove(found)] == [None]
    assert path.exists()


def test_winners_go_when_they_are_asked_for(layer: Layer) -> None:
    found = list(winners(layer, lambda item: item.identity == MATMUL, "as asked"))
    assert [(item.path, error) for item, error in remove(found)] == [(layer.path(MATMUL, "measured"), None)]
    assert not layer.path(MATMUL, "measured").exists()
    assert layer.path(shaped(2, 2, 2), "measured").exists()


def found_on(date: str) -> Entry:
    made = entry()
    return replace(made, provenance=replace(made.provenance, date=date))


def test_age_is_that_of_the_entry() -> None:
    now = datetime.now(UTC)
    old = older_than(7)
    assert old(found_on((now - timedelta(days=8)).isoformat()))
    assert not old(found_on((now - timedelta(days=6)).isoformat()))
    assert not old(found_on((now + timedelta(days=8)).isoformat()))
    assert not old(found_on("some day"))
    assert old(found_on((now - timedelta(days=8)).replace(tzinfo=None).isoformat()))


def test_logs_are_found_by_name(layer: Layer) -> None:
    (item,) = pruning.logs(layer)
    assert item.path.suffix == ".jsonl"
    assert item.size == item.path.stat().st_size
