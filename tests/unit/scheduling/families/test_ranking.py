"""The model against recorded times of real kernels: random schedules, none of which it was fitted to."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.language.schedule import Schedule
from tests.unit.scheduling.families.test_cost import CPU, product
from tests.unit.scheduling.problems import ZEN4_CORE

RECORDED = json.loads((Path(__file__).parent / "measured_products.json").read_text())["products"]
ZEN4 = replace(CPU, core=ZEN4_CORE)


def predicted_and_measured(name: str) -> tuple[list[float], list[float]]:
    """Seconds by the model, with ceilings that it estimates itself, and microseconds by the clock."""
    m, n, k = map(int, name.split("x"))
    problem = replace(product(m, n, k), target=ZEN4)
    model = RooflineModel(None, ZEN4)
    rows = RECORDED[name]
    return [model.estimate(problem, Schedule.parse(text)).seconds for _, text in rows], [row[0] for row in rows]


def rank_correlation(a: list[float], b: list[float]) -> float:
    """Spearman's; ties, which are rare here, count in the order they stand."""
    ranks = [np.argsort(np.argsort(values)) for values in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_order_of_schedules_is_that_of_their_times(name: str) -> None:
    assert rank_correlation(*predicted_and_measured(name)) > 0.5


@pytest.mark.parametrize("name", sorted(RECORDED))
def test_the_fastest_is_nearly_reached_by_the_first_five(name: str) -> None:
    predicted, measured = predicted_and_measured(name)
    first = np.argsort(predicted)[:5]
    assert min(measured) > 0.95 * min(measured[index] for index in first)
