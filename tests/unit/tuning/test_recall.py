"""What a tuner takes from its caches instead of tuning, and whom it does not keep waiting."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tessera import settings
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.autotuner import Autotune
from tessera.tuning.config import Source, chosen_by
from tessera.tuning.measure.measurement import Done, Effort, ReplayMeasurer, unheard
from tessera.tuning.measure.trial import Trial
from tessera.tuning.online.mode import looking
from tessera.tuning.search.listed_space import ListedSpace
from tests.unit.tuning.support import OPTIMUM, entry, problem, shaped, synthetic_table
from tests.unit.tuning.test_autotuner import SHAPE, Backend, tuner, unwritable


@pytest.fixture(autouse=True)
def cache(tmp_path: Path) -> Iterator[Path]:
    with settings.override(cache_dir=tmp_path / "cache", tune_site_dir=None, autotune=False):
        yield tmp_path / "cache"


def test_a_schedule_that_is_looked_at_is_not_tuned_for_that() -> None:
    measurer = ReplayMeasurer(synthetic_table())
    autotune = Autotune(Backend, measurer)
    autotune.enable(True, share="first_call")
    with looking():
        assert autotune.schedule_for(problem()).source == "default"
    assert not measurer.asked
    assert autotune.schedule_for(problem()).source == "measured"


def test_a_tuning_that_ends_waits_for_no_thread_that_binds() -> None:
    """Plans have a lock of their own: who holds it may wait for the tuner, which must not wait for it meanwhile."""
    plans, measuring = threading.Lock(), threading.Event()
    tuned: list[str] = []

    class Announced(ReplayMeasurer):
        def measure(
            self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard
        ) -> list[Trial]:
            measuring.set()
            return super().measure(cases, effort, done)

    def changed() -> None:
        with plans:
            pass

    autotune = Autotune(Backend, Announced(synthetic_table()))
    autotune.when_changed(changed)
    autotune.enable(True, share="first_call")
    other = threading.Thread(target=lambda: tuned.append(autotune("matmul", SHAPE, method="on_device").source))
    with plans:
        other.start()
        assert measuring.wait(60)
        assert autotune.schedule_for(problem(shaped(8, 8, 8))).source == "measured"
    other.join(60)
    assert tuned == ["measured"]


def test_what_is_remembered_and_illegal_here_is_said() -> None:
    autotune = tuner()
    autotune.database.put(replace(entry(), schedule=OPTIMUM.replace(kc=1024)))
    assert "is not legal here: panel_fits" in autotune.load("matmul", SHAPE).note


def test_the_cache_that_is_asked_for_goes_before_others() -> None:
    """Two kernels of one expression that are limited otherwise: neither is tuned anew because of the other."""
    deep, flat = (OPTIMUM.replace(kc=kc) for kc in (512, 64))
    for name, only in (("a", deep), ("b", flat)):
        tuner().solve(replace(problem(), space=ListedSpace([only])), kept_in=name)
    again = tuner(table={})
    for name, only in (("a", deep), ("b", flat)):
        config = again.solve(replace(problem(), space=ListedSpace([only])), kept_in=name)
        assert (config.source, config.schedule) == ("cache", only)


def test_winners_that_cannot_be_written_outlast_another_cache(cache: Path) -> None:
    unwritable([cache])
    autotune = tuner()
    with pytest.warns(UserWarning, match="E_CACHE_IO"):
        autotune("matmul", SHAPE, method="on_device")
    with pytest.warns(UserWarning, match="E_CACHE_IO"):
        autotune.solve(problem(shaped(8, 8, 8)), kept_in="mine")
    assert autotune.load("matmul", SHAPE).source == "cache"


@pytest.mark.parametrize(
    ("source", "layer", "chosen"),
    [
        ("measured", "", "tuned"),
        ("agreed", "", "tuned"),
        ("cache", "user", "tuned"),
        ("cache", "memory", "tuned"),
        ("cache", "site", "site"),
        ("cache", "shipped", "shipped"),
        ("cache", "team-cache", "cache"),
        ("nearest", "", "nearest"),
        ("default", "", "default"),
    ],
)
def test_traces_say_who_chose_a_schedule(source: Source, layer: str, chosen: str) -> None:
    assert chosen_by(source, layer, is_measured=True) == chosen
    assert chosen_by("cache", layer, is_measured=False) == "model"
