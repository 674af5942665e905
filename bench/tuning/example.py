"""The specification's example of tuning, a depthwise convolution: the suite ``tune-example``.

Spec 001, 4.5, searches tiles (32, 32), (64, 64), (128, 64), 1, 2 or 4 vectors and 2 or 3 stages with at most 50 trials.
Shown are the share of the memory's bandwidth that the winner reaches, operands and result counted once, and what it
gains over schedules that nobody tuned: one picked by hand, (64, 64) with 4 vectors and 3 stages, which is the spec's
outcome on another machine, and the default of the whole space.

It runs in a process of its own (``python -m bench.tuning.example`` serves its requests), from empty caches and without
winners that ship with the package.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.contest import bound
from bench.environments import unaided
from bench.pool import Pool, Process
from bench.results import Figure, SuiteResult

TILES, VECTORS, STAGES, TRIALS = ((32, 32), (64, 64), (128, 64)), (1, 2, 4), (2, 3), 50
BY_HAND = {"tile": (64, 64), "vectorize": 4, "pipeline_depth": 3}
IMAGES, WINDOW = (8, 256, 112, 112), (256, 1, 3, 3)
"""Layers of MobileNet's kind, so many that no cache holds them: 206 MB cross the memory bus."""
QUICK_IMAGES, QUICK_WINDOW = (1, 64, 64, 64), (64, 1, 3, 3)
LAYOUTS = ("NCHW", "NHWC")


@dataclass(frozen=True)
class Gain:
    """Seconds of a call under the winner, under the schedule picked by hand and under the default; what was tried."""

    tuned_s: float
    by_hand_s: float
    default_s: float
    trials: int
    label: str


def tune(images: tuple[int, ...], window: tuple[int, ...], layout: str, trials: int) -> Gain:
    """Runs the example, and times its winner against the others, in turn."""
    import torch

    from tessera import op, schedule
    from tessera.compiler.tune.tuning import heaviest_problem
    from tessera.scheduling.language.schedule import Schedule
    from tessera.tuning.measure.measurement import FINAL, SubprocessMeasurer

    @op.kernel
    def depthwise(image: Any, weights: Any) -> Any:
        return op.depthwise_conv2d(image, weights, padding=1)

    x, w = torch.randn(images), torch.randn(window)
    if layout == "NHWC":
        x = x.contiguous(memory_format=torch.channels_last)
    problem = heaviest_problem(op.depthwise_conv2d(x, w, padding=1).structure)
    assert problem is not None
    schedule.search_space(depthwise, tile_sizes=TILES, vectorize=VECTORS, pipeline_stages=STAGES)
    space = schedule.autotune(depthwise, cost_model="roofline", max_trials=trials)
    depthwise(x, w).eval()
    config = space.configs[-1]
    by_hand = problem.space.restricted({knob: [value] for knob, value in BY_HAND.items()}).default  # type: ignore[attr-defined]
    timed: dict[str, Schedule] = {"tuned": config.schedule, "by hand": by_hand, "default": problem.space.default}
    measurer = SubprocessMeasurer()
    try:
        found = measurer.measure([(each, problem.build(each)) for each in timed.values()], FINAL)
    finally:
        measurer.close()
    tuned_s, by_hand_s, default_s = (trial.seconds for trial in found)
    return Gain(tuned_s, by_hand_s, default_s, len(config.trials), str(config.schedule))


class Example:
    """Answers requests: ``tune`` {images, window, layout, trials} gives a `Gain`."""

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Carries out one request."""
        images, window = tuple(request["images"]), tuple(request["window"])
        return asdict(tune(images, window, request["layout"], request["trials"]))


def figures(layout: str, gain: Gain, bound_s: float | None, threads: int) -> list[Figure]:
    """What is shown for one layout; `bound_s` is the time that the memory's bandwidth alone takes."""

    def figure(name: str, unit: str, value: float | None, reason: str | None = None) -> Figure:
        return Figure(f"depthwise {layout}: {name}", "tessera", threads, unit, value, reason=reason, note=gain.label)

    share = None if bound_s is None else 100 * bound_s / gain.tuned_s
    return [
        figure("trials", "", float(gain.trials)),
        figure("share of the bandwidth", "%", share, None if share is not None else "its ceiling is not known"),
        figure("gained over the schedule picked by hand", "%", 100 * (gain.by_hand_s / gain.tuned_s - 1)),
        figure("gained over the default of the whole space", "%", 100 * (gain.default_s / gain.tuned_s - 1)),
    ]


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult("tune-example", pool.threads)
    images, window, trials = (QUICK_IMAGES, QUICK_WINDOW, 4) if quick else (IMAGES, WINDOW, TRIALS)
    nbytes = 4 * (2 * math.prod(images) + math.prod(window))
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        variables = unaided("tessera", pool.threads, Path(folder))
        process = Process("example", [sys.executable, "-m", "bench.tuning.example"], variables)
        try:
            for layout in LAYOUTS:
                progress(f"tune-example, {pool.threads} threads: {layout}")
                found = process.ask(images=images, window=window, layout=layout, trials=trials)
                least = bound(pool, "depthwise", 0, nbytes, "fp32")
                seconds = least.seconds if least else None
                result.figures.extend(figures(layout, Gain(**found), seconds, pool.threads))
        finally:
            process.close()
    return result


def main() -> None:
    """Serves until there are no more requests."""
    from bench.worker import answering, serve

    with answering() as (requests, answers):
        serve(Example(), requests, answers)


if __name__ == "__main__":
    main()
