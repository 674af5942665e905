"""What `tessera tune` does: finds the best schedules of an operator or of what a run used, and keeps them."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from tessera import autotune, profile
from tessera import op as operators
from tessera.cli.tune_progress import TuningBar
from tessera.cli.unwritten import require_written
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.compiler.tune.usage import require, usage_of_session, usage_of_trace
from tessera.errors import ArgumentError
from tessera.profiling.session.sessions import Session
from tessera.tuning.config import Config
from tessera.tuning.explanation import duration
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.conditions import Cache
from tessera.tuning.options import TuningOptions, options
from tessera.tuning.plots import save_plot
from tessera.tuning.search import ranks
from tessera.tuning.uses import Tuned, Usage, in_common, tune_uses


@dataclass(frozen=True)
class How:
    """How to tune: what the options of `autotune` are called there. `budget_s` is for all kernels together."""

    method: str
    max_trials: int | None
    budget_s: float
    cost_model: str | None
    strategy: Any
    cold: bool
    force: bool

    def options(self, budget_s: float) -> TuningOptions:
        """The options for one kernel. Raises ArgumentError for what is none."""
        cache: Cache | None = "cold" if self.cold else None
        return options(self.method, self.max_trials, budget_s, self.cost_model, self.strategy, cache)


@dataclass(frozen=True)
class Asked:
    """What to tune: an operator with its shapes, or what the script or the trace at `path` used."""

    operator: Sequence[str]
    shape: Sequence[str]
    dtype: str
    target: str | None
    from_trace: Path | None
    model: Path | None


def run(asked: Asked, how: How, picture: Path | None) -> None:
    """Tunes, says what was found, and draws it where a picture is asked for. Raises ArgumentError for what is not to be
    tuned.
    """
    how.options(how.budget_s)  # what is wrong with them is said before anything runs
    subject, session = None, None
    if asked.from_trace is None and asked.model is None:
        subject = _one(asked.operator, asked.shape, asked.dtype, asked.target)
    elif asked.shape or (asked.from_trace is not None and (asked.operator or asked.model is not None)):
        raise ArgumentError(
            "an operator, --from-trace and --model are three ways to say what to tune", hints=["give one of them"]
        )
    elif asked.model is not None:
        session = _profiled(asked.model, asked.operator)
    with ranks.team():
        width, leads = None if sys.stdout.isatty() else 160, ranks.is_writer()
        console = Console(width=width, highlight=False, markup=False, quiet=not leads)
        if subject is not None:
            configs = _tune_one(subject, how, console, leads)
        else:
            configs = _tune_all(in_common(_used(asked.from_trace or asked.model, session)), how, console)
        if picture is not None and leads and configs:
            console.print(f"wrote {save_plot([(label, each.trials) for label, each in configs], picture)}")
        folder = require_written()
        console.print(f"kept in {folder}" if configs else "nothing was tuned, and nothing is kept", soft_wrap=True)


_Subject = tuple[Callable[..., Any], Any, str, str | None]
"""An operator, the shapes and dtype of its operands, and the target."""


def _one(operator: Sequence[str], shape: Sequence[str], dtype: str, target: str | None) -> _Subject:
    """The one operator that is to be tuned."""
    if len(operator) != 1 or not shape:
        raise ArgumentError(
            "what to tune is not said",
            hints=[
                "tessera tune matmul --shape 1024,1024,1024",
                "tessera tune --from-trace trace.json",
                "tessera tune --model script.py",
            ],
        )
    function = getattr(operators, operator[0], None) if operator[0] in operators.__all__ else None
    if function is None:
        raise ArgumentError(f"no operator is called {operator[0]!r}", hints=["any of tessera.op, for example matmul"])
    sizes = [_extents(text) for text in shape]
    return function, sizes[0] if len(sizes) == 1 else sizes, dtype, target


def _extents(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(extent) for extent in text.replace("x", ",").split(","))
    except ValueError:
        raise ArgumentError(
            f"--shape {text} is no list of extents", hints=["for example --shape 1024,1024,1024, or 1024x1024x1024"]
        ) from None


def _tune_one(subject: _Subject, how: How, console: Console, explained: bool) -> list[tuple[str, Config]]:
    """Tunes one operator, and prints why its schedule was chosen; its name and the best schedule."""
    problem = CompilerBackend().subject(*subject)
    with TuningBar(console, how.budget_s) as bar:
        config = autotune.solve(problem, how.options(how.budget_s), force=how.force, progress=bar.show)
    console.print(str(config), soft_wrap=True)
    if explained:
        function, shapes, dtype, target = subject
        autotune.explain(function, shapes, dtype, target=target)
    return [(str(config.identity), config)]


def _profiled(script: Path, arguments: Sequence[str]) -> Session:
    """A profile of `python script.py arguments`; a script that ends with a failure ends this program too."""
    if not script.is_file():
        raise ArgumentError(f"--model {script}: no such file")
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        with profile.session() as session:
            runpy.run_path(str(script), run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise
    finally:
        sys.argv, sys.path[:] = argv, path
    return session


def _used(path: Path | None, session: Session | None) -> Usage:
    """What the trace at `path` holds, or what the script there used in a session."""
    assert path is not None
    return require(usage_of_trace(path) if session is None else usage_of_session(session), path)


def _tune_all(used: Usage, how: How, console: Console) -> list[tuple[str, Config]]:
    """Tunes what a run used, hottest first, and prints a table of it; the schedules by the names of their kernels."""
    with TuningBar(console, how.budget_s, len(used.uses)) as bar:

        def solve(problem: TuningProblem, share_s: float) -> Config:
            bar.next(str(problem.identity), share_s)
            return autotune.solve(problem, how.options(share_s), force=how.force, progress=bar.show)

        tuned = list(tune_uses(used.uses, solve, how.budget_s))
    console.print(_table(tuned, used))
    for reason, lost_s in used.untuned.items():
        console.print(f"{duration(lost_s)} of the run cannot be tuned: {reason}")
    return [(each.use.label, each.config) for each in tuned if each.config is not None]


def _table(tuned: Sequence[Tuned], used: Usage) -> Table:
    table = Table(title=f"kernels of {duration(used.seconds)}, hottest first")
    for column in ("kernel", "shape", "calls", "time", "share %", "best", "default / best", "schedule"):
        told = column in ("kernel", "shape", "schedule")
        table.add_column(column, justify="left" if told else "right", no_wrap=column != "schedule")
    for each in tuned:
        use, config = each.use, each.config
        row = [
            use.label,
            "x".join(map(str, use.problem.identity.shape)),
            str(use.calls),
            duration(use.seconds),
            f"{100 * use.seconds / used.seconds:.1f}",
        ]
        if config is None:
            table.add_row(*row, "", "", each.reason)
            continue
        best = config.measured_s if config.measured_s is not None else config.predicted_s
        shown = f"{config.source}: {config.schedule}"
        table.add_row(*row, "" if best is None else duration(best), _gain(each), shown)
    return table


def _gain(tuned: Tuned) -> str:
    """How much faster the winner is than the untuned schedule, where both were timed without disturbance."""
    config = tuned.config
    if config is None or config.source != "measured":
        return ""
    timed = {trial.schedule: trial.timing for trial in config.trials}
    default, best = timed.get(tuned.use.problem.space.default), timed.get(config.schedule)
    if default is None or best is None or default.contended or best.contended:
        return ""
    return f"{default.median_s / best.median_s:.2f}"
