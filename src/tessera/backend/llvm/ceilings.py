"""Measures what this CPU can do at most: arithmetic by dtype, and bandwidth by memory level, for several thread counts.

All probes run in turn, round after round, so that a slow spell of the machine hits all of them alike. Samples taken
while other programs wanted the CPU are left out. A probe's figure is the greatest median of three consecutive
samples; rounds are added while the greatest two disagree. More threads can do at least what fewer can, so their
figure is never below. Results are kept on disk per CPU, with their date and with what is in doubt: a figure without
undisturbed samples, and arithmetic on several threads that is no faster than on fewer. What is in doubt is measured
again later, and the greater figure kept.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from tessera import target
from tessera.backend.llvm.machine_code import openmp
from tessera.backend.llvm.native import probe_ir
from tessera.backend.llvm.probe_runner import SINK_BYTES, LoadedProbes
from tessera.dtypes import dtype_of
from tessera.errors import CacheIOError
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, Target
from tessera.target.stored_ceilings import store_ceilings, stored_ceilings

GROUP: Final = 3
"""Samples whose median counts."""

BUDGET_S: Final = 4.0
"""Seconds after which no further round begins: a busy machine makes rounds slow, and does not settle."""

AGREEMENT: Final = 0.05
"""The greatest two medians of a probe differ by no more than this when they are near what the machine can do."""

DISTURBED: Final = 0.02
"""A sample during more than this share of which some thread of the machine waited for a core is not used."""

RETRY_S: Final = 600.0
"""Age in seconds from which ceilings in doubt are measured again."""

SCALING: Final = 1.1
"""Twice the threads do at least so much more arithmetic where nothing else wants the cores."""

_MODEST_FLOP: Final = 10e9
_MODEST_BYTES: Final = 5e9
"""Rates per second that every supported CPU exceeds, to begin with."""

_ALIGNMENT: Final = 4096
_CACHE_ACCESSES: Final = ("read", "copy")
_DRAM_ACCESSES: Final = ("read", "copy", "copy_nt", "write", "write_nt")


@dataclass(frozen=True, slots=True)
class ProbeEffort:
    """How much is measured: rounds over all probes (least, most), seconds of a sample, and bytes of all workers
    together that a probe of main memory sweeps (least, most).
    """

    rounds: tuple[int, int] = (9, 15)
    sample_s: float = 0.002
    dram_bytes: tuple[int, int] = (64 << 20, 512 << 20)


FULL: Final = ProbeEffort()


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing to measure: `amount` is the FLOP, or the bytes moved, of one worker's one repetition."""

    function: str
    what: str
    access: str
    workers: int
    nbytes: int
    amount: float


@dataclass(frozen=True, slots=True)
class ProbeSample:
    """One timing: FLOP or bytes per second, and the share of the time during which some thread waited for a core."""

    rate: float
    waited: float


def measured(progress: Callable[[float], None] | None = None, *, again: bool = False) -> Ceilings:
    """The stored ceilings of this CPU, else measured now (1 to 4 s) and stored; `progress` as in `measure`.

    Those in doubt are measured again when they are older than `RETRY_S`, all are where `again` asks for it; the greater
    figures are kept. Warns of doubts when it has measured, and when the folder cannot be written (E_CACHE_IO).
    """
    described = target.detect()
    found = stored_ceilings(described)
    if found is not None and not again and (not found.in_doubt or age_s(found.date) < RETRY_S):
        return found
    made = measure(described, progress=progress)
    if found is not None:
        made = made.raised_to(found)
    if made.in_doubt:
        warnings.warn(
            f"other programs kept the CPU busy while its ceilings were measured: {', '.join(made.in_doubt)} may "
            f"be too low; what asks for them in {RETRY_S / 60:g} minutes measures again",
            stacklevel=2,
        )
    try:
        store_ceilings(described, made)
    except OSError as error:
        warnings.warn(str(CacheIOError(f"the ceilings of this CPU could not be kept: {error}")), stacklevel=2)
    return made


