"""What `tessera quickstart` says of the machine: its name, its threads, and ceilings that were measured on it.

Other programs may want the CPU meanwhile; ceilings measured then are too low, and shares of them too high. So that
nobody takes those for good figures they are measured again later, the greater of both counts, and what remains in
doubt is said.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace

from rich.console import Console

from tessera import analyze
from tessera.errors import CacheIOError
from tessera.lazy.threads import worker_count
from tessera.target import Ceilings, Target


@dataclass(frozen=True)
class Machine:
    """The CPU with its ceilings; `notes` is what was said while they were measured."""

    target: Target
    notes: tuple[str, ...] = ()

    @property
    def in_doubt(self) -> bool:
        """Whether the ceilings may be too low. That they could not be kept on disk casts no doubt on them."""
        return any(not note.startswith(CacheIOError.code) for note in self.notes)


def look(console: Console) -> Machine:
    """The machine, with its ceilings from an earlier run or measured now (two seconds or so)."""
    with console.status("measuring what this machine can do"), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        return Machine(analyze.machine(), tuple(str(each.message) for each in said))


def look_again(before: Machine, console: Console) -> Machine:
    """The machine with the greater of the ceilings known and those measured now."""
    now = look(console)
    if not now.in_doubt or before.target.ceilings is None or now.target.ceilings is None:
        return now
    return replace(now, target=now.target.with_ceilings(greater(before.target.ceilings, now.target.ceilings)))


def greater(one: Ceilings, other: Ceilings) -> Ceilings:
    """`one`, each figure raised to that of `other` where that is greater."""
    compute = [
        replace(row, flop_per_s=max(row.flop_per_s, other.flop_per_s(row.dtype, row.workers) or 0.0))
        for row in one.compute
    ]
    memory = [
        replace(row, byte_per_s=max(row.byte_per_s, other.byte_per_s(row.level, row.workers, row.access) or 0.0))
        for row in one.memory
    ]
    return replace(one, compute=tuple(compute), memory=tuple(memory), date=max(one.date, other.date))


def describe(machine: Machine, console: Console) -> None:
    """Prints the machine and its ceilings for the threads that kernels use."""
    target, threads = machine.target, worker_count()
    counts = f"{target.cores} core{'s' * (target.cores > 1)}, {threads} thread{'s' * (threads > 1)}"
    console.print(f"[bold]{target.name}[/], {target.arch}, {counts}", highlight=False)
    print_ceilings(machine, console)
    for note in machine.notes:
        console.print(f"note: {note}", highlight=False)


def print_ceilings(machine: Machine, console: Console) -> None:
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
