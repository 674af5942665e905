"""Suite `tune`: its figures on tables whose answers are known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bench import machine
from bench.pool import Pool
from bench.results import Figure
from bench.suites import tuning as suite
from bench.tuning import figures, predictions
from bench.tuning.strategies import transferred
from bench.tuning.table import write
from tessera.tuning.model.outlook import LEAST_KEPT
from tests.unit.bench.recorded import case, record, table
from tests.unit.tuning.support import OPTIMUM, SPACE, misled_seconds, synthetic_seconds


def values(found: list[Figure]) -> dict[str, float | None]:
    return {figure.name: figure.value for figure in found}


def test_a_perfect_model_needs_no_trials() -> None:
    (perfect,) = predictions.cases([table()], "hardware")
    assert perfect.favourite == OPTIMUM
    found = figures.choice_figures("model", [perfect], 1)
    assert [figure.value for figure in found] == [pytest.approx(1.0)] * 6
    assert all(figure.met is not False for figure in found)


def test_trials_make_up_for_a_misled_model() -> None:
    here = case(table(), misled_seconds)
    shares = [here.table.share(here.favourite), *(here.table.share(here.tuned(trials)) for trials in (8, 24))]
    assert shares == sorted(shares)
    assert shares[0] < 0.95 < shares[-1]


def test_a_tuning_is_judged_by_samples_that_it_has_not_seen() -> None:
    whole = table()
    lucky = record(SPACE.default, [0.5e-3, 5e-3] * 10)
    others = tuple(each for each in whole.records if each.schedule != SPACE.default)
    here = case(replace(whole, records=(lucky, *others)), misled_seconds)
    assert here.tuned(8, 0) == SPACE.default
    assert here.reached(8, 0) == pytest.approx(0.2)
    assert here.tuned(8, 1) != SPACE.default


def test_the_rank_correlation_is_that_of_the_order() -> None:
    assert figures.correlation(case(table(), synthetic_seconds)) == pytest.approx(1.0)
    assert figures.correlation(case(table(), lambda schedule: -synthetic_seconds(schedule))) == pytest.approx(-1.0)
    assert figures.correlation(case(table(), lambda schedule: 1.0)) == 0.0


def test_pruning_keeps_the_best_unless_the_model_is_reversed() -> None:
    found = values(figures.pruning_figures("model", [case(table(), synthetic_seconds)], 1))
    assert found["tables in which one within 2 % of the best survives that"] == 100.0
    pruned = found["schedules pruned before measuring, of 1 tables"]
    with_default = LEAST_KEPT + 1
    assert pruned == pytest.approx(100 * (1 - with_default / len(list(SPACE.candidates()))))
    assert figures.survives(case(table(), synthetic_seconds))
    assert not figures.survives(case(table(), lambda schedule: -synthetic_seconds(schedule)))


def test_tables_without_an_order_do_not_count_for_correlation() -> None:
    flat = case(table(seconds=lambda schedule: 1e-3), misled_seconds)
    found = values(figures.order_figures("model", [flat], 1))
    assert found["rank correlation, the least"] is None


@pytest.mark.parametrize("seconds", [synthetic_seconds, lambda schedule: 1e-3])
def test_tunings_of_tables_without_noise_agree(seconds: Callable[..., float]) -> None:
    found = figures.agreement_figures("model", [case(table(seconds), misled_seconds)], 1)
    assert [figure.value for figure in found] == [100.0, 100.0]


def test_an_unseen_shape_learns_from_the_nearest_ones() -> None:
    shapes = ((512, 512, 512), (512, 512, 1024), (512, 512, 1 << 20))
    here, near, far = (case(table(shape=shape), misled_seconds) for shape in shapes)
    assert here.table.share(transferred(here, [far, near], 24)) > here.table.share(here.favourite)
    assert transferred(here, [far], 24) == here.favourite
    regret, _ = figures.unseen_figures("model", [here, near], 1)
    assert regret.value is not None
    assert regret.value < 100 * (1 / here.table.share(here.favourite) - 1)


def test_the_suite_says_what_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "TABLES", tmp_path)
    with Pool(7) as pool:
        result = suite.run(pool, lambda text: None)
    (figure,) = result.figures
    assert figure.value is None
    assert "no tables are recorded for 7" in str(figure.reason)


def test_the_suite_reads_the_tables_of_its_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / machine.cpu_slug()
    for number, shape in enumerate(((512, 512, 512), (512, 512, 1024))):
        write(table(shape=shape, noise=0.01), folder / f"{number}-1t.jsonl.gz")
    write(table(), folder / "other-2t.jsonl.gz")
    monkeypatch.setattr(suite, "TABLES", tmp_path)
    told: list[str] = []
    with Pool(1) as pool:
        found = values(suite.run(pool, told.append).figures)
    assert found["tables, each an operator and a shape, recorded on a CPU"] == 2
    assert found["attention: legal schedules, the fewest"] is None
    assert told
    assert any("two cold tunings of 16 trials agree, 2 tables" in name for name in found)
