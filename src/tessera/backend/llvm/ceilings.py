"""Measures what this CPU can do at most: arithmetic by dtype, and bandwidth by memory level, for several thread counts.

All probes run in turn, round after round, so that a slow spell of the machine hits all of them alike; each probe's
figure is the greatest of the medians of groups of rounds, and groups are added while the greatest two disagree. More
threads can do at least what fewer can, so their figure is never below. Results are kept on disk per CPU, with their
date.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import statistics
import struct
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy
from numpy.typing import NDArray

from tessera import settings, target
from tessera.backend.llvm import openmp, probe_ir
from tessera.backend.llvm.driver_ir import driver_text
from tessera.backend.llvm.library import NativeLibrary, cached_library
from tessera.errors import CacheFormatError, CacheIOError
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, MemoryLevel, Target

GROUPS: Final = (3, 6)
"""Least and most groups of rounds."""

ROUNDS_PER_GROUP: Final = 3
AGREEMENT: Final = 0.03
"""The greatest two medians of a probe differ by no more than this when the machine is quiet."""

BUSY: Final = 0.1
"""Share of the time during which some thread waited for a core, from which on figures are not trusted."""

_PROBE_SECONDS: Final = 0.002
_MODEST_FLOP: Final = 20e9
_MODEST_BYTES: Final = 10e9
_SINK_BYTES: Final = 8192
_ALIGNMENT: Final = 4096
_CACHE_ACCESSES: Final = ("read", "copy")
_DRAM_ACCESSES: Final = ("read", "copy", "copy_nt", "write", "write_nt")
_DRAM_BYTES: Final = (64 << 20, 512 << 20)
"""Least and most bytes, of all workers together, that a probe of main memory sweeps."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing to measure: `amount` is the FLOP, or the bytes moved, of one worker's one repetition."""

    function: str
    what: str
    access: str
    workers: int
    nbytes: int
    amount: float


def stored(described: Target | None = None) -> Ceilings | None:
    """The ceilings of this CPU that were measured before, None where there are none that can be read."""
    try:
        return Ceilings.from_json(_path(described or target.detect()).read_text())
    except (OSError, CacheFormatError):
        return None


def measured(progress: Callable[[float], None] | None = None) -> Ceilings:
    """The stored ceilings of this CPU, else measured now (1 to 3 s) and stored.

    They are not stored, with a warning, when other programs kept the CPU busy meanwhile, or when the folder cannot be
    written (E_CACHE_IO); the next process then measures again.
    """
    described = target.detect()
    found = stored(described)
    if found is not None:
        return found
    waited, start = _waiting_seconds(), time.monotonic()
    made = measure(described, progress=progress)
    busy = (_waiting_seconds() - waited) / (time.monotonic() - start)
    if busy > BUSY:
        warnings.warn(
            f"the CPU was busy with other programs while its ceilings were measured (for {busy:.0%} of the time some "
            "thread waited for a core): they may be too low, and are not kept",
            stacklevel=2,
        )
        return made
    try:
        _store(_path(described), made.to_json())
    except OSError as error:
        warnings.warn(str(CacheIOError(f"the ceilings of this CPU could not be kept: {error}")), stacklevel=2)
    return made


def _waiting_seconds() -> float:
    """Seconds since boot during which some runnable thread of the machine had no core; 0.0 where Linux does not say."""
    try:
        pressure = Path("/proc/pressure/cpu").read_text()
    except OSError:
        return 0.0
    some = pressure.partition("total=")[2].split(maxsplit=1)
    return int(some[0]) / 1e6 if some else 0.0


def measure(
    described: Target, worker_counts: Sequence[int] | None = None, progress: Callable[[float], None] | None = None
) -> Ceilings:
    """Measures this CPU, described by `described`; `progress` is told the fraction done, 0 to 1.

    `worker_counts` are 1, 2, 4, ... and the number of cores unless given; without OpenMP only 1 is measured.
    """
    counts = tuple(worker_counts or _worker_counts(described.cores if openmp.find().available else 1))
    bench = _Bench(described, max(counts))
    probes = [probe for workers in counts for probe in _probes(described, workers)]
    repetitions = {probe: bench.repetitions(probe) for probe in probes}
    medians: dict[Probe, list[float]] = {probe: [] for probe in probes}
    for done in range(GROUPS[1]):
        rates: dict[Probe, list[float]] = {probe: [] for probe in probes}
        for _ in range(ROUNDS_PER_GROUP):
            for probe in probes:
                seconds = bench.time(probe, repetitions[probe])
                rates[probe].append(probe.workers * probe.amount * repetitions[probe] / seconds)
        for probe in probes:
            medians[probe].append(statistics.median(rates[probe]))
        if progress is not None:
            progress((done + 1) / GROUPS[1])
        if done + 1 >= GROUPS[0] and all(settled(each) for each in medians.values()):
            break
    return _ceilings(described, at_least_as_fewer({probe: max(each) for probe, each in medians.items()}))


def settled(medians: Sequence[float]) -> bool:
    """Whether the two greatest medians agree, so that another group is not expected to find more."""
    first, second = sorted(medians, reverse=True)[:2]
    return first - second <= AGREEMENT * first


def at_least_as_fewer(rates: dict[Probe, float]) -> dict[Probe, float]:
    """Each rate raised to that of the same probe on fewer workers where that is greater."""

    def same(one: Probe, other: Probe) -> bool:
        return (one.what, one.access) == (other.what, other.access) and other.workers <= one.workers

    return {probe: max(rate for other, rate in rates.items() if same(probe, other)) for probe in rates}


