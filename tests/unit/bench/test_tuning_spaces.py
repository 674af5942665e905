"""The survey of spaces and the specification's example: counts, comparisons, and what is shown of them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.tuning import example, spaces
from bench.tuning.example import Gain
from bench.tuning.spaces import KINDS, QUICK, Width, count_legal, survey
from tessera import op
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule


def _space(choices: int) -> Space[None]:
    """Pairs of numbers, of which those are legal whose sum is even: half of them."""
    knobs = tuple(Knob(name, tuple(range(choices)), "a number") for name in "ab")
    even = Rule[None](
        "even", "the sum is even", lambda schedule, _: (schedule.integer("a") + schedule.integer("b")) % 2 == 0
    )
    return Space(knobs, (even,), None, Schedule(a=0, b=0))


def test_legal_schedules_of_small_spaces_are_counted() -> None:
    assert count_legal(_space(20)) == 200


def test_legal_schedules_of_large_spaces_are_estimated() -> None:
    assert count_legal(_space(1000)) == pytest.approx(500_000, rel=0.1)


def test_one_worker_has_no_work_to_share() -> None:
    problem = CompilerBackend().subject(op.softmax, [(64, 96)], "fp32")
    for threads, choices in ((1, 1), (2, 2)):
        posed = replace(problem, identity=replace(problem.identity, threads=threads))
        assert len(spaces.of_workers(posed).by_name["parallel"].choices) == choices


def test_a_survey_times_random_schedules_against_the_untuned_one(cache_dir: Path) -> None:
    (kind,) = QUICK
    found = survey(CompilerBackend().subject(op.softmax, kind.shapes, kind.dtype), 4, 2)
    assert found.legal >= found.sampled >= found.kernels >= 1
    assert 0 < found.median <= 1
    assert 0 < found.default <= 1


def test_what_has_to_be_wide_is_held_against_the_goals() -> None:
    wide = next(kind for kind in KINDS if kind.wide)
    legal, _, median, untuned = spaces.figures(wide, Width(400, 40, 40, 0.5, 0.97), 1)
    assert (legal.met, median.met, untuned.met) == (False, True, None)
    narrow = next(kind for kind in KINDS if not kind.wide)
    assert all(figure.met is None for figure in spaces.figures(narrow, Width(30, 20, 20, 0.9, 1.0), 1))
    assert {kind.operator for kind in KINDS} == spaces._operators().keys()


def test_the_example_runs_as_the_specification_writes_it(cache_dir: Path) -> None:
    gain = example.tune(example.QUICK_IMAGES, example.QUICK_WINDOW, "NHWC", 2)
    assert 1 <= gain.trials <= 2
    assert min(gain.tuned_s, gain.by_hand_s, gain.default_s) > 0
    assert any(f"({rows},{columns})" in gain.label for rows, columns in example.TILES)


def test_gains_and_shares_are_percentages() -> None:
    listed = example.figures("NCHW", Gain(1.0, 1.25, 1.1, 50, "tile=(64,64)"), 0.9, 1)
    assert [figure.value for figure in listed] == [50, pytest.approx(90), pytest.approx(25), pytest.approx(10)]
    (_, share, *_) = example.figures("NCHW", Gain(1.0, 1.25, 1.1, 50, "tile=(64,64)"), None, 1)
    assert (share.value, share.reason) == (None, "its ceiling is not known")
