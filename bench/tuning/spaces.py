"""How wide the kernels' spaces are: the suite ``tune-spaces``.

Of each problem: how many schedules are legal, how many kernels they stand for, how a random one of them compares with
the best one known, and how the untuned schedule does. The best one known is the fastest of the random ones, the
untuned one and those that the cost model likes best, all checked and timed against each other.

It runs in a process of its own (``python -m bench.tuning.spaces`` serves its requests), with its own thread count.
"""

from __future__ import annotations

import itertools
import random
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from bench.environments import environment
from bench.pool import Pool, Process
from bench.results import Figure, SuiteResult

if TYPE_CHECKING:
    from tessera.scheduling.language.knobs import Space
    from tessera.tuning.interfaces import TuningProblem

SEED = 11
SAMPLED, FAVOURITES = 40, 24
"""Schedules that are timed: random legal ones, and the cost model's."""
LEAST_LEGAL = 500
MOST_MEDIAN = 0.7
"""The speed of the median schedule over that of the best one known, at most: else there is nothing to tune."""


@dataclass(frozen=True)
class Width:
    """What a survey found: legal schedules, the kernels that different ones of the timed random ones stand for (of how
    many), the median and the untuned schedule's speed over that of the best one known.
    """

    legal: float
    kernels: int
    sampled: int
    median: float
    default: float


def count_legal(space: Space[Any]) -> float:
    """Legal schedules: counted in small spaces, estimated from random combinations in large ones."""
    found = space.rejections()
    return space.size * found.legal / found.examined


def of_workers(problem: TuningProblem) -> Space[Any]:
    """The problem's space without the knobs that its workers have no use for: one worker does not share its work."""
    from tessera.scheduling.language.knobs import Space

    space = problem.space
    assert isinstance(space, Space)
    alone = problem.identity.threads == 1 and "parallel" in space.by_name
    return space.restricted({"parallel": [space.default["parallel"]]}) if alone else space


def survey(problem: TuningProblem, sampled: int = SAMPLED, favourites: int = FAVOURITES) -> Width:
    """Draws, builds, checks and times. Raises TuneFailedError where nothing runs."""
    from tessera.tuning.measure.measurement import SCREEN, SubprocessMeasurer
    from tessera.tuning.model.ranking import ranked

    generator = random.Random(SEED)
    space = of_workers(problem)
    drawn = [space.draw(generator) for _ in range(sampled)]
    liked = [schedule for _, schedule in itertools.islice(ranked(space, problem.predict), favourites)]
    schedules = list(dict.fromkeys([space.default, *drawn, *liked]))
    problem.prepare(schedules)
    cases = [(schedule, problem.build(schedule)) for schedule in schedules]
    measurer = SubprocessMeasurer()
    try:
        trials = {trial.schedule: trial.seconds for trial in measurer.measure(cases, SCREEN)}
    finally:
        measurer.close()
    best = min(trials.values())
    kernels = len({case for schedule, case in cases if schedule in set(drawn)})
    median = statistics.median(best / trials[schedule] for schedule in drawn)
    return Width(count_legal(space), kernels, len(set(drawn)), median, best / trials[space.default])


# -- problems ---------------------------------------------------------------------------------------------------------

Shapes = list[tuple[int, ...]]


@dataclass(frozen=True)
class Kind:
    """One problem: the operator's name in `_operators`, its operands, and whether its space has to be wide."""

    name: str
    operator: str
    shapes: Shapes
    dtype: str = "fp32"
    wide: bool = True


KINDS = (
    Kind("matmul 512 cubed", "matmul", [(512, 512), (512, 512)]),
    Kind("matmul 1024 cubed", "matmul", [(1024, 1024), (1024, 1024)]),
    Kind("matmul 1024 cubed", "matmul", [(1024, 1024), (1024, 1024)], "bf16"),
    Kind("matmul 8 x 4096 x 4096", "matmul", [(8, 4096), (4096, 4096)]),
    Kind("attention, 12 heads of 64, 512 tokens", "attention", [(1, 12, 512, 64)] * 3),
    Kind("attention, 12 heads of 64, 1 token against 2048", "attention", [(1, 12, 1, 64), *[(1, 12, 2048, 64)] * 2]),
    Kind("conv 28 x 28 x 128 to 128, 3 x 3", "conv", [(1, 128, 28, 28), (128, 128, 3, 3)]),
    Kind("conv 56 x 56 x 64 to 256, 1 x 1", "pointwise", [(1, 64, 56, 56), (256, 64, 1, 1)]),
    Kind("depthwise 112 x 112 x 256, 3 x 3", "depthwise", [(1, 256, 112, 112), (256, 1, 3, 3)], wide=False),
    Kind("softmax 4096 x 1024", "softmax", [(4096, 1024)], wide=False),
    Kind("layer norm 4096 x 1024", "layer_norm", [(4096, 1024)], wide=False),
)
QUICK = (Kind("softmax 64 x 96", "softmax", [(64, 96)], wide=False),)


def _operators() -> dict[str, Callable[..., Any]]:
    from tessera import op

    return {
        "matmul": op.matmul,
        "attention": op.flash_attention,
        "conv": lambda image, weights: op.conv2d(image, weights, padding=1),
        "pointwise": op.conv2d,
        "depthwise": lambda image, weights: op.depthwise_conv2d(image, weights, padding=1),
        "softmax": op.softmax,
        "layer_norm": op.layer_norm,
    }


class Surveyor:
    """Answers requests: ``survey`` {operator, shapes, dtype, quick} gives a `Width`."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        from tessera.compiler.tune.tuning import CompilerBackend

        shapes = [tuple(shape) for shape in request["shapes"]]
        problem = CompilerBackend().subject(_operators()[request["operator"]], shapes, request["dtype"])
        return asdict(survey(problem, 4, 4) if request["quick"] else survey(problem))


# -- the suite --------------------------------------------------------------------------------------------------------


def figures(kind: Kind, width: Width, threads: int) -> list[Figure]:
    """What is shown of one problem."""
    label = f"{kind.name} {kind.dtype}"
    make = partial(Figure, contender="tessera", threads=threads)
    least, most = (LEAST_LEGAL, MOST_MEDIAN) if kind.wide else (None, None)
    return [
        make(f"{label}: legal schedules", unit="", value=width.legal, least=least),
        make(f"{label}: kernels that {width.sampled} of them stand for", unit="", value=float(width.kernels)),
        make(f"{label}: median speed / best", unit="", value=width.median, limit=most),
        make(f"{label}: untuned speed / best", unit="", value=width.default),
    ]


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult("tune-spaces", pool.threads)
    process = Process("spaces", [sys.executable, "-m", "bench.tuning.spaces"], environment("tessera", pool.threads))
    try:
        for kind in QUICK if quick else KINDS:
            progress(f"tune-spaces, {pool.threads} threads: {kind.name} {kind.dtype}")
            found = process.ask(operator=kind.operator, shapes=kind.shapes, dtype=kind.dtype, quick=quick)
            result.figures.extend(figures(kind, Width(**found), pool.threads))
    finally:
        process.close()
    return result


def main() -> None:
    """Serves until there are no more requests."""
    from bench.worker import answering, serve

    with answering() as (requests, answers):
        serve(Surveyor(), requests, answers)


if __name__ == "__main__":
    main()
