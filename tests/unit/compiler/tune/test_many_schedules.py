"""Many schedules judged and estimated at once: as one by one, for every family of kernels on CPUs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tessera import Tensor, op
from tessera.compiler.tune.tuning import heaviest_problem
from tessera.ops.algebra import call
from tessera.ops.attention.trained import COTANGENTS
from tessera.scheduling.language.batches import Batches
from tessera.scheduling.language.columns import Columns
from tessera.scheduling.language.knobs import Space
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.model.ranking import Ranking, ranked

A, B = torch.zeros(70, 520), torch.zeros(520, 200)
LARGE = torch.zeros(96, 1024), torch.zeros(1024, 640)
BYTES = torch.zeros(40, 150, dtype=torch.int8), torch.zeros(150, 70, dtype=torch.int8)
HEADS, FEW = torch.zeros(2, 3, 70, 40), torch.zeros(2, 3, 3, 40)
IMAGE, WEIGHTS, TAPS = torch.zeros(2, 16, 19, 23), torch.zeros(40, 16, 3, 3), torch.zeros(16, 1, 3, 3)

EXPRESSIONS: dict[str, Callable[[], Tensor]] = {
    "product": lambda: op.matmul(A, B),
    "product that is biased": lambda: op.relu(op.matmul(A, B) + 1.0),
    "bf16 product": lambda: op.matmul(A.bfloat16(), B.bfloat16()),
    "rows by columns": lambda: op.matmul(A[:4], B.T.contiguous().T),
    "constant": lambda: op.matmul(LARGE[0], op.constant(LARGE[1])),
    "bytes": lambda: op.matmul(*BYTES),
    "batch": lambda: op.matmul(torch.zeros(6, 33, 64), torch.zeros(6, 64, 48)),
    "softmax": lambda: op.softmax(torch.zeros(300, 1000)),
    "layer norm": lambda: op.layer_norm(torch.zeros(300, 1000)),
    "map": lambda: op.gelu(torch.zeros(3000, 1000)),
    "column sums": lambda: op.sum(torch.zeros(300, 1000), axis=0),
    "attention": lambda: op.flash_attention(HEADS, HEADS, HEADS),
    "attention gradient": lambda: call(COTANGENTS["k"], *[HEADS] * 4, *[HEADS[..., :1]] * 2, 0.1, causal=True),
    "decoding": lambda: op.flash_attention(FEW, HEADS, HEADS),
    "convolution": lambda: op.conv2d(IMAGE, WEIGHTS, padding=1),
    "window": lambda: op.depthwise_conv2d(IMAGE, TAPS, padding=1),
}


def posed(name: str) -> tuple[TuningProblem, Space[object]]:
    found = heaviest_problem(EXPRESSIONS[name]().structure)
    assert found is not None
    assert isinstance(found.space, Space)
    return found, found.space


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_rules_judge_many_schedules_as_one_by_one(name: str) -> None:
    _, space = posed(name)
    batches, generator = Batches(space), np.random.default_rng(3)
    around = batches.around(batches.of([space.default]))
    some = [batches.drawn(60, generator), batches.varied(batches.of([space.default]), 60, generator), around]
    for schedules in some:
        for rule in space.rules:
            alone = [bool(rule.holds(each, space.problem)) for each in schedules]
            assert rule.mask(schedules, space.problem).tolist() == alone, rule.name


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_estimates_of_many_schedules_are_those_of_each(name: str) -> None:
    problem, space = posed(name)
    batches, generator = Batches(space), np.random.default_rng(5)
    drawn = space.legal(batches.varied(batches.of([space.default]), 200, generator))
    together = problem.estimates(drawn)
    assert len(together) == len(drawn) > 1
    for found, schedule in zip(together, drawn, strict=True):
        (alone,) = problem.estimates([schedule])
        assert found.seconds == pytest.approx(alone.seconds, rel=1e-9)
        assert found.terms == pytest.approx(dict(alone.terms), rel=1e-9, abs=1e-15)
        assert (found.binding, found.resource) == (alone.binding, alone.resource)
        assert found.resource != "unknown"


@pytest.mark.parametrize("name", ["product", "attention", "window"])
def test_neighbours_of_many_are_those_of_each(name: str) -> None:
    _, space = posed(name)
    batches = Batches(space)
    near = space.legal(batches.around(batches.of([space.default])))
    assert set(near) == set(space.neighbours(space.default))


@pytest.mark.parametrize("name", ["softmax", "window"])
def test_a_small_space_is_ranked_in_full(name: str) -> None:
    problem, space = posed(name)
    ranking = ranked(space, problem.predict)
    assert isinstance(ranking, Ranking)
    assert {schedule for _, schedule in ranking} == set(space.candidates()) | {space.default}
    seconds = [seconds for seconds, _ in ranking]
    assert seconds == sorted(seconds) == [pytest.approx(problem.predict(schedule)) for _, schedule in ranking]


@pytest.mark.parametrize("name", ["product", "constant", "attention"])
def test_a_large_space_is_ranked_twice_alike_and_finds_what_its_neighbours_do_not_beat(name: str) -> None:
    problem, space = posed(name)
    first, again = ranked(space, problem.predict), ranked(space, problem.predict)
    assert list(first[:50]) == list(again[:50])
    seconds, best = first[0]
    assert seconds <= problem.predict(space.default)
    assert all(problem.predict(near) >= seconds * (1 - 1e-12) for near in space.neighbours(best))
    assert all(not space.violations(schedule) for _, schedule in first[:200])


def test_rejections_count_what_each_rule_drops() -> None:
    _, space = posed("softmax")
    looked, legal, counts = space.rejections()
    schedules = list(Batches(space).all())
    broken = [space.violations(each) for each in schedules]
    assert (looked, legal) == (space.size, broken.count(()))
    expected = {rule.name: sum(rule.name in names for names in broken) for rule in space.rules}
    assert counts == {name: count for name, count in expected.items() if count}
    assert list(counts.values()) == sorted(counts.values(), reverse=True) != []


def test_columns_are_the_schedules_they_were_made_of() -> None:
    _, space = posed("product")
    rows = list(space.neighbours(space.default))
    columns = Columns.of(rows)
    assert list(columns) == rows == [columns[place] for place in range(len(columns))]
    assert list(columns[2:5]) == rows[2:5]
    assert columns[-1] == rows[-1]
    assert Columns.of(columns) is columns
    assert [bool(found) for found in columns.equals("pack_b", True)] == [row["pack_b"] is True for row in rows]
    with pytest.raises(IndexError):
        columns[len(rows)]
