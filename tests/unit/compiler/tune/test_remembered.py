"""What the tuner remembers reaches kernels that are bound: for the very shape, for near ones, and only where legal."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tessera import autotune, op
from tessera.compiler import planning
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.binding import launches_of
from tessera.compiler.bind.launches import Launch
from tessera.compiler.device import compilers
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.tune import tuning
from tessera.compiler.tune.problems import identity_of, tuning_problem
from tessera.lazy.threads import worker_count
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Provenance


def launch(rows: int, columns: int) -> Launch:
    """What a row softmax of this shape launches now."""
    structure = op.softmax(op.tensor(torch.ones(rows, columns))).structure
    program = planning.program_of(structure)
    (found,) = launches_of(program, structure, compilers.kernel_compiler())
    return found


def remember(known: Launch, schedule: Schedule) -> None:
    """Makes a measured winner known, as a tuning does that finds it."""
    problem = known.subject.problem(known.call.shaped.extents, worker_count())
    identity = identity_of(known.subject, problem, known.call, compilers.kernel_compiler())
    autotune.database.put(
        Entry(identity, schedule, "measured", Provenance.current("revision", "on_device"), None, 1e-6)
    )
    autotune.enable(False)  # says that something changed


@pytest.fixture(autouse=True)
def nothing_chosen(cache_dir: Path) -> Iterator[None]:
    """An empty database, and no choice made before."""
    autotune.enable(False)
    yield
    autotune.enable(False)


@pytest.fixture
def winner() -> Schedule:
    """A schedule that nothing but the database would choose for 48 rows of 500, for which it is remembered."""
    known = launch(48, 500)
    start = known.schedule
    rows, lanes = start.integers("tile")
    narrow = start.replace(tile=(rows, lanes // 2))
    remember(known, narrow)
    return narrow


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
