"""What the tuner reaches on recorded tables: at no, eight and sixteen trials, and for shapes it has not seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench import machine
from bench.pool import Pool
from bench.results import Figure, SuiteResult
from bench.tuning import figures, predictions
from bench.tuning.problems import PROBLEMS
from bench.tuning.strategies import Case
from bench.tuning.table import SUFFIX, TABLES, Table, read

NAME = "tune"
JUDGED = ("hardware", predictions.LEARNED, predictions.WITHOUT)
"""Models that are to reach the limits; the others are there to compare with."""
RANKED = [next(problem for problem in PROBLEMS if problem.operator == operator) for operator in figures.LARGE]
"""A large space of each kind, whose ranking is timed."""
QUICK = 3
"""Tables that are looked at where it is only asked whether everything runs."""


def load(threads: int, folder: Path) -> list[Table]:
    """The tables of kernels with so many threads in a folder: of this CPU, or where there are none, of all others.

    Raises CacheFormatError (E_CACHE_FORMAT) for a file that is no table.
    """
    pattern = f"*-{threads}t{SUFFIX}"
    paths = sorted((folder / machine.cpu_slug()).glob(pattern)) or sorted(folder.glob(f"*/{pattern}"))
    tables = [read(path) for path in paths]
    return [table for table in tables if table.seconds]


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the tables of the pool's thread count; nothing is measured."""
    result = SuiteResult(NAME, pool.threads)
    tables = load(pool.threads, TABLES)
    if not tables:
        reason = f"no tables are recorded for {pool.threads} thread(s): python -m bench record --all --threads N"
        result.figures.append(Figure("share of the best", "tuner", pool.threads, "", reason=reason))
        return result
    tables = tables[:QUICK] if quick else tables
    result.figures += figures.space_figures(tables, pool.threads)
    result.figures.append(figures.ranking_figure(RANKED, pool.threads))
    for model in predictions.MODELS:
        progress(f"{NAME}: {len(tables)} tables under the model {model}")
        result.figures += under(model, predictions.cases(tables, model, progress=progress), pool.threads)
    return result


def under(model: str, cases: Sequence[Case], threads: int) -> list[Figure]:
    """The figures of one cost model: of all its choices, of tunings that it guides only where it is one that tunes."""
    found = figures.choice_figures(model, cases, threads) + figures.order_figures(model, cases, threads)
    if model not in JUDGED:
        return figures.unjudged(found)
    found += figures.unseen_figures(model, cases, threads) + figures.agreement_figures(model, cases, threads)
    return found if model == predictions.WITHOUT else found + figures.table_figures(model, cases, threads)
