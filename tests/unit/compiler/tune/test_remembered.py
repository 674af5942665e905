"""What the tuner remembers reaches kernels that are bound: for the very shape, for near ones, and only where legal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import autotune
from tessera.compiler.bind.arrays import Call
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune import tuning
from tessera.compiler.tune.problems import tuning_problem
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tests.unit.compiler.tune.winners import launch, narrower, remember


@pytest.fixture(autouse=True)
def nothing_chosen(cache_dir: Path) -> Iterator[None]:
    """An empty database, and no choice made before."""
    autotune.enable(False)
    yield
    autotune.enable(False)


@pytest.fixture
def winner() -> Schedule:
    """A schedule that nothing but the database would choose for 48 rows of 500, for which it is remembered."""
    return narrower(launch(48, 500))


def test_the_very_shape_and_near_ones_use_it(winner: Schedule) -> None:
    assert launch(48, 500).schedule == winner
    assert launch(48, 510).schedule == winner
    assert launch(60, 480).schedule == winner


def test_shapes_of_a_bucket_share_one_decision(winner: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
    posed: list[tuple[int, ...]] = []

    def counting(call: Call, compiler: DeviceCompiler) -> TuningProblem:
        posed.append(tuple(call.shaped.extents.values()))
        return tuning_problem(call, compiler)

    monkeypatch.setattr(tuning, "tuning_problem", counting)
    for rows, columns in ((40, 500), (41, 501), (64, 512), (33, 257)):
        assert launch(rows, columns).schedule == winner
    assert posed == [(40, 500)]
    launch(65, 500)
    assert posed == [(40, 500), (65, 500)]


def test_shapes_far_away_do_not(winner: Schedule) -> None:
    assert launch(48, 9000).schedule["tile"] != winner["tile"]


def test_a_schedule_that_breaks_a_rule_elsewhere_is_not_used_there() -> None:
    known = launch(48, 500)
    short = known.schedule.replace(keep=512)
    remember(known, short)
    assert launch(48, 500).schedule == short
    # Rows of 600 do not fit into scratch memory for 512.
    assert launch(48, 600).schedule != short


def test_a_schedule_of_other_knobs_is_not_used() -> None:
    known = launch(48, 500)
    remember(known, Schedule(colour="green"))
    assert launch(48, 500).schedule == known.schedule
