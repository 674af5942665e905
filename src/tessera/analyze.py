"""What a profile says: which kernels are slow, what binds them, what got slower, and what to do about it.

from tessera import analyze
print(analyze.roofline(trace="trace.json"))
analyze.stalls(trace="trace.json", group_by="region").plot("stalls.png")

`trace` is a file that a session or another profiler wrote, a folder with the traces of all ranks, a session, or a
`Trace`. Every analysis prints as a table, gives its rows (`for row in ...`, `to_polars()`) and draws them (`plot`).
Called as a statement of its own, it prints itself.
What a machine could not measure is missing with the reason, never guessed.
"""

from __future__ import annotations

from pathlib import Path

from tessera.doors.tuning.copying import CopyBound, copy_bound
from tessera.profiling.analyses import advise as _advise
from tessera.profiling.analyses import collectives as _collectives
from tessera.profiling.analyses import compare as _compare
from tessera.profiling.analyses import divergence as _divergence
from tessera.profiling.analyses import memory as _memory
from tessera.profiling.analyses import power as _power
from tessera.profiling.analyses import roofline as _roofline
from tessera.profiling.analyses import stalls as _stalls
from tessera.profiling.analyses.presentation.bare import print_where_bare
from tessera.profiling.analyses.presentation.result import Analysis
from tessera.profiling.analyses.roofline import Roofline, RooflinePoint, machine, point_of
from tessera.profiling.analyses.source import Source, opened
from tessera.profiling.report.bounds import Bound, bandwidth
from tessera.target import Target

__all__ = [
    "Analysis",
    "Bound",
    "CopyBound",
    "Roofline",
    "RooflinePoint",
    "advise",
    "bandwidth",
    "collectives",
    "compare",
    "copy_bound",
    "divergence",
    "machine",
    "memory",
    "point_of",
    "power",
    "roofline",
    "stalls",
]


_NO_PICTURE = 'picture: none was drawn; .plot("picture.png") draws it'


def roofline(
    trace: Source,
    arch: str | None = None,
    output: str | Path | None = None,
    target: Target | None = None,
) -> Roofline:
    """The kernels of a trace against the hardware's bounds: one point per kernel and work, with the median duration.

    Args:
        trace: see above.
        arch: a GPU by name, whose data sheet gives the ceilings; None means this machine's CPU, measured.
        output: where to draw the picture; nothing is drawn without it.
        target: a device with ceilings, instead of looking one up.

    Raises:
        ProfileError: the file is no trace.
        ArgumentError: it holds no kernel with a count of operations, or the device has no ceilings; without `arch` and
            `target`, also for the trace of another machine or of a GPU.
    """
    with opened(trace) as found:
        if target is None:
            target = _roofline.target_of(arch) if arch is not None else _roofline.own_target(found)
        result = _roofline.roofline(found, target)
    if output is not None:
        result.plot(output)
        picture = f"picture: {output}"
    else:
        picture = 'picture: none was drawn; output="roofline.png" draws it'
    print_where_bare(result, picture)
    return result


def stalls(trace: Source, group_by: str = "kernel") -> Analysis:
    """Where kernels wait for memory: stalls, issue efficiency, traffic, by "kernel", "region", "stream", "thread",
    "device", "rank", "dtype" or "schedule"; counters are means weighted with time.

    Raises ArgumentError (E_ARGUMENT) for another `group_by` and ProfileError (E_PROFILE) for a file that is no trace.
    """
    with opened(trace) as found:
        result = _stalls.stalls(found, group_by)
    print_where_bare(result, _NO_PICTURE)
    return result


def divergence(trace: Source, threshold: float = 0.2) -> Analysis:
    """The kernels of whose branches at least `threshold` diverge: a fraction, 0.2 is 20 %.

    Raises ArgumentError (E_ARGUMENT) for a threshold outside of 0 to 1 and ProfileError (E_PROFILE) for a file that
    is no trace.
    """
    with opened(trace) as found:
        result = _divergence.divergence(found, threshold)
    print_where_bare(result, _NO_PICTURE)
    return result


def collectives(trace: Source, min_bytes: int = 0) -> Analysis:
    """Collectives of at least `min_bytes`: durations, bandwidth, the share of their time beside kernels of their rank,
    and, given the folder of all ranks, how far apart the ranks arrive.

    Raises ArgumentError (E_ARGUMENT) for a negative size and ProfileError (E_PROFILE) for a file that is no trace.
    """
    with opened(trace) as found:
        result = _collectives.collectives(found, min_bytes)
    print_where_bare(result, _NO_PICTURE)
    return result


def memory(trace: Source) -> Analysis:
    """Bytes: the achieved rate of each kernel, what memory moved where counters tell, and copies with their overlap.

    Raises ProfileError (E_PROFILE) for a file that is no trace.
    """
    with opened(trace) as found:
        result = _memory.memory(found)
    print_where_bare(result, _NO_PICTURE)
    return result


def power(trace: Source) -> Analysis:
    """Power by device: mean, peak, crest factor (peak over root mean square), energy, temperature, throttling.

    Raises ProfileError (E_PROFILE) for a file that is no trace.
    """
    with opened(trace) as found:
        result = _power.power(found)
    print_where_bare(result, _NO_PICTURE)
    return result


def compare(a: Source, b: Source, confidence: float = 0.95, min_change_pct: float = 1.0) -> Analysis:
    """What got slower from trace `a` to trace `b`: by kernel (torch operator, collective, copy) and work, the ratio of
    the durations with an interval that holds for all rows together, and a verdict ("slower", "faster", "within noise",
    "too few calls", "only in a").

    Raises ArgumentError (E_ARGUMENT) for a confidence outside of 0.5 to 1 and ProfileError (E_PROFILE) for a file
    that is no trace.
    """
    with opened(a) as first, opened(b) as second:
        result = _compare.compare(first, second, confidence, min_change_pct)
    print_where_bare(result, _NO_PICTURE)
    return result


def advise(trace: Source, arch: str | None = None, target: Target | None = None) -> Analysis:
    """What to do: the rules of the profiling guide, each with where it holds, the numbers that show it, and a remedy.
    What cannot be judged, since the trace lacks the figures, is noted with the reason.

    Kernels are held against the ceilings of `target`, of the GPU called `arch`, or of this machine where they have been
    measured (`tessera quickstart`). Raises ProfileError (E_PROFILE) for a file that is no trace.
    """
    with opened(trace) as found:
        known = target or (_roofline.target_of(arch) if arch is not None else _roofline.known_target(found))
        result = _advise.advise(found, known)
    print_where_bare(result, _NO_PICTURE)
    return result
