"""Measures `CoreFacts`: what one core does in a cycle, what its caches keep, and what waking another core costs.

All of it takes some 100 ms. Each figure is the least time of several short runs: whoever else wants the core only ever
makes a run longer. Cycles are counted by a chain of instructions that take one each, so that the clock, which goes up
and down, falls out. What was measured while others wanted the CPU is kept with its doubt, and measured again later;
what both say is then joined (`CoreFacts.joined`).
"""

from __future__ import annotations

import contextlib
import math
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

import numpy
from numpy.typing import NDArray

from tessera import settings
from tessera.backend.llvm.ceilings import RETRY_S, address, age_s, filled, matrix_products, waiting_seconds
from tessera.backend.llvm.machine_code import openmp
from tessera.backend.llvm.native import probe_ir
from tessera.backend.llvm.probe_runner import SINK_BYTES, LoadedProbes
from tessera.dtypes import dtype_of
from tessera.target import CoreFacts, Target
from tessera.target.stored_ceilings import store_core, stored_core

RUNS: Final = 8
"""Short runs of a probe, the least time of which counts."""
RUN_S: Final = 60e-6
"""Seconds of one, about."""
STREAM_RUNS: Final = 3
"""The same of rows of memory that are read in turn."""
TEAMS, LEAST_TEAMS, TEAMS_S = 60, 4, 0.02
"""Times that a second worker is started, at most and at least, and seconds after which these are enough."""
BUDGET_S: Final = 0.15
"""Seconds from the beginning after which caches are no longer looked at: their last level is what takes longest."""
IN_DOUBT: Final = 0.05
"""The share of the time during which some thread of the machine waited for a core, from which on facts are in doubt."""

_SUMS: Final = 12
"""Sums that hide the latency of a multiply-add (4 or 5 cycles) behind two that begin in a cycle; all CPUs hold them."""
_LINE, _PAGE = 64, 4096
_NEAR_BYTES: Final = 8 << 10
"""Bytes that every first cache keeps."""
_PAGES: Final = (16, 32, 48, 64, 96, 128, 192, 256)
_STREAMS, _STREAM_LINES = (4, 8, 16, 32, 64), 128
"""Rows of memory that are read in turn, line by line, and the lines of one: two pages."""
_MISSED: Final = 1.3
"""How much longer a load takes, on the mean, once some pages are translated by the second buffer."""
_LEFT: Final = 2.0
"""The same once a level does not keep all lines any more."""
_SHARES: Final = (16, 8, 4, 2)
"""Parts of a cache that are looked at, as 1 / share: one that keeps half of its size has it."""
_MOST_BYTES: Final = 16 << 20
"""The most memory that is walked. What a larger cache keeps beyond is as the system says."""


def known(described: Target) -> CoreFacts:
    """The stored facts of this CPU's cores, else measured now (some 100 ms) and stored. What is in doubt is measured
    again once it is older than `RETRY_S`.
    """
    found = stored_core(described)
    if found is not None and (not found.in_doubt or age_s(found.date) < RETRY_S):
        return found
    made = measure(described)
    if found is not None:
        made = made.joined(found)
    with contextlib.suppress(OSError):  # a folder that cannot be written costs the time to measure again
        store_core(described, made)
    return made


