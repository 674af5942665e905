"""The figures of suite ``tune``, each with its limit, computed from recorded tables.

"Share of the best" is the least median of a table's space divided by the median of the schedule that was chosen: 1 for
the best. "Regret" is how much slower than the best a choice is, in percent.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy

from bench.results import Figure
from bench.tuning.problems import Problem
from bench.tuning.strategies import Case, nearby, transferred
from bench.tuning.table import BUSY, Table
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import predicted
from tessera.tuning.model.correlation import rank_correlation
from tessera.tuning.model.ranking import ranked

LARGE = ("matmul", "attention", "convolution")
"""Operators whose spaces have to be large and hard."""
LEAST_TABLES, LEAST_LEGAL, MOST_MEDIAN, LEAST_BEST = 24, 500, 0.7, 0.95
ZERO, ZERO_TENTH = 0.95, 0.85
TRIALS: Mapping[int, float] = {8: 0.98, 16: 0.99}
"""Trials, and the geometric mean of shares that they have to reach."""
REGRET_MEDIAN, REGRET_NINETIETH = 3.0, 8.0
CORRELATION = 0.8
PRUNED = 60.0
NOISE = 0.02
"""Schedules slower than the best by no more than this are as good as it."""
AGREED = 95.0
RANKING_MS, REPEATS = 5.0, 9
HALVES = (0, 1)
"""A tuning sees one half of the samples, and is judged by the other."""
SPREAD = 1.1
"""Tables whose median is less than this slower than their best have no order that a model could tell from noise."""


def space_figures(tables: Sequence[Table], threads: int) -> list[Figure]:
    """How many tables there are, and how large, hard and good their spaces are."""

    def figure(name: str, value: float | None, **more: float | str | None) -> Figure:
        return Figure(name, "recorded tables", threads, "", value, **more)  # type: ignore[arg-type]

    known = [table.known_s / table.best_s for table in tables if table.known_s is not None]
    found = [
        figure(f"tables, each an operator and a shape, recorded on {_cpus(tables)}", len(tables), least=LEAST_TABLES),
        figure("of these recorded on a busy machine", sum(table.busy_share > BUSY for table in tables), limit=0),
        figure("of these a sample of their space", sum(not table.exhaustive for table in tables)),
        figure("time of the best known before / best of the space, the least", min(known), least=LEAST_BEST)
        if known
        else figure("time of the best known before / best of the space", None, reason="none is known"),
    ]
    for operator in LARGE:
        kin = [table for table in tables if table.about.operator == operator]
        reason = None if kin else "no table of it is recorded"
        fewest = min((table.about.legal for table in kin), default=None)
        found.append(figure(f"{operator}: legal schedules, the fewest", fewest, least=LEAST_LEGAL, reason=reason))
        highest = max((table.best_s / statistics.median(table.seconds.values()) for table in kin), default=None)
        name = f"{operator}: median schedule's share of the best, the highest"
        found.append(figure(name, highest, limit=MOST_MEDIAN, reason=reason))
    return found


def _cpus(tables: Sequence[Table]) -> str:
    """The machines that recorded tables, which are replayed here."""
    return ", ".join(sorted({table.about.cpu for table in tables}))


def choice_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """What the model alone and few trials reach: the geometric mean and the tenth percentile."""
    shares = [case.table.share(case.favourite) for case in cases]
    count = f"{len(cases)} tables"
    found = [
        Figure(f"0 trials: share of the best, {count}", model, threads, "", geometric_mean(shares), least=ZERO),
        Figure("0 trials: tenth percentile", model, threads, "", percentile(shares, 10), least=ZERO_TENTH),
    ]
    for trials, least in TRIALS.items():
        shares = [case.reached(trials, half) for case in cases for half in HALVES]
        name = f"at most {trials} trials: share of the best, {count}, by samples that the tuning did not see"
        found.append(Figure(name, model, threads, "", geometric_mean(shares), least=least))
        found.append(Figure(f"at most {trials} trials: tenth percentile", model, threads, "", percentile(shares, 10)))
    return found


def unseen_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """The regret of schedules for shapes that nobody tuned, each table left out in turn."""
    regrets, near = [], 0
    for case in cases:
        others = [other for other in cases if other is not case]
        near += bool(nearby(case, others))
        share = case.table.share(transferred(case, others, max(TRIALS)))
        regrets.append(100 * (1 / share - 1) if share else float("inf"))
    name = f"unseen shapes: regret, median of {len(regrets)} left out one by one, {near} with shapes nearby"
    return [
        Figure(name, model, threads, "%", statistics.median(regrets), limit=REGRET_MEDIAN),
        Figure(
            "unseen shapes: regret, ninetieth percentile",
            model,
            threads,
            "%",
            percentile(regrets, 90),
            limit=REGRET_NINETIETH,
        ),
    ]


def order_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """How well predictions order schedules, and what may be dropped by them."""
    telling = [case for case in cases if statistics.median(case.table.seconds.values()) >= SPREAD * case.table.best_s]
    correlations = [correlation(case) for case in telling]
    reason = None if telling else f"no table has a median {SPREAD:g} times as slow as its best"
    mean = statistics.fmean(correlations) if telling else None
    count = f"{len(telling)} of {len(cases)} tables, those with an order"
    return [
        Figure(f"rank correlation, mean of {count}", model, threads, "", mean, least=CORRELATION, reason=reason),
        Figure("rank correlation, the least", model, threads, "", min(correlations, default=None), reason=reason),
        *pruning_figures(model, cases, threads),
    ]


def pruning_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """How much the tuner drops before it measures, and how often it keeps a schedule as good as the best."""
    kept = sum(len(case.worth) for case in cases)
    pruned = 100 * (1 - kept / sum(len(case.ranking) for case in cases))
    survived = 100 * statistics.fmean(survives(case) for case in cases)
    name = f"tables in which one within {100 * NOISE:g} % of the best survives that"
    return [
        Figure(f"schedules pruned before measuring, of {len(cases)} tables", model, threads, "%", pruned, least=PRUNED),
        Figure(name, model, threads, "%", survived, least=100.0),
    ]


def agreement_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """How often two cold tunings that have no sample in common choose the same code."""
    found = []
    for trials in TRIALS:
        same = [_code(case, case.tuned(trials, 0)) == _code(case, case.tuned(trials, 1)) for case in cases]
        name = f"two cold tunings of {trials} trials agree, {len(same)} tables"
        found.append(Figure(name, model, threads, "%", 100 * statistics.fmean(same), least=AGREED))
    return found


def table_figures(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """What was reached in each table, without limits: where the means come from."""
    found = []
    for case in cases:
        name = case.table.about.name
        found.append(
            Figure(f"{name}: share of the best, 0 trials", model, threads, "", case.table.share(case.favourite))
        )
        shares = [case.reached(max(TRIALS), half) for half in HALVES]
        found.append(Figure(f"{name}: {max(TRIALS)} trials", model, threads, "", geometric_mean(shares)))
    return found


def ranking_figure(problems: Sequence[Problem], threads: int) -> Figure:
    """How long the model takes for a thousand candidates here, rules, predictions and order: for the space of the
    problem for which that is most.
    """
    taken = {problem.name: _ranking_s(problem) for problem in problems}
    slowest = max(taken, key=taken.__getitem__)
    name = f"ranking 1000 candidates by the model, the fastest of {REPEATS}, the slowest of {len(taken)} spaces"
    return Figure(name, "tuner", threads, "ms", 1e6 * taken[slowest], limit=RANKING_MS, note=slowest)


def _ranking_s(problem: Problem) -> float:
    """Seconds for each schedule of the ranking of the space that is recorded."""
    posed = problem.posed()
    taken = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        ranking = ranked(posed.space, posed.problem.predict)
        taken.append((time.perf_counter() - begin) / len(ranking))
    return min(taken)


def unjudged(found: Iterable[Figure]) -> list[Figure]:
    """The figures without their limits: of a model that nothing is asked of."""
    return [replace(figure, limit=None, least=None) for figure in found]


def _code(case: Case, schedule: Schedule) -> str:
    return case.table.by_schedule[schedule].code


def geometric_mean(shares: Iterable[float]) -> float:
    """0 where one of them is."""
    values = list(shares)
    return statistics.geometric_mean(values) if min(values) > 0 else 0.0


def percentile(values: Sequence[float], percent: float) -> float:
    """The percentile, between two values by linear interpolation."""
    return float(numpy.percentile(values, percent))


def correlation(case: Case) -> float:
    """Spearman's rank correlation of predicted and measured seconds, over the schedules of the space that run."""
    seconds = predicted(case.problem.predict, list(case.table.seconds))
    # Where all predictions are equal they order nothing.
    return rank_correlation(seconds.tolist(), list(case.table.seconds.values())) or 0.0


def survives(case: Case) -> bool:
    """Whether a schedule within the noise of the best is left when the tuner has pruned."""
    return any(case.table.share(schedule) >= 1 / (1 + NOISE) for schedule in case.worth)
