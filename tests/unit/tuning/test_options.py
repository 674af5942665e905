"""How a tuning is done: cost model, strategy, conditions and limits that the user asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tessera import settings
from tessera.errors import ArgumentError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningSpace
from tessera.tuning.measure.trial import Trial
from tests.unit.tuning.support import SPACE, synthetic_seconds
from tests.unit.tuning.test_autotuner import SHAPE, Backend, tuner


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[None]:
    with settings.override(cache_dir=tmp_path, tune_site_dir=None, autotune=False):
        yield


def test_a_cost_model_and_a_strategy_of_ones_own_are_used() -> None:
    def backwards(schedule: Schedule) -> float:
        return 1 / synthetic_seconds(schedule)

    config = tuner()("matmul", SHAPE, cost_model=backwards)
    assert config.predicted_s == min(backwards(schedule) for schedule in SPACE.candidates())

    class First:
        """Proposes the space in its order."""

        def __init__(self, space: TuningSpace, predict: Callable[[Schedule], float]) -> None:
            self.left = list(space.candidates())

        def propose(self, count: int) -> list[Schedule]:
            batch, self.left = self.left[:count], self.left[count:]
            return batch

        def observe(self, trials: Sequence[Trial]) -> None:
            pass

    config = tuner()("matmul", SHAPE, method="on_device", max_trials=5, strategy=First, force=True)
    tried = {trial.schedule for trial in config.trials}
    assert SPACE.default in tried
    assert len(tried) > 2
    assert tried <= {SPACE.default, *list(SPACE.candidates())[:5]}


def test_a_winner_of_other_conditions_is_measured_again() -> None:
    tuner()("matmul", SHAPE, method="on_device")
    assert tuner()("matmul", SHAPE, method="on_device", cache="warm").source == "cache"
    assert tuner()("matmul", SHAPE, method="on_device", cache="cold").source == "measured"
    assert tuner()("matmul", SHAPE, method="on_device", cache="cold").source == "cache"
    assert tuner()("matmul", SHAPE, method="on_device").source == "cache"


@pytest.mark.parametrize(
    "given",
    [
        {"max_trials": 0},
        {"max_trials": 2.5},
        {"budget_s": 0},
        {"budget_s": float("nan")},
        {"cost_model": "oracle"},
        {"strategy": "luck"},
        {"cache": "tepid"},
        {"launch": "catapult"},
        {"target": "cpu", "device": "cpu"},
    ],
)
def test_what_is_no_option_is_refused_before_anything_is_done(given: dict[str, Any]) -> None:
    backend = Backend()
    with pytest.raises(ArgumentError, match=str(next(iter(given)))):
        tuner(backend)("matmul", SHAPE, method="on_device", **given)
    assert not backend.asked