def measure(described: Target, waited: Callable[[], float] = waiting_seconds) -> CoreFacts:
    """Measures the cores of this CPU, described by `described`. `waited` says for how many seconds so far some thread
    of the machine had no core.
    """
    begin, waited_before = time.perf_counter(), waited()
    bench, lanes = _Bench(described), described.vector_bits // 32
    counts = {"chain": probe_ir.CHAIN_CYCLES, "load": _NEAR_BYTES // (4 * lanes)}
    counts |= {"fma_f32": _SUMS, "fma_f64": _SUMS, "one_f32": 1, "one_f64": 1}
    dots = bench.dots()
    least = bench.least({**counts, **{f"dot_{dtype}": count for dtype, count in dots.items()}})
    cycle_s, product_s = least["chain"], least["fma_f32"] / lanes
    facts = CoreFacts(
        fma_per_cycle=_whole(cycle_s / least["fma_f32"]),
        fma_latency=_whole(least["one_f32"] / cycle_s),
        fp64_fma_per_cycle=_whole(cycle_s / least["fma_f64"]),
        fp64_fma_latency=_whole(least["one_f64"] / cycle_s),
        loads_per_cycle=_whole(cycle_s / least["load"]),
        cycle_s=cycle_s,
        tlb_pages=within(bench.pages_s(), _MISSED) or 0,
        streams=followed(*bench.streams_s()),
        wake_s=bench.wake_s(),
        dots=tuple((dtype, round(product_s / least[f"dot_{dtype}"], 2)) for dtype in dots),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )
    caches = bench.caches(begin + BUDGET_S)
    share = (waited() - waited_before) / (time.perf_counter() - begin)
    doubtful = share > IN_DOUBT
    # What somebody else had in the caches meanwhile says nothing of them.
    return replace(facts, caches=() if doubtful else caches, in_doubt=doubtful)


def within(seconds: Sequence[tuple[int, float]], most: float) -> int | None:
    """The last of ascending sizes before a load takes `most` times as long as in the best of those before it; None
    where none does.
    """
    best = math.inf
    for place, (_, each) in enumerate(seconds):
        if each > most * best:
            return seconds[place - 1][0]
        best = min(best, each)
    return None


def followed(seconds: Sequence[tuple[int, float]], unforeseen_s: float) -> int:
    """The most rows, of ascending numbers, up to which a load from rows that are read in turn takes less than the mean
    of its best time and of `unforeseen_s`, that of a load from the same lines in no order; 0 where none does.
    """
    most = (min(each for _, each in seconds) + unforeseen_s) / 2
    found = 0
    for rows, each in seconds:
        if each < most:
            found = rows
        elif found:
            break
    return found


def _whole(ratio: float) -> int:
    return max(1, round(ratio))


class _Bench:
    """The probes, loaded, and memory for them, on small pages all of it."""

    def __init__(self, described: Target) -> None:
        self._described, self._random = described, numpy.random.default_rng(0)
        self._team = described.cores > 1 and settings.current().openmp and openmp.find().available
        self._runner = LoadedProbes("core-probes", probe_text(described), self._team)
        self._filled, self._sink = filled(_NEAR_BYTES), filled(2 * SINK_BYTES)
        self._mapped = mmap.mmap(-1, _MOST_BYTES)
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            with contextlib.suppress(OSError):  # a kernel without huge pages
                self._mapped.madvise(mmap.MADV_NOHUGEPAGE)
        self._words: NDArray[numpy.int64] = numpy.frombuffer(self._mapped, numpy.int64)

    def dots(self) -> dict[str, float]:
        """The dtypes that have instructions of their own, and the multiplications of a repetition."""
        units = matrix_products(self._described)
        found = {dtype: probe_ir.tile_flop(dtype_of(dtype).itemsize) / 2 for dtype in units}
        if self._described.has_avx512bf16:
            found.setdefault("bf16", 32.0 * _SUMS)
        if self._described.has_avx512vnni:
            found.setdefault("int8", 64.0 * _SUMS)
        return found

    def least(self, counts: Mapping[str, float]) -> dict[str, float]:
        """The least seconds of one of the `counts` things that a repetition of each probe does. All run in turn, so
        that a slow spell of the machine hits none of them alone.
        """
        memory = (address(self._filled), 0, address(self._sink))
        repetitions = dict.fromkeys(counts, 1)

        def once(function: str) -> float:
            return self._runner.seconds(function, repetitions[function], memory, _NEAR_BYTES)

        for function in counts:
            while min(once(function), once(function)) < RUN_S / 2:
                repetitions[function] *= 2
        best = dict.fromkeys(counts, math.inf)
        for _ in range(RUNS):
            best = {function: min(seconds, once(function)) for function, seconds in best.items()}
        return {function: best[function] / (repetitions[function] * count) for function, count in counts.items()}

    def wake_s(self) -> float:
        """The least seconds for starting and joining a second worker, over that of one alone; 0 where there is none."""
        if not self._team:
            return 0.0
        # OpenMP keeps a team for each thread that ever started one, and a child of a fork waits for that team in vain:
        # this one ends with a thread of its own.
        with ThreadPoolExecutor(1) as alone:
            return alone.submit(self._wake_s).result()

    def _wake_s(self) -> float:
        memory = (address(self._filled), 0, address(self._sink))
        best, deadline = {1: math.inf, 2: math.inf}, time.perf_counter() + TEAMS_S
        for team in range(TEAMS):
            for workers, least in best.items():
                best[workers] = min(least, self._runner.seconds("chain", 1, memory, workers=workers))
            if team >= LEAST_TEAMS and time.perf_counter() > deadline:  # it takes long, and needs no more to say so
                break
        return max(best[2] - best[1], 1e-7)

    def pages_s(self) -> list[tuple[int, float]]:
        """Seconds of a load that waits for another one on another page, by how many pages there are."""
        best = dict.fromkeys(_PAGES, math.inf)
        for _ in range(RUNS // 2):
            for pages in best:
                numbers = numpy.arange(pages)
                places = self._random.permutation(numbers * _PAGE + numbers % (_PAGE // _LINE) * _LINE)
                best[pages] = min(best[pages], self._chased(places))
        return list(best.items())

    def streams_s(self) -> tuple[list[tuple[int, float]], float]:
        """Seconds of a load from rows that are read in turn, by how many there are, and from their lines in no order;
        all lie behind the second cache.
        """
        apart = (_STREAM_LINES + _PAGE // _LINE) * _LINE
        inside = numpy.arange(_STREAM_LINES)[:, None] * _LINE
        orders = {rows: (inside + self._random.permutation(rows) * apart).ravel() for rows in _STREAMS}
        orders[0] = self._random.permutation(orders[_STREAMS[-1]])
        behind = self._words[_STREAMS[-1] * apart // 8 :][: 2 * self._described.cache_bytes("L2") // 8]
        best = dict.fromkeys(orders, math.inf)
        for _ in range(STREAM_RUNS):
            for rows, order in orders.items():
                self._link(order)
                behind.sum()  # pushes them out of the nearer caches
                best[rows] = min(best[rows], self._chain_s(order, 1))
        return [(rows, best[rows]) for rows in _STREAMS], best[0]

    def caches(self, deadline: float) -> tuple[tuple[str, int], ...]:
        """What levels keep, of those that keep less than half of what the system says."""
        found, inner = [], 0
        for level in self._described.memory:
            sizes = [level.size_bytes // share for share in _SHARES if level.size_bytes // share > 2 * inner]
            looked = []
            for size in sizes:
                if level.name == "DRAM" or size > _MOST_BYTES or time.perf_counter() > deadline:
                    break
                looked.append((size, self._walked_s(size)))
            kept = within(looked, _LEFT)
            if kept is not None:
                found.append((level.name, kept))
            inner = level.size_bytes
        return tuple(found)

    def _walked_s(self, nbytes: int) -> float:
        """Seconds of a load from so many bytes that are walked page by page, in no order that can be foreseen."""
        lines = _PAGE // _LINE
        pages = self._random.permutation(max(1, nbytes // _PAGE))
        inside = numpy.argsort(self._random.random((len(pages), lines)), axis=1)
        places = (pages[:, None] * _PAGE + inside * _LINE).ravel()
        return self._chased(places)

    def _chased(self, order: NDArray[numpy.int64]) -> float:
        """Seconds of a load of a chain through all places, in bytes, in this order."""
        self._link(order)
        laps = max(1, 4096 // len(order))
        runs = RUNS if len(order) < 1 << 15 else 2  # the first one brings the lines in
        return min(self._chain_s(order, laps) for _ in range(runs))

    def _link(self, order: NDArray[numpy.int64]) -> None:
        """Writes the chain."""
        self._words[order // 8] = address(self._words) + numpy.roll(order, -1)

    def _chain_s(self, order: NDArray[numpy.int64], laps: int) -> float:
        """Seconds of a load of the chain that was written, gone through so often."""
        memory = (address(self._words) + int(order[0]), 0, address(self._sink))
        repetitions = max(1, laps * len(order) // probe_ir.CHASE_STEPS)
        return self._runner.seconds("chase", repetitions, memory) / (repetitions * probe_ir.CHASE_STEPS)


def probe_text(described: Target) -> str:
    """The module of these probes for a CPU."""
    lanes = described.vector_bits // 32
    functions = [probe_ir.chain_probe("chain"), probe_ir.chase_probe("chase")]
    for name, sums in (("fma", _SUMS), ("one", 1)):
        functions.append(probe_ir.fma_probe(f"{name}_f32", lanes, "float", "f32", sums))
        functions.append(probe_ir.fma_probe(f"{name}_f64", lanes // 2, "double", "f64", sums))
    functions.append(probe_ir.memory_probe("load", "read", described.vector_bits // 8))
    declarations = [
        probe_ir.fma_declaration(lanes, "float", "f32"),
        probe_ir.fma_declaration(lanes // 2, "double", "f64"),
    ]
    units = matrix_products(described)
    if units:
        declarations += probe_ir.tile_declarations(list(units.values()))
        functions += [probe_ir.tile_probe(f"dot_{dtype}", name) for dtype, name in units.items()]
    if described.has_avx512bf16 and "bf16" not in units:
        declarations.append(probe_ir.DPBF16_DECLARATION)
        functions.append(probe_ir.dpbf16_probe("dot_bf16", _SUMS))
    if described.has_avx512vnni and "int8" not in units:
        declarations.append(probe_ir.DPBUSD_DECLARATION)
        functions.append(probe_ir.dpbusd_probe("dot_int8", _SUMS))
    return probe_ir.module(functions, declarations)