def _ceilings(described: Target, rates: dict[Probe, float]) -> Ceilings:
    compute = [ComputeCeiling(each.what, each.workers, rate) for each, rate in rates.items() if not each.access]
    memory = [MemoryCeiling(each.what, each.workers, rate, each.access) for each, rate in rates.items() if each.access]
    return Ceilings(
        arch=described.arch,
        name=described.name,
        source="measured",
        compute=tuple(compute),
        memory=tuple(memory),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _worker_counts(cores: int) -> list[int]:
    counts = [1]
    while 2 * counts[-1] < cores:
        counts.append(2 * counts[-1])
    return counts if cores == 1 else [*counts, cores]


def _probes(described: Target, workers: int) -> list[Probe]:
    lanes = described.vector_bits // 32
    accumulators = _accumulators(described)
    probes = [
        Probe("fma_f32", "fp32", "", workers, 0, 2.0 * lanes * accumulators),
        Probe("fma_f64", "fp64", "", workers, 0, 1.0 * lanes * accumulators),
    ]
    if described.has_avx512bf16:
        probes.append(Probe("dot_bf16", "bf16", "", workers, 0, 2.0 * 32 * accumulators))
    for level in described.memory:
        nbytes = working_set(described, level, workers)
        accesses = _DRAM_ACCESSES if level.name == "DRAM" else _CACHE_ACCESSES
        for access in accesses if nbytes else ():
            moved = (2.0 if access.startswith("copy") else 1.0) * nbytes
            probes.append(Probe(f"mem_{access}", level.name, access, workers, nbytes, moved))
    return probes


def _accumulators(described: Target) -> int:
    """All registers but one, up to 24: more than the latency (4 to 5 cycles) times the units (2) of every CPU known."""
    return min(24, described.vector_registers - 2)


def working_set(described: Target, level: MemoryLevel, workers: int) -> int:
    """Bytes per worker and array for a probe of `level`; 0 where no size would stay in just that level.

    Half of a worker's share of the cache, so that source and destination of a copy fit together.
    """
    granule = probe_ir.LINES_PER_STEP * described.vector_bits // 8
    caches = [each for each in described.memory if each.name != "DRAM"]
    if level.name == "DRAM":
        together = 4 * sum(_share(each, 1) for each in caches[-1:])
        return min(max(together, _DRAM_BYTES[0]), _DRAM_BYTES[1]) // workers // granule * granule
    nearer = [each for each in caches if each.name < level.name]
    nbytes = _share(level, workers) // 2 // 2
    if nearer and nbytes < 2 * _share(nearer[-1], workers):
        return 0
    return nbytes // granule * granule


def _share(level: MemoryLevel, workers: int) -> int:
    """Bytes of a cache level that one of `workers` threads has to itself."""
    return level.size_bytes // max(1, min(workers, level.shared_by))


class _Bench:
    """The probes, loaded, with memory to sweep and the driver to run them."""

    def __init__(self, described: Target, most_workers: int) -> None:
        directory = settings.current().objects_dir
        use_openmp = most_workers > 1
        self._driver = cached_library("driver", driver_text(openmp=use_openmp, machine=platform.machine()), directory)
        self._probes: NativeLibrary = cached_library("probes", probe_text(described), directory)
        self._run: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._driver.address("tessera_run"))
        most = max(probe.nbytes * probe.workers for probe in _probes(described, most_workers))
        most = max(most, *(probe.nbytes for probe in _probes(described, 1)))
        # Ones, not fresh zeros: the system backs untouched memory by one page that never leaves the cache.
        self._source, self._destination = _aligned_ones(most), _aligned_ones(most)
        self._sink = _aligned_ones(_SINK_BYTES * most_workers)
        self._words = (ctypes.c_int64 * 32)()

    def repetitions(self, probe: Probe) -> int:
        """How many repetitions of a probe take about 2 ms, at least one; it also warms the probe up."""
        count = max(1, round(_PROBE_SECONDS * (_MODEST_BYTES if probe.access else _MODEST_FLOP) / probe.amount))
        # A single timing may be of a thread that had to wait for its core.
        seconds = min(self.time(probe, count) for _ in range(3))
        return max(1, round(count * min(max(_PROBE_SECONDS / seconds, 1 / 4), 64)))

    def time(self, probe: Probe, repetitions: int) -> float:
        """Seconds that all workers take for so many repetitions."""
        words = ctypes.addressof(self._words)
        table, descriptors, step = words + 5 * 8, words + 7 * 8, words + 16 * 8
        frame = (table, 1, step, 0, 0, _address(self._source), _address(self._destination), repetitions, probe.nbytes)
        kernel = self._probes.address(probe.function)
        steps = (kernel, descriptors, probe.workers, _address(self._sink), _SINK_BYTES, 0, 0, 0)
        struct.pack_into(f"<{len(frame)}q", self._words, 0, *frame)
        struct.pack_into(f"<{len(steps)}q", self._words, 16 * 8, *steps)
        start = time.perf_counter()
        self._run(words)
        return time.perf_counter() - start


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
    if described.has_avx512bf16:
        declarations.append(probe_ir.DPBF16_DECLARATION)
        functions.append(probe_ir.dpbf16_probe("dot_bf16", accumulators))
    functions += [
        probe_ir.memory_probe(f"mem_{access}", access, described.vector_bits // 8) for access in _DRAM_ACCESSES
    ]
    return probe_ir.module(functions, declarations)


def _aligned_ones(nbytes: int) -> NDArray[numpy.uint8]:
    memory = numpy.ones(nbytes + _ALIGNMENT, numpy.uint8)
    start = -_address(memory) % _ALIGNMENT
    return memory[start : start + nbytes]


def _address(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _path(described: Target) -> Path:
    parts = (described.arch, described.name, described.cores, described.processors, sorted(described.features))
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    return settings.current().ceilings_dir / f"{described.arch}-{digest}.json"


def _store(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(text)
    os.replace(temporary, path)
