"""The figures that we stand by: what the runs in `bench/results/` say, by machine, with what falls short.

`pytest tests/docs/test_figures.py --update-goldens` writes them into docs/benchmarks.md and README.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "bench" / "results"

OWN: Final = frozenset({"spectral", "our direct", "heads as queries"})
"""Contenders that are Tessera's, too, in another way."""
NOTICED: Final = 0.95
"""A peer that takes less than this share of our time is faster; what is between is noise of such runs."""
WORST: Final = 5

SUITES: Final[Mapping[str, str]] = {
    "gemm": "matrix products",
    "fused": "products with bias and activation",
    "rowwise": "softmax, norms, elementwise chains",
    "attention": "attention",
    "blocks": "blocks of GPT-2 and Llama",
    "conv": "convolutions",
    "models": "GPT-2 and ResNet-50, whole",
    "skinny": "products of few rows",
}


@dataclass(frozen=True)
class Case:
    """One case: our seconds, torch's as it is installed, and those of the fastest of all others, with its name."""

    label: str
    ours: float
    torch: float | None
    best: float
    best_name: str

    @property
    def ratio(self) -> float:
        """The fastest other's time / ours: below 1 it is faster."""
        return self.best / self.ours


@dataclass(frozen=True)
class Run:
    """The cases of a suite, run on a machine with so many threads on a day."""

    machine: str
    day: str
    suite: str
    threads: int
    cases: tuple[Case, ...]

    @property
    def behind(self) -> list[Case]:
        """The cases in which another is faster, the worst first."""
        return sorted((case for case in self.cases if case.ratio < NOTICED), key=lambda case: case.ratio)


def runs() -> list[Run]:
    """All runs with cases that are kept."""
    return [run for path in sorted(RESULTS.glob("*.json")) for run in _read(path)]


def _read(path: Path) -> Iterator[Run]:
    document = json.loads(path.read_text())
    for suite in document.get("suites", ()):  # runs on GPUs have tables of their own, and no suites in a file
        cases = tuple(filter(None, map(_case, suite.get("cases", []))))
        if cases:
            yield Run(document["cpu"], document["date"][:10], suite["suite"], suite["threads"], cases)


def _case(case: Mapping[str, Any]) -> Case | None:
    """A case as far as all that was measured is right; None where we or all others have no time."""
    times = {each["contender"]: each["seconds"] for each in case["measurements"] if each["seconds"]}
    ours = times.get("tessera")
    others = {name: seconds for name, seconds in times.items() if not name.startswith("tessera") and name not in OWN}
    others = {name: seconds for name, seconds in others.items() if "control" not in name}
    if ours is None or not others:
        return None
    best = min(others, key=lambda name: others[name])
    return Case(case["label"], ours, times.get("torch"), others[best], best)


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean."""
    return math.exp(sum(map(math.log, ratios)) / len(ratios))


def summary() -> str:
    """The table of the runs."""
    rows = [
        "| machine | threads | what | cases | torch's time / ours | fastest other's time / ours | others faster in |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for run in runs():
        torchs = [case.torch / case.ours for case in run.cases if case.torch]
        against = f"{mean(torchs):.2f}" if torchs else ""
        best = mean([case.ratio for case in run.cases])
        rows.append(
            f"| {run.machine} | {run.threads} | {SUITES[run.suite]} | {len(run.cases)} | {against} | {best:.2f} "
            f"| {len(run.behind)} |"
        )
    return "\n".join(rows)


def short() -> str:
    """What falls short: the cases of each run in which another is faster, the worst ones."""
    parts = []
    for run in runs():
        if not run.behind:
            continue
        title = f"{SUITES[run.suite].capitalize()}, {run.machine}, {_threads(run.threads)}, {run.day}"
        rows = [f"| {case.label} | {case.best_name} | {case.ratio:.2f} |" for case in run.behind[:WORST]]
        more = len(run.behind) - WORST
        note = [f"and {more} more in `bench/results/`."] if more > 0 else []
        table = "\n".join(["| case | faster | its time / ours |", "| --- | --- | --- |", *rows])
        parts.append("\n\n".join([f"### {title}", table, *note]))
    return "\n\n".join(parts)


def missed() -> str:
    """The goals that runs do not meet: figures beside their limits, the first ones of each run."""
    rows = ["| run | figure | value | goal |", "| --- | --- | --- | --- |"]
    for path in sorted(RESULTS.glob("*.json")):
        document = json.loads(path.read_text())
        for suite in document.get("suites", ()):  # runs on GPUs have tables of their own, and no suites in a file
            run = f"`{suite['suite']}`, {document['cpu']}, {_threads(suite['threads'])}, {document['date'][:10]}"
            figures = [each for each in suite.get("figures", []) if each["met"] is False and each["value"] is not None]
            rows += [f"| {run} | {_figure(each)} |" for each in figures[:WORST]]
            if len(figures) > WORST:
                rows.append(f"| {run} | and {len(figures) - WORST} more in `bench/results/` | | |")
    return "\n".join(rows)


def _figure(figure: Mapping[str, Any]) -> str:
    goal = f"at most {figure['limit']:.3g}" if figure["limit"] is not None else f"at least {figure['least']:.3g}"
    value = f"{figure['value']:.4g} {figure['unit']}".strip()
    return f"{figure['name']} | {value} | {goal}"


def _threads(count: int) -> str:
    return "one thread" if count == 1 else f"{count} threads"


def inserted(page: str) -> str:
    """A page with the tables in their places: between `<!-- figures -->`, `<!-- short -->` or
    `<!-- missed -->` and `<!-- end of ... -->`.
    """
    for name, text in (("figures", summary()), ("short", short()), ("missed", missed())):
        opening, closing = f"<!-- {name} -->\n", f"\n<!-- end of {name} -->"
        if opening in page:
            head, _, rest = page.partition(opening)
            page = f"{head}{opening}\n{text}\n{closing}{rest.partition(closing)[2]}"
    return page
