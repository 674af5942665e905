"""The learned model fitted to tables: no prediction comes from a fit that has seen the shape it speaks of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.tuning import fit
from bench.tuning.predictions import LEARNED, WITHOUT, cases, problem_of
from bench.tuning.strategies import neighbours
from bench.tuning.table import SUFFIX, Table, write
from tessera.errors import ScheduleError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.model.learned import Learned
from tests.unit.bench.recorded import table
from tests.unit.tuning.support import OPTIMUM, misled_seconds, problem, synthetic_seconds

SHAPES = [(256, 256, 256), (512, 512, 512), (1024, 512, 256), (768, 768, 768)]


def pose(asked: Table) -> TuningProblem:
    """The problem of a made-up table: its estimates are those of a model that is misled."""
    posed = problem(asked.about.identity, misled_seconds)
    return TuningProblem(posed.identity, posed.space, posed.build, posed.predict, "gen1", family="contraction")


def lying(schedule: Schedule) -> float:
    """The opposite of the truth: whoever has seen it is misled."""
    return 1e-6 / synthetic_seconds(schedule)


def tables(odd_one: tuple[int, ...] = ()) -> list[Table]:
    return [table(lying if shape == odd_one else synthetic_seconds, misled_seconds, shape=shape) for shape in SHAPES]


def test_a_prediction_comes_from_the_other_shapes() -> None:
    plain, honest = cases(tables(), "hardware", pose), cases(tables(), LEARNED, pose)
    assert all(a.table.share(a.favourite) < b.table.share(b.favourite) for a, b in zip(plain, honest, strict=True))
    odd = cases(tables(SHAPES[1]), LEARNED, pose)
    assert odd[1].ranking[0] == honest[1].ranking[0]


def test_what_neighbours_say_of_a_shape_does_not_rest_on_it() -> None:
    said = []
    for found in (tables(), tables(SHAPES[1])):
        posed = cases(found, LEARNED, pose)
        said.append(neighbours(posed[1], [posed[0], *posed[2:]], 12))
    assert len(said[0]) == len(SHAPES) - 1
    assert said[0] == said[1]


def test_a_prediction_without_the_operator_is_the_analytical_one() -> None:
    (case, *_) = cases(tables(), WITHOUT, pose)
    assert case.problem.predict(case.favourite) == misled_seconds(case.favourite)


def test_the_models_without_coefficients_predict_tables_too() -> None:
    (case, *_) = cases(tables(), "hardware", pose)
    assert case.problem.predict(case.favourite) == min(misled_seconds(each) for each in case.table.seconds)


def test_a_table_of_nothing_that_is_listed_has_the_estimates_it_was_recorded_with() -> None:
    found = table(predict=misled_seconds, shape=(256, 512, 1024))
    posed = problem_of(found)
    assert posed.identity == found.about.identity
    assert posed.predict(OPTIMUM) == misled_seconds(OPTIMUM)
    with pytest.raises(ScheduleError):
        posed.build(OPTIMUM)


def test_the_command_writes_coefficients_that_the_package_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, each in enumerate(tables()):
        write(each, tmp_path / "cpu" / f"{number}-1t{SUFFIX}")
    output = tmp_path / "residuals.json"
    assert fit.main(["--folder", str(tmp_path), "--output", str(output)]) == 0
    model = Learned.from_json(json.loads(output.read_text()), output.name)
    assert ("zen5", "contraction") in model.residuals
    assert "4 shapes" in capsys.readouterr().out


def test_the_command_says_when_there_is_too_little(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "residuals.json"
    assert fit.main(["--folder", str(tmp_path), "--output", str(output)]) == 1
    assert "0 tables" in capsys.readouterr().err
    assert not output.exists()
