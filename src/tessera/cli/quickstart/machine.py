"""What `tessera quickstart` says of the machine: its name, its threads, and ceilings that were measured on it.

Other programs may want the CPU meanwhile; ceilings measured then are too low, and shares of them too high. So that
nobody takes those for good figures they are measured again later, as they are where a kernel was faster; the greater of
both counts, and what remains in doubt is said.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass

from rich.console import Console

from tessera import analyze
from tessera.lazy.threads import worker_count
from tessera.target import Target


@dataclass(frozen=True)
class MeasuredMachine:
    """The CPU with its ceilings; `notes` is what was said while they were measured."""

    target: Target
    notes: tuple[str, ...] = ()

    @property
    def in_doubt(self) -> bool:
        """Whether the ceilings may be too low."""
        return self.target.ceilings is not None and bool(self.target.ceilings.in_doubt)


def look(console: Console, *, again: bool = False) -> MeasuredMachine:
    """The machine, with its ceilings from an earlier run or measured now (two seconds or so). `again` measures in any
    case, and takes the greater figures.
    """
    with console.status("measuring what this machine can do"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return MeasuredMachine(analyze.machine(again=again), tuple(str(each.message) for each in said))


def describe(machine: MeasuredMachine, console: Console) -> None:
    """Prints the machine and its ceilings for the threads that kernels use."""
    target, threads = machine.target, worker_count()
    counts = f"{target.cores} core{'s' * (target.cores > 1)}, {threads} thread{'s' * (threads > 1)}"
    console.print(f"[bold]{target.name}[/], {target.arch}, {counts}", highlight=False)
    print_ceilings(machine, console)
    for note in machine.notes:
        console.print(f"note: {note}", highlight=False)


def print_ceilings(machine: MeasuredMachine, console: Console) -> None:
    """Prints the ceilings for the threads that kernels use, and when they were measured."""
    ceilings, threads = machine.target.ceilings, worker_count()
    if ceilings is None:
        return
    if threads not in ceilings.worker_counts():
        known = ", ".join(map(str, ceilings.worker_counts()))
        console.print(f"ceilings: not measured for {threads} threads, only for {known}", highlight=False)
        return
    peaks = [f"{row.dtype} {row.flop_per_s / 1e9:,.0f} GFLOP/s" for row in ceilings.compute if row.workers == threads]
    levels = dict.fromkeys(row.level for row in ceilings.memory if row.workers == threads)
    bandwidths = [f"{level} {analyze.bandwidth(ceilings, level, threads) / 1e9:,.0f} GB/s" for level in levels]
    when = f"{ceilings.source} {ceilings.date[:10]}"
    console.print(f"ceilings, {when}: {', '.join(peaks + bandwidths)}", highlight=False)
