"""The learned model of this machine: what tunings leave in the log is what it is fitted to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.measurement import ReplayMeasurer
from tessera.tuning.model.own import OwnLearned, samples_of
from tessera.tuning.search.search import SearchLimits
from tessera.tuning.search.tuner import tune_on_device
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.identity import Identity
from tests.unit.tuning.model.test_models import CANDIDATES, SHAPES, posed
from tests.unit.tuning.support import MATMUL, PROVENANCE, shaped, synthetic_seconds, synthetic_table


def tuned(folder: Path, identities: list[Identity]) -> TuningDatabase:
    """A database with the log of a tuning for each identity that measured nearly all there is."""
    database = TuningDatabase(folder, shipped=None)
    for identity in identities:
        limits = SearchLimits(max_trials=60, budget_s=600.0)
        measurer = ReplayMeasurer(synthetic_table())
        tune_on_device(posed(identity), PROVENANCE, measurer, limits, database, strategy="ranking")
    return database


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> TuningDatabase:
    return tuned(tmp_path_factory.mktemp("own"), [shaped(*shape) for shape in SHAPES])


def test_every_trial_of_a_tuning_can_be_learned_from(database: TuningDatabase) -> None:
    found = list(samples_of(database, PROVENANCE.generator))
    assert {sample.identity.shape for sample in found} == set(SHAPES)
    assert len(found) == len({(sample.identity, sample.schedule) for sample in found}) > 60
    for sample in found:
        assert sample.family == "contraction"
        assert sample.measured_s == pytest.approx(synthetic_seconds(sample.schedule), rel=0.05)
        (estimate,) = posed(sample.identity).estimates([sample.schedule])
        assert sample.estimated_s == pytest.approx(estimate.seconds)
        assert dict(sample.terms) == pytest.approx(dict(estimate.terms))


def test_the_own_trials_find_a_better_schedule_of_a_shape_that_was_never_tuned(database: TuningDatabase) -> None:
    asked = posed(shaped(640, 640, 640))
    chosen = CANDIDATES[int(OwnLearned(database).seconds(asked, CANDIDATES).argmin())]
    analytical = CANDIDATES[int(asked.estimates(CANDIDATES).seconds.argmin())]
    assert synthetic_seconds(chosen) < 0.9 * synthetic_seconds(analytical)


def test_what_is_excluded_is_not_learned_from(database: TuningDatabase) -> None:
    model = OwnLearned(database, excluding=lambda identity: identity.shape == SHAPES[0])
    residual = model.fitted(PROVENANCE.generator).residual(posed())
    assert residual is not None
    assert str(shaped(*SHAPES[0])) not in residual.shapes


def test_trials_of_another_generator_teach_nothing(database: TuningDatabase) -> None:
    assert not list(samples_of(database, "another"))
    asked = replace(posed(replace(MATMUL, arch="nobody's")), generator="another")
    assert OwnLearned(database).seconds(asked, CANDIDATES).tolist() == asked.estimates(CANDIDATES).seconds.tolist()


@pytest.mark.parametrize(
    "spoiled",
    [{"model": 3}, {"model": {}}, {"median_s": -1.0}, {"median_s": "fast"}, {"identity": []}, {"schedule": {"a": {}}}],
)
def test_spoiled_lines_teach_nothing(tmp_path: Path, spoiled: dict[str, object]) -> None:
    database = tuned(tmp_path, [MATMUL])
    (log,) = database.user.logs()
    line = json.loads(log.read_text().splitlines()[0])
    log.write_text(json.dumps(line | spoiled) + "\n")
    assert not list(samples_of(database, PROVENANCE.generator))
    log.write_text(json.dumps(line) + "\n")
    assert [type(sample.schedule) for sample in samples_of(database, PROVENANCE.generator)] == [Schedule]
