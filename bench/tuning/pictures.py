"""``python -m bench.tuning.pictures``: the pictures of docs/cost-model.md, from recorded tables.

Of each table's schedules those at equal distances in today's ranking by the cost model are shown, with the times that
were recorded.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from bench.tuning.predictions import problem_of
from bench.tuning.table import SUFFIX, TABLES, Table, read
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.measure.trial import Timing, Trial
from tessera.tuning.model.ranking import ranked
from tessera.tuning.plots import best_so_far, correlation_of

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
KERNELS: Final[Mapping[str, str]] = {
    "matmul 512 x 512 x 512": "matmul-fp32-512x512x512-1t",
    "softmax 1024 x 1024": "softmax-fp32-1024x1024-1t",
    "depthwise 3 x 3, 256 channels of 112 x 112": "depthwise-fp32-1x256x112-3-NCHW-1t",
}
"""The tables by the kernels that they are of."""
RECORDED: Final = TABLES / "amd-epyc-family-25-model-17"
_ORDERS: Final = 200
_SHOWN_BARS: Final = 4
_SHOWN_SHARE: Final = 0.03


@dataclass(frozen=True)
class Sample:
    """A schedule: seconds measured (median) and predicted, the resource that binds, and each resource's seconds."""

    schedule: str
    measured_s: float
    predicted_s: float
    resource: str
    terms: Mapping[str, float]

    @property
    def trial(self) -> Trial:
        """As a trial, for what is computed of trials."""
        timing = Timing.of([self.measured_s])
        return Trial(Schedule.parse(self.schedule), "ok", timing, predicted_s=self.predicted_s)


def sampled(table: Table, count: int) -> list[Sample]:
    """`count` schedules of a table at equal distances in the model's ranking, best predicted first."""
    problem = problem_of(table)
    ran = [each for each in ranked(problem.space, problem.predict) if each[1] in table.seconds]
    places = sorted({round(place * (len(ran) - 1) / (count - 1)) for place in range(count)})
    chosen = [ran[place] for place in places]
    samples = []
    for (predicted, schedule), estimate in zip(chosen, problem.estimates([each for _, each in chosen]), strict=True):
        terms = {name: seconds for name, seconds in estimate.terms.items() if seconds > 0}
        samples.append(Sample(str(schedule), table.seconds[schedule], predicted, estimate.resource, terms))
    return samples


def accuracy(kernels: Mapping[str, Sequence[Sample]]) -> Figure:
    """Predicted against measured times, a panel for each kernel, coloured by what binds."""
    figure = Figure(figsize=(5 * len(kernels), 4.5), layout="constrained")
    for axes, (name, samples) in zip(figure.subplots(1, len(kernels), squeeze=False)[0], kernels.items(), strict=True):
        for resource in sorted({sample.resource for sample in samples}):
            shown = [sample for sample in samples if sample.resource == resource]
            x, y = [1e3 * each.predicted_s for each in shown], [1e3 * each.measured_s for each in shown]
            axes.plot(x, y, "o", markersize=4, alpha=0.7, label=resource)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter(ScalarFormatter())
            axis.set_minor_formatter(NullFormatter())
        low = min(axes.get_xlim()[0], axes.get_ylim()[0])
        high = max(axes.get_xlim()[1], axes.get_ylim()[1])
        axes.plot([low, high], [low, high], color="grey", linewidth=1, zorder=0)
        found = correlation_of([sample.trial for sample in samples])
        told = "" if found is None else f"\nrank correlation {found:.2f}, {len(samples)} schedules"
        axes.set_title(name + told, fontsize="medium")
        axes.set_xlabel("predicted, ms per call")
        axes.set_ylabel("measured, ms per call")
        axes.legend(fontsize="small")
    return figure


def terms(name: str, samples: Sequence[Sample]) -> Figure:
    """What each resource would take alone, for schedules from the best to the worst predicted, beside what was
    measured.
    """
    places = [round(place * (len(samples) - 1) / (_SHOWN_BARS - 1)) for place in range(_SHOWN_BARS)]
    figure = Figure(figsize=(10, 2 * _SHOWN_BARS), layout="constrained")
    for axes, place in zip(figure.subplots(_SHOWN_BARS, 1, squeeze=False)[:, 0], places, strict=True):
        sample = samples[place]
        rows = sorted(sample.terms.items(), key=lambda term: term[1])
        rows = [row for row in rows if row[1] > _SHOWN_SHARE * sample.predicted_s]
        axes.barh([row for row, _ in rows], [1e3 * seconds for _, seconds in rows])
        axes.axvline(1e3 * sample.predicted_s, color="black", label="predicted")
        axes.axvline(1e3 * sample.measured_s, color="tab:red", linestyle="--", label="measured")
        axes.set_title(textwrap.fill(f"{sample.resource}: {sample.schedule}", 120), fontsize="small", loc="left")
        axes.tick_params(labelsize="small")
        axes.legend(fontsize="x-small", loc="lower right")
    axes.set_xlabel("ms per call that each resource would take alone")
    figure.suptitle(name)
    return figure


def search(kernels: Mapping[str, Sequence[Sample]]) -> Figure:
    """The best so far, relative to the best of the sample, where the model says the order, and in random orders: their
    median, and the band that holds eight of ten.
    """
    figure = Figure(figsize=(5 * len(kernels), 4), layout="constrained")
    for axes, (name, samples) in zip(figure.subplots(1, len(kernels), squeeze=False)[0], kernels.items(), strict=True):
        trials = [sample.trial for sample in samples]
        fastest = min(trial.seconds for trial in trials)
        numbers = range(1, len(trials) + 1)
        low, middle, high = _random_orders(trials, fastest)
        axes.fill_between(numbers, low, high, alpha=0.25, color="tab:grey", label="random orders, 8 of 10")
        axes.plot(numbers, middle, color="tab:grey", label="random order, median")
        ours = [fastest / seconds for seconds in best_so_far(trials)]
        axes.step(numbers, ours, where="post", label="the model's order")
        axes.set_title(name, fontsize="medium")
        axes.set_xlabel("schedules measured")
        axes.set_ylabel("speed of the best so far, 1 is the best of all")
        axes.legend(fontsize="small", loc="lower right")
    return figure


def _random_orders(trials: Sequence[Trial], fastest: float) -> tuple[list[float], list[float], list[float]]:
    """The tenth percentile, the median and the ninetieth of the best so far over random orders."""
    generator = random.Random(0)
    runs = [best_so_far(generator.sample(trials, len(trials))) for _ in range(_ORDERS)]
    by_count = [sorted(fastest / run[place] for run in runs) for place in range(len(trials))]
    tenth = _ORDERS // 10
    middle = [statistics.median(speeds) for speeds in by_count]
    return [speeds[tenth] for speeds in by_count], middle, [speeds[-tenth] for speeds in by_count]


def main(arguments: Sequence[str]) -> int:
    """Draws. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning.pictures", description=__doc__)
    parser.add_argument("--count", type=int, default=60, help="schedules of each kernel (default: 60)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where pictures go (default: docs/images)")
    asked = parser.parse_args(arguments)
    found = {name: sampled(read(RECORDED / f"{table}{SUFFIX}"), asked.count) for name, table in KERNELS.items()}
    first = next(iter(found))
    pictures = {"accuracy": accuracy(found), "terms": terms(first, found[first]), "search": search(found)}
    for name, figure in pictures.items():
        figure.savefig(asked.folder / f"cost-model-{name}.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
