"""What `tessera quickstart` does: four real kernels, tuned, checked and compared on this machine, and a real program.

It ends with three files in the current folder: trace.json (for https://ui.perfetto.dev), summary.csv and roofline.png.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import tessera
from tessera import analyze, autotune, profile, profiler
from tessera.analyze import Roofline, RooflinePoint
from tessera.cli.quickstart.kernels import TOLERANCE, QuickstartKernel, kernels
from tessera.cli.quickstart.machine import MeasuredMachine, describe, look, print_ceilings
from tessera.cli.quickstart.model import run_model
from tessera.cli.quickstart.timing import compare
from tessera.errors import ArgumentError
from tessera.tuning.config import Config
from tessera.tuning.interfaces import Progress as TuningProgress

TRACED_CALLS = 5

_EXAMPLE = Path(tessera.__file__).resolve().parents[2] / "examples" / "digits.py"


@dataclass(frozen=True)
class QuickstartRow:
    """One kernel's row: its schedule, torch's median seconds, the error, and Tessera's median with the work done."""

    kernel: QuickstartKernel
    config: Config
    torch_seconds: float
    quiet: bool
    """Whether the medians rest on samples during which nothing else wanted the CPU."""
    error: float
    point: RooflinePoint

    @property
    def right(self) -> bool:
        """Whether the error is within the tolerance; a NaN is not."""
        return self.error <= TOLERANCE[self.kernel.dtype]


def run(folder: Path, budget_s: float) -> bool:
    """Runs all of it, and writes the files into a folder; whether all results are what their references say."""
    # Each search would take a Ctrl-C for itself, and the next one would begin.
    signal.signal(signal.SIGINT, _stop)
    console = Console(width=None if sys.stdout.isatty() else 110)
    begin = time.perf_counter()
    check_folder(folder)
    machine = look(console)
    describe(machine, console)
    work = kernels()
    configs = tune(work, budget_s, console)
    if machine.in_doubt:
        machine = look(console, again=True)
        print_ceilings(machine, console)
    results = measure(work, configs, folder, console)
    model = roofline(results, machine)
    if model.above():
        machine = look(console, again=True)
        print_ceilings(machine, console)
        model = roofline(results, machine)
    console.print(table(results, model, machine.in_doubt))
    is_right = run_model(console)
    run_example(console)
    picture = model.plot(folder / "roofline.png")
    for path, meaning in (
        (folder / "trace.json", "timeline; open it at https://ui.perfetto.dev"),
        (folder / "summary.csv", "one row per operator"),
        (picture, "the kernels against this machine's ceilings"),
    ):
        console.print(f"wrote {path}: {meaning}", highlight=False)
    console.print(f"took {time.perf_counter() - begin:.0f} s", highlight=False)
    return is_right and all(result.right for result in results)