def age_s(date: str) -> float:
    """Seconds since a date of what was measured; without end where it cannot be read."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(date)).total_seconds()
    except (ValueError, TypeError):  # a date without its zone cannot be subtracted
        return math.inf


def waiting_seconds() -> float:
    """Seconds since boot during which some runnable thread of the machine had no core; 0.0 where Linux does not say."""
    try:
        pressure = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return 0.0
    some = pressure.partition("total=")[2].split(maxsplit=1)
    return int(some[0]) / 1e6 if some else 0.0


def measure(
    described: Target,
    worker_counts: Sequence[int] | None = None,
    progress: Callable[[float], None] | None = None,
    effort: ProbeEffort = FULL,
    waited: Callable[[], float] = waiting_seconds,
) -> Ceilings:
    """Measures this CPU, described by `described`; `progress` is told the fraction done, 0 to 1.

    `worker_counts` are 1, 2, 4, ... and the number of cores unless given; without OpenMP only 1 is measured. `waited`
    says for how many seconds so far some thread of the machine had no core.
    """
    counts = tuple(worker_counts or _worker_counts(described.cores if openmp.find().available else 1))
    bench = _Bench(described, max(counts), effort, waited)
    probes = [probe for workers in counts for probe in _probes(described, workers, effort)]
    repetitions = {probe: bench.repetitions(probe) for probe in probes}
    samples: dict[Probe, list[ProbeSample]] = {probe: [] for probe in probes}
    deadline = time.monotonic() + BUDGET_S
    for done in range(1, effort.rounds[1] + 1):
        for probe in probes:
            samples[probe].append(bench.sample(probe, repetitions[probe]))
        enough = done >= effort.rounds[0] and all(settled(medians(each)) for each in samples.values())
        enough = enough and not unscaled(_rates(samples))
        last = enough or done == effort.rounds[1] or time.monotonic() > deadline
        if progress is not None:
            progress(1.0 if last else done / effort.rounds[1])
        if last:
            break
    rates = _rates(samples)
    disturbed = [probe for probe, each in samples.items() if not medians(each)] + unscaled(rates)
    doubts = dict.fromkeys(f"{probe.what} {probe.access}".strip() for probe in disturbed)
    return _ceilings(described, at_least_as_fewer(rates), tuple(doubts))


def _rates(samples: dict[Probe, list[ProbeSample]]) -> dict[Probe, float]:
    return {probe: max(medians(each) or [sample.rate for sample in each]) for probe, each in samples.items()}


def unscaled(rates: dict[Probe, float]) -> list[Probe]:
    """Arithmetic on several workers that is hardly faster than on half of them: somebody else had the cores."""
    return [
        probe
        for probe, rate in rates.items()
        for other, fewer in rates.items()
        if not probe.access and probe.what == other.what and 2 * other.workers <= probe.workers
        if rate < SCALING * fewer
    ]


def medians(samples: Sequence[ProbeSample]) -> list[float]:
    """The medians of groups of consecutive undisturbed samples; a group that is not full does not count."""
    rates = [sample.rate for sample in samples if sample.waited <= DISTURBED]
    return [statistics.median(rates[at : at + GROUP]) for at in range(0, len(rates) - GROUP + 1, GROUP)]


def settled(found: Sequence[float]) -> bool:
    """Whether the two greatest medians agree, so that another group is not expected to find more."""
    if len(found) < 2:
        return False
    first, second = sorted(found, reverse=True)[:2]
    return first - second <= AGREEMENT * first


def at_least_as_fewer(rates: dict[Probe, float]) -> dict[Probe, float]:
    """Each rate raised to that of the same probe on fewer workers where that is greater."""

    def same(one: Probe, other: Probe) -> bool:
        return (one.what, one.access) == (other.what, other.access) and other.workers <= one.workers

    return {probe: max(rate for other, rate in rates.items() if same(probe, other)) for probe in rates}


def _ceilings(described: Target, rates: dict[Probe, float], in_doubt: tuple[str, ...] = ()) -> Ceilings:
    compute = [ComputeCeiling(each.what, each.workers, rate) for each, rate in rates.items() if not each.access]
    memory = [MemoryCeiling(each.what, each.workers, rate, each.access) for each, rate in rates.items() if each.access]
    return Ceilings(
        arch=described.arch,
        name=described.name,
        source="measured",
        compute=tuple(compute),
        memory=tuple(memory),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        in_doubt=in_doubt,
    )


def _worker_counts(cores: int) -> list[int]:
    counts = [1]
    while 2 * counts[-1] < cores:
        counts.append(2 * counts[-1])
    return counts if cores == 1 else [*counts, cores]


def _probes(described: Target, workers: int, effort: ProbeEffort) -> list[Probe]:
    lanes = described.vector_bits // 32
    accumulators = _accumulators(described)
    probes = [
        Probe("fma_f32", "fp32", "", workers, 0, 2.0 * lanes * accumulators),
        Probe("fma_f64", "fp64", "", workers, 0, 1.0 * lanes * accumulators),
    ]
    units = matrix_products(described)
    if described.has_avx512bf16 and "bf16" not in units:
        probes.append(Probe("dot_bf16", "bf16", "", workers, 0, 2.0 * 32 * accumulators))
    for dtype in units:
        probes.append(Probe(f"tile_{dtype}", dtype, "", workers, 0, probe_ir.tile_flop(dtype_of(dtype).itemsize)))
    for level in described.memory:
        nbytes = working_set(described, level, workers, effort)
        accesses = _DRAM_ACCESSES if level.name == "DRAM" else _CACHE_ACCESSES
        for access in accesses if nbytes else ():
            moved = (2.0 if access.startswith("copy") else 1.0) * nbytes
            probes.append(Probe(f"mem_{access}", level.name, access, workers, nbytes, moved))
    return probes


def matrix_products(described: Target) -> dict[str, str]:
    """The dtypes that a matrix unit multiplies, and by which instruction."""
    units = {"bf16": "tdpbf16ps"} if described.has_amx_bf16 else {}
    return {**units, "int8": "tdpbssd"} if described.has_amx_int8 else units


def _accumulators(described: Target) -> int:
    """All registers but one, up to 24: more than the latency (4 to 5 cycles) times the units (2) of every CPU known."""
    return min(24, described.vector_registers - 2)


def working_set(described: Target, level: MemoryLevel, workers: int, effort: ProbeEffort = FULL) -> int:
    """Bytes per worker and array for a probe of `level`; 0 where no size would stay in just that level.

    Half of a worker's share of the cache, so that source and destination of a copy fit together.
    """
    granule = probe_ir.LINES_PER_STEP * described.vector_bits // 8
    caches = [each for each in described.memory if each.name != "DRAM"]
    if level.name == "DRAM":
        together = 4 * sum(_share(each, 1) for each in caches[-1:])
        least, most = effort.dram_bytes
        return min(max(together, least), most) // workers // granule * granule
    nearer = [each for each in caches if each.name < level.name]
    nbytes = _share(level, workers) // 2 // 2
    if nearer and nbytes < 2 * _share(nearer[-1], workers):
        return 0
    return nbytes // granule * granule


def _share(level: MemoryLevel, workers: int) -> int:
    """Bytes of a cache level that one of `workers` threads has to itself."""
    return level.size_bytes // max(1, min(workers, level.shared_by))


class _Bench:
    """The probes, loaded, with memory to sweep."""

    def __init__(self, described: Target, most_workers: int, effort: ProbeEffort, waited: Callable[[], float]) -> None:
        self._sample_s, self._waited = effort.sample_s, waited
        self._runner = LoadedProbes("probes", probe_text(described), most_workers > 1)
        most = max(probe.nbytes * probe.workers for probe in _probes(described, most_workers, effort))
        most = max(most, *(probe.nbytes for probe in _probes(described, 1, effort)))
        self._memory = (filled(most), filled(most), filled(SINK_BYTES * most_workers))
        source, destination, sink = map(address, self._memory)
        self._addresses = source, destination, sink

    def repetitions(self, probe: Probe) -> int:
        """How many repetitions of a probe take one worker about 2 ms, at least one; it also warms the probe up."""
        count = max(1, round(self._sample_s * (_MODEST_BYTES if probe.access else _MODEST_FLOP) / probe.amount))
        # One worker alone, the best of a few: a team may have to wait for its cores, which says nothing of the work.
        seconds = min(self.time(replace(probe, workers=1), count) for _ in range(3))
        return round(count * min(max(self._sample_s / seconds, 1.0), 64.0))

    def sample(self, probe: Probe, repetitions: int) -> ProbeSample:
        """One timing of all workers together."""
        waited = self._waited()
        seconds = self.time(probe, repetitions)
        rate = probe.workers * probe.amount * repetitions / seconds
        return ProbeSample(rate, (self._waited() - waited) / seconds)

    def time(self, probe: Probe, repetitions: int) -> float:
        """Seconds that all workers take for so many repetitions."""
        return self._runner.seconds(probe.function, repetitions, self._addresses, probe.nbytes, probe.workers)


def probe_text(described: Target) -> str:
    """The module of all probes for a CPU."""
    lanes, accumulators = described.vector_bits // 32, _accumulators(described)
    declarations = [
        probe_ir.fma_declaration(lanes, "float", "f32"),
        probe_ir.fma_declaration(lanes // 2, "double", "f64"),
    ]
    functions = [
        probe_ir.fma_probe("fma_f32", lanes, "float", "f32", accumulators),
        probe_ir.fma_probe("fma_f64", lanes // 2, "double", "f64", accumulators),
    ]
    units = matrix_products(described)
    if units:
        declarations += probe_ir.tile_declarations(list(units.values()))
        functions += [probe_ir.tile_probe(f"tile_{dtype}", name) for dtype, name in units.items()]
    if described.has_avx512bf16 and "bf16" not in units:
        declarations.append(probe_ir.DPBF16_DECLARATION)
        functions.append(probe_ir.dpbf16_probe("dot_bf16", accumulators))
    functions += [
        probe_ir.memory_probe(f"mem_{access}", access, described.vector_bits // 8) for access in _DRAM_ACCESSES
    ]
    return probe_ir.module(functions, declarations)


def filled(nbytes: int) -> NDArray[numpy.uint8]:
    """Page-aligned memory full of 0x3f: a normal number below one as fp64, fp32 and bf16.

    Untouched memory would be one page of zeros that never leaves the cache, and tiny numbers slow arithmetic down.
    """
    memory = numpy.full(nbytes + _ALIGNMENT, 0x3F, numpy.uint8)
    start = -address(memory) % _ALIGNMENT
    return memory[start : start + nbytes]


def address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)
