"""Winners of recorded tables become the shipped layer: the fastest, canonically chosen, and only of quiet machines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tuning.ship import main, winner
from bench.tuning.table import Table, Turns, write
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.packs import write_packs
from tests.unit.bench.recorded import SHAPE, about, record, table
from tests.unit.tuning.support import OPTIMUM, misled_seconds, shaped


def shipped(folder: Path) -> list[Entry]:
    return list(TuningDatabase(folder, shipped=None).entries())


def test_the_winner_of_a_table_is_its_fastest_schedule() -> None:
    found = winner(table())
    assert (found.identity, found.schedule, found.origin) == (shaped(*SHAPE), OPTIMUM, "measured")
    assert found.measured_s == pytest.approx(1e-3)
    assert found.trials == len(table().records)


def test_among_schedules_as_fast_the_model_decides() -> None:
    other = OPTIMUM.replace(kc=128)
    records = (
        record(OPTIMUM, [1e-3] * 9, estimated_s=2e-3),
        record(other, [1.005e-3] * 9, estimated_s=1e-3),
        record(OPTIMUM.replace(kc=64), [1.2e-3] * 9, estimated_s=1e-4),
    )
    assert winner(Table(about(), records, (1e-3,))).schedule == other


def test_a_table_in_which_nothing_runs_has_no_winner(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = Table(about(), (replace(record(OPTIMUM, ()), outcome="crashed"),), (1e-3,))
    with pytest.raises(ValueError, match="no schedule"):
        winner(empty)
    write(empty, tmp_path / "tables" / "a.jsonl.gz")
    assert main([str(tmp_path / "tables"), "--folder", str(tmp_path / "shipped")]) == 1
    assert "no schedule" in capsys.readouterr().err


def test_tables_become_packs_beside_what_ships_already(tmp_path: Path) -> None:
    better = replace(winner(table()), measured_s=5e-4, schedule=OPTIMUM.replace(kc=512))
    write_packs([better, replace(better, identity=shaped(8, 8, 8))], tmp_path / "shipped")
    for shape in (SHAPE, (64, 64, 64)):
        write(table(misled_seconds, shape=shape), tmp_path / "tables" / f"{shape[0]}.jsonl.gz")
    assert main([str(tmp_path / "tables"), "--folder", str(tmp_path / "shipped")]) == 0
    found = {entry.identity.shape: entry for entry in shipped(tmp_path / "shipped")}
    assert set(found) == {(8, 8, 8), SHAPE, (64, 64, 64)}
    assert found[SHAPE] == better
    assert len(list((tmp_path / "shipped").rglob("*.json"))) == 1


def test_tables_of_a_busy_machine_are_left_out_unless_they_are_wanted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quiet = record(OPTIMUM, [1e-3] * 4)
    busy = Table(about(), (replace(quiet, turns=(Turns(0, (1e-3,) * 4, (True, True, False, False)),)),), (1e-3,))
    write(busy, tmp_path / "a.jsonl.gz")
    arguments = [str(tmp_path / "a.jsonl.gz"), "--folder", str(tmp_path / "shipped")]
    assert main(arguments) == 0
    assert shipped(tmp_path / "shipped") == []
    assert "disturbed" in capsys.readouterr().err
    assert main([*arguments, "--busy"]) == 0
    assert [entry.schedule for entry in shipped(tmp_path / "shipped")] == [OPTIMUM]