def _stop(number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt


def check_folder(folder: Path) -> None:
    """Makes the folder for the files, now and not after a minute of tuning. Raises ArgumentError when it cannot."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"--folder {folder}: {error.strerror}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(f"--folder {folder}: files cannot be written there", hints=["name another with --folder"])


def tune(work: Sequence[QuickstartKernel], budget_s: float, console: Console) -> list[Config]:
    """Tunes every kernel under a progress bar and says how many schedules the cache already had."""
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[best]}"), TimeElapsedColumn())
    configs: list[Config] = []
    with Progress(*columns, console=console, transient=True) as bar:
        total = bar.add_task("tuning", total=len(work), best="")
        for kernel in work:
            task = bar.add_task(kernel.label, total=None, best="")

            def advance(progress: TuningProgress, task: int = task) -> None:
                best = f"best {1e3 * progress.best_s:.3f} ms" if progress.best_s < float("inf") else ""
                bar.update(task, completed=progress.done, total=progress.limit, best=best)  # type: ignore[arg-type]

            configs.append(
                autotune(kernel.subject, kernel.shapes, kernel.dtype, "on_device", budget_s=budget_s, progress=advance)
            )
            bar.remove_task(task)
            bar.advance(total)
    cached = sum(config.source == "cache" for config in configs)
    where = autotune.status().folder
    if cached == len(configs):
        console.print(f"all {cached} schedules came from the cache at {where}: nothing was tuned", highlight=False)
    else:
        console.print(f"tuned {len(configs) - cached} kernels, {cached} from the cache at {where}", highlight=False)
    return configs


def measure(
    work: Sequence[QuickstartKernel], configs: Sequence[Config], folder: Path, console: Console
) -> list[QuickstartRow]:
    """Checks the kernels, times them against torch, profiles them, and writes the trace and the summary."""
    checked = []
    for kernel in work:
        with console.status(f"checking and timing {kernel.label}"):
            checked.append((kernel.error(), compare({"tessera": kernel.run, "torch": kernel.run_torch})))
    results = []
    profiled = trace(work, folder)
    for kernel, config, (error, medians) in zip(work, configs, checked, strict=True):
        (ours, quiet), (theirs, quiet_too) = medians["tessera"], medians["torch"]
        point = replace(profiled[kernel.label], name=kernel.name, seconds=ours)
        results.append(QuickstartRow(kernel, config, theirs, quiet and quiet_too, error, point))
    return results


def trace(work: Sequence[QuickstartKernel], folder: Path) -> dict[str, RooflinePoint]:
    """Profiles a few calls of each kernel, writes trace.json and summary.csv; gives the kernels' counts by label."""
    with profiler.session() as session:
        for kernel in work:
            with profiler.region(kernel.label):
                for _ in range(TRACED_CALLS):
                    kernel.run()
    profiler.timeline(folder / "trace.json")
    profile.summary(folder / "summary.csv").export(session.trace())
    points = ((record.region, analyze.point_of(record)) for record in session.records())
    return {region: point for region, point in points if point is not None}


def roofline(results: Sequence[QuickstartRow], machine: MeasuredMachine) -> Roofline:
    """The kernels against the machine's ceilings; the picture's title says where these are in doubt."""
    target = machine.target
    if machine.in_doubt:
        target = replace(target, name=f"{target.name} (busy while its ceilings were measured)")
    return Roofline(tuple(result.point for result in results), target)


def table(results: Sequence[QuickstartRow], model: Roofline, in_doubt: bool = False) -> Table:
    """The one table: time, rate, share of the bound, what binds, ratio to torch, error.

    `in_doubt` marks the shares: the ceilings may be too low.
    """
    shown = Table(title="Tessera on this machine", title_justify="left")
    shown.add_column("kernel", no_wrap=True)
    for column in ("time", "rate", "% of bound", "bound by", "torch's time / ours", "error", "right"):
        shown.add_column(column, justify="right", no_wrap=column not in ("torch's time / ours", "% of bound"))
    for result in results:
        kernel, point = result.kernel, result.point
        rate = f"{point.flop_per_s / 1e9:.1f} GFLOP/s" if kernel.is_product else f"{point.byte_per_s / 1e9:.1f} GB/s"
        bound, share = model.bound(point), model.efficiency_pct(point)
        shown.add_row(
            kernel.label,
            f"{1e3 * point.seconds:.3f} ms",
            rate,
            "" if share is None else f"{share:.0f}" + " +" * in_doubt,
            "" if bound is None else bound.binding,
            f"{result.torch_seconds / point.seconds:.2f}" + ("" if result.quiet else " *"),
            f"{result.error:.0e}",
            "yes" if result.right else "NO",
        )
    notes = list(model.above())
    if in_doubt:
        notes.append("+ other programs wanted the CPU while the ceilings were measured: the share may be lower")
    if not all(result.quiet for result in results):
        notes.append("* other programs wanted the CPU all the while; run it again on a quiet machine")
    shown.caption, shown.caption_justify = "\n".join(notes) or None, "left"
    return shown


def run_example(console: Console) -> None:
    """Runs examples/digits.py; says why when it cannot: it is not part of the installed package."""
    if not _EXAMPLE.exists():
        console.print("digits: not run, examples/digits.py is part of the repository only", highlight=False)
        return
    if importlib.util.find_spec("sklearn") is None:
        console.print("digits: not run, it needs scikit-learn: python -m pip install scikit-learn", highlight=False)
        return
    specification = importlib.util.spec_from_file_location("digits", _EXAMPLE)
    assert specification is not None
    assert specification.loader is not None
    digits = importlib.util.module_from_spec(specification)
    sys.modules[specification.name] = digits  # dataclasses look their module up there
    specification.loader.exec_module(digits)
    digits.main(lambda line: console.print(line, highlight=False))
