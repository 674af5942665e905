"""Schedules for shapes that nobody measured, in a synthetic world in which time depends on schedule and shape."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.trial import Trial
from tessera.tuning.model.ranking import ranked
from tessera.tuning.model.transfer import Known, Neighbour, Unseen, adapted, neighbours_of, schedule_for
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Identity
from tests.unit.tuning.support import MATMUL, OPTIMUM, SPACE, entry, problem, shaped, timing


def fits(schedule: Schedule, shape: tuple[int, ...]) -> bool:
    return schedule.integer("kc") <= shape[2] and schedule.integers("tile")[0] <= shape[0]


def space(shape: tuple[int, ...]) -> Space[tuple[int, ...]]:
    """Blocks no deeper than K, tiles no higher than M."""
    knobs = (
        Knob("tile", ((1, 64), (2, 64), (4, 32), (8, 32), (12, 32), (14, 16)), "register tile"),
        Knob("kc", (16, 32, 64, 128, 256, 512, 1024), "depth of a block"),
        Knob("pack", (False, True), "copy first"),
    )
    default = Schedule(tile=(1, 64), kc=16, pack=False)
    return Space(knobs, (Rule("inside", "blocks lie inside the operands", fits),), shape, default)


def predicted(schedule: Schedule, shape: tuple[int, ...]) -> float:
    """A cost model: high tiles want many rows, deep blocks a large K, packing pays for many rows."""
    m, n, k = shape
    rows, columns = schedule.integers("tile")
    waste = (-m % rows) / m
    reuse = 1 / rows + 1 / columns
    loops = 8 / schedule.integer("kc")
    packing = 1.0 / m if schedule["pack"] else 0.1 * min(1.0, m / 256)
    return 1e-9 * m * n * k * (1 + waste + 4 * reuse + loops + packing)


def measured(schedule: Schedule, shape: tuple[int, ...]) -> float:
    """What the model does not know: the machine is slower, deep blocks leave the cache where there are many rows, and
    the narrow tile is better than it looks.
    """
    deep = 0.12 * max(0.0, math.log2(schedule.integer("kc") / 128)) * min(1.0, shape[0] / 128)
    narrow = -0.1 if schedule.integers("tile") == (14, 16) else 0.0
    return 1.7 * predicted(schedule, shape) * math.exp(deep + narrow)


def posed(shape: tuple[int, ...]) -> TuningProblem:
    made = problem(shaped(*shape), lambda schedule: predicted(schedule, shape))
    return replace(made, space=space(shape))


def neighbour(shape: tuple[int, ...], trials: int = 12) -> Neighbour:
    """What a tuning of a shape leaves behind: trials of the model's favourites."""
    order = [schedule for _, schedule in ranked(space(shape), lambda schedule: predicted(schedule, shape))]
    spread = [*order[:trials], *order[trials :: max(len(order) // 6, 1)]]
    return Neighbour.of(shape, [Known(s, measured(s, shape), predicted(s, shape)) for s in spread])


SHAPES = [(m, n, k) for m in (1, 8, 64, 256, 1024) for n, k in ((512, 512), (2048, 512), (512, 2048), (2048, 2048))]


def regret(shape: tuple[int, ...], neighbours: list[Neighbour]) -> float:
    found = schedule_for(posed(shape), neighbours)
    assert found is not None
    best = min(measured(schedule, shape) for schedule in space(shape).candidates())
    return measured(found.schedule, shape) / best - 1


def nearest_others(shape: tuple[int, ...]) -> list[Neighbour]:
    others = sorted((other for other in SHAPES if other != shape), key=lambda o: shaped(*o).distance(shaped(*shape)))
    return [neighbour(other) for other in others[:6]]


def test_shapes_left_out_lose_little() -> None:
    regrets = [regret(shape, nearest_others(shape)) for shape in SHAPES]
    assert statistics.median(regrets) <= 0.03
    assert statistics.quantiles(regrets, n=10)[-1] <= 0.08


def test_neighbours_and_model_together_beat_either() -> None:
    together = alone = copied = 0.0
    for shape in SHAPES:
        best = min(measured(schedule, shape) for schedule in space(shape).candidates())
        favourite = ranked(space(shape), lambda schedule, at=shape: predicted(schedule, at))[0][1]  # type: ignore[misc]
        near = nearest_others(shape)
        winner = adapted(space(shape), near[0].trials[0].schedule)
        assert winner is not None
        together += regret(shape, near)
        alone += measured(favourite, shape) / best - 1
        copied += measured(winner, shape) / best - 1
    assert together < 0.5 * min(alone, copied)


def test_the_schedule_is_legal_here_and_its_time_expected() -> None:
    near = neighbour((64, 2048, 256))
    found = schedule_for(posed((32, 2048, 128)), [near])
    assert found is not None
    assert not space((32, 2048, 128)).violations(found.schedule)
    assert found.expected_s == pytest.approx(measured(found.schedule, (32, 2048, 128)), rel=0.3)
    assert "64x2048x256" in found.note


def test_a_schedule_is_made_legal_knob_by_knob() -> None:
    asked = Schedule(tile=(12, 32), kc=1024, pack=True)
    assert adapted(space((1024, 1024, 1024)), asked) == asked
    assert adapted(space((1024, 1024, 256)), asked) == Schedule(tile=(12, 32), kc=16, pack=True)
    assert adapted(space((2, 1024, 1024)), asked) == Schedule(tile=(1, 64), kc=1024, pack=True)
    assert adapted(SPACE, asked) is None, "other knobs"
    assert adapted(replace(space((8, 8, 8)), default=asked), asked) is None, "nothing to begin from"


def test_without_neighbours_or_their_predictions() -> None:
    assert schedule_for(posed((64, 64, 64)), []) is None
    assert schedule_for(posed((64, 64, 64)), [neighbour((64, 512, 512)), Neighbour((64, 64), ())]) is not None
    assert schedule_for(posed((64, 64, 64)), [Neighbour((64, 64), ())]) is None, "another rank"
    winner = Schedule(tile=(8, 32), kc=64, pack=True)
    found = schedule_for(posed((64, 64, 64)), [Neighbour((64, 64, 128), (Known(winner, 1e-3, None),))])
    assert found is not None
    assert (found.schedule, found.expected_s) == (winner, None)


def test_of_a_schedule_measured_twice_the_last_time_counts() -> None:
    first, second = Known(OPTIMUM, 2.0, 1.0), Known(OPTIMUM, 3.0, 1.0)
    other = Known(SPACE.default, 2.5, 1.0)
    assert Neighbour.of((1,), [first, other, second]).trials == (other, second)


@pytest.fixture
def database(tmp_path: Path) -> TuningDatabase:
    return TuningDatabase(tmp_path, shipped=None)


def test_neighbours_come_with_their_logged_trials(database: TuningDatabase) -> None:
    near, nearer, far = shaped(1024, 1024, 4096), shaped(1024, 1024, 2048), shaped(1, 1, 1024)
    for identity in (near, nearer, far, MATMUL):
        database.put(entry(identity=identity))
    ran = Trial(SPACE.default, "ok", timing(5e-3), predicted_s=4e-3)
    broken: list[dict[str, Any]] = [{"median_s": "soon"}, {"median_s": 1.0, "schedule": {"kc": {}}}, {"schedule": 3}]
    database.log(nearer, [ran, Trial(OPTIMUM, "crashed")], {})
    path = database.user.log_path(nearer, "another host")
    path.write_text("\n".join(map(json.dumps, broken)))
    found = neighbours_of(database, MATMUL)
    assert [item.shape for item in found] == [nearer.shape, near.shape]
    assert found[0].trials == (Known(OPTIMUM, 1e-3, 2e-3), Known(SPACE.default, 5e-3, 4e-3))
    assert found[1].trials == (Known(OPTIMUM, 1e-3, 2e-3),)


@dataclass
class Posed:
    """A problem that counts how often it is posed."""

    identity: Identity
    times: list[Identity] = field(default_factory=list)

    def __call__(self) -> TuningProblem:
        self.times.append(self.identity)
        return problem(self.identity)


def test_a_bucket_of_shapes_shares_one_decision(database: TuningDatabase) -> None:
    database.put(entry())
    unseen = Unseen()
    permits: Callable[[Schedule], bool] = lambda schedule: not SPACE.violations(schedule)  # noqa: E731
    first, second, beyond = (Posed(shaped(1024, 1024, k)) for k in (700, 1000, 1025))
    found = unseen.decision(database, first.identity, permits, first)
    assert found is not None
    assert found.schedule == OPTIMUM
    assert unseen.decision(database, second.identity, permits, second) is found
    assert (len(first.times), len(second.times)) == (1, 0)
    assert unseen.decision(database, second.identity, lambda schedule: False, second) is None, "not legal there"
    assert unseen.decision(database, beyond.identity, permits, beyond) is not None
    assert len(beyond.times) == 1, "a bucket of its own"
    unseen.clear()
    unseen.decision(database, second.identity, permits, second)
    assert len(second.times) == 1, "decided anew"


def test_a_bucket_is_decided_anew_once_another_winner_is_stored(database: TuningDatabase) -> None:
    unseen = Unseen()
    asked = Posed(shaped(1024, 1024, 700))
    assert unseen.decision(database, asked.identity, lambda schedule: True, asked) is None
    database.put(entry(measured_s=None))
    database.put(entry(identity=replace(MATMUL, operator="another")))
    assert unseen.decision(database, asked.identity, lambda schedule: True, asked) is None
    assert not asked.times
    database.put(entry())
    found = unseen.decision(database, asked.identity, lambda schedule: True, asked)
    assert found is not None
    assert found.schedule == OPTIMUM


def test_where_nothing_nearby_was_measured_no_problem_is_posed(database: TuningDatabase) -> None:
    database.put(entry(measured_s=None))
    database.put(entry(identity=shaped(1, 1, 1)))
    asked = Posed(shaped(1024, 1024, 512))
    assert Unseen().decision(database, asked.identity, lambda schedule: True, asked) is None
    assert not asked.times
