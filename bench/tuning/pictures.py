"""``python -m bench.tuning.pictures``: the pictures of docs/cost-model.md, from kernels that are measured here.

Of each kernel's ranking by the cost model, schedules at equal distances are measured against each other, one thread.
What was measured is kept beside the pictures (cost-model.json); ``--redraw`` draws it again without measuring.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, ScalarFormatter

from tessera import autotune, op
from tessera.compiler.tuning import CompilerBackend
from tessera.scheduling.schedule import Schedule
from tessera.tuning.database import TuningDatabase
from tessera.tuning.identity import Provenance
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measurement import Effort, SubprocessMeasurer
from tessera.tuning.plots import best_so_far, correlation_of
from tessera.tuning.ranking import ranked
from tessera.tuning.search import SearchLimits
from tessera.tuning.trial import Timing, Trial
from tessera.tuning.tuner import Evaluation

FOLDER: Final = Path(__file__).resolve().parents[2] / "docs" / "images"
DATA: Final = "cost-model.json"
EFFORT: Final = Effort(rounds=21, sample_s=3e-4, lag=100.0, limit_s=1.0)
"""Many short samples: on a machine that does other work too most of them are undisturbed, and medians tell."""
KERNELS: Final[Mapping[str, tuple[Any, Any]]] = {
    "matmul 256 x 256 x 256": (op.matmul, (256, 256, 256)),
    "softmax 256 x 1024": (op.softmax, (256, 1024)),
    "depthwise 3 x 3, 64 channels of 56 x 56": (op.depthwise_conv2d, [(1, 64, 56, 56), (64, 1, 3, 3)]),
}
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


def measured(problem: TuningProblem, count: int) -> list[Sample]:
    """`count` schedules of a problem at equal distances in the model's ranking, timed in turn, best predicted first."""
    ranking = ranked(problem.space, problem.predict)
    places = sorted({round(place * (len(ranking) - 1) / (count - 1)) for place in range(count)})
    schedules = [ranking[place][1] for place in places]
    with tempfile.TemporaryDirectory() as folder:
        measurer = SubprocessMeasurer()
        provenance = Provenance.current(problem.generator, "on_device")
        database = TuningDatabase(Path(folder), (), None)
        evaluate = Evaluation(problem, provenance, measurer, SearchLimits(), database)
        try:
            trials = evaluate(schedules, EFFORT)
        finally:
            measurer.close()
    samples = []
    for trial, estimate in zip(trials, problem.estimates(schedules), strict=True):
        if trial.outcome == "ok":
            terms = {name: seconds for name, seconds in estimate.terms.items() if seconds > 0}
            predicted = problem.predict(trial.schedule)
            samples.append(Sample(str(trial.schedule), trial.seconds, predicted, estimate.resource, terms))
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


def _read(path: Path) -> dict[str, list[Sample]]:
    kept = json.loads(path.read_text())
    return {name: [Sample(**sample) for sample in samples] for name, samples in kept["kernels"].items()}


def main(arguments: Sequence[str]) -> int:
    """Measures, unless told not to, and draws. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning.pictures", description=__doc__)
    parser.add_argument("--redraw", action="store_true", help="draw what was measured before")
    parser.add_argument("--count", type=int, default=60, help="schedules of each kernel (default: 60)")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where pictures and data go")
    asked = parser.parse_args(arguments)
    data = asked.folder / DATA
    if not asked.redraw:
        torch.set_num_threads(1)
        kernels = {}
        for name, (operator, shapes) in KERNELS.items():
            problem = CompilerBackend().subject(operator, shapes, "fp32")
            samples = measured(problem, asked.count)
            kernels[name] = [vars(sample) | {"terms": dict(sample.terms)} for sample in samples]
            print(f"{name}: {len(samples)} schedules measured", flush=True)
        autotune.close()
        arch = problem.identity.arch
        data.write_text(json.dumps({"arch": arch, "threads": 1, "kernels": kernels}, indent=1) + "\n")
    found = _read(data)
    first = next(iter(found))
    pictures = {"accuracy": accuracy(found), "terms": terms(first, found[first]), "search": search(found)}
    for name, figure in pictures.items():
        figure.savefig(asked.folder / f"cost-model-{name}.png", dpi=100)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
