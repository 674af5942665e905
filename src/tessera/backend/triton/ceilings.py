"""Measures what a GPU can do at most, with torch: cuBLAS' products by dtype, copies and reads of memory and of L2.

Every probe runs for about `SAMPLE_S` between two CUDA events, all probes in turn, round after round; a probe's figure
is the median of its rounds. Results are kept on disk per device, driver and torch, with their date, and replace
published figures in cost models and reports from then on.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Protocol

import torch

from tessera.errors import CacheIOError
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling, Target, detect_gpu
from tessera.target.stored_ceilings import driver_version, store_ceilings, stored_ceilings

ROUNDS: Final = 7
SAMPLE_S: Final = 0.03
"""Seconds of one sample: long enough for a power limit to set the clock that lasts."""
EXTENT: Final[Mapping[str, int]] = {"fp64": 4096, "fp32": 4096}
"""M, N and K of the product of a dtype, where it is not 8192."""
_OTHER_EXTENT: Final = 8192
_DTYPES: Final = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8_e4m3", "int8")
_MEMORY_BYTES: Final = (256 << 20, 2 << 30)
"""Least and most bytes of one array in a probe of memory; it is eight times the size of L2 in between."""
_ACCESSES: Final = ("copy", "read", "write")
_AGAIN: Final = 64
"""How often a read of L2 goes over its array within one launch."""


@dataclass(frozen=True, slots=True)
class DeviceProbe:
    """One thing to measure: `amount` is the operations, or the bytes moved, of one launch. `access` is "" for products
    of `what`; `nbytes` the size of one array.
    """

    what: str
    access: str
    amount: float
    nbytes: int = 0


class ProbeRunner(Protocol):
    """What runs probes: torch on a device, or a fake."""

    def prepare(self, probe: DeviceProbe) -> Callable[[int], float] | None:
        """What launches a probe so often and gives the seconds that took; None where the device cannot."""


def measured(index: int = 0) -> Ceilings:
    """The stored ceilings of torch's CUDA device number `index`, else measured now (ten seconds or so) and stored.

    Raises UnsupportedTargetError where there is no such device, or none that kernels are made for. Warns, and measures
    again next time, where the folder cannot be written (E_CACHE_IO).
    """
    described = detect_gpu(index)
    found = stored_ceilings(described)
    if found is not None:
        return found
    made = measure(described, TorchBench(index))
    try:
        store_ceilings(described, made)
    except OSError as error:
        warnings.warn(str(CacheIOError(f"the ceilings of this GPU could not be kept: {error}")), stacklevel=2)
    return made


def measure(described: Target, bench: ProbeRunner) -> Ceilings:
    """Measures a GPU, described by `described`; what it cannot do is left out."""
    prepared = {probe: bench.prepare(probe) for probe in probes(described)}
    able = {probe: run for probe, run in prepared.items() if run is not None}
    counts = {probe: _repetitions(run) for probe, run in able.items()}
    rates: dict[DeviceProbe, list[float]] = {probe: [] for probe in able}
    for _ in range(ROUNDS):
        for probe, run in able.items():
            rates[probe].append(probe.amount * counts[probe] / run(counts[probe]))
    cores = described.cores
    medians = {probe: statistics.median(found) for probe, found in rates.items()}
    products = [ComputeCeiling(probe.what, cores, rate) for probe, rate in medians.items() if not probe.access]
    # Both 8-bit floats are multiplied by the same instruction, at the same rate.
    products += [ComputeCeiling("fp8_e5m2", cores, row.flop_per_s) for row in products if row.dtype == "fp8_e4m3"]
    return Ceilings(
        arch=described.arch,
        name=described.name,
        source=f"measured with torch {torch.__version__}, driver {driver_version() or 'of unknown version'}",
        compute=tuple(products),
        memory=tuple(
            MemoryCeiling(probe.what, cores, rate, probe.access) for probe, rate in medians.items() if probe.access
        ),
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def probes(described: Target) -> list[DeviceProbe]:
    """What is measured on a GPU: products, then copies, reads and writes of its memory, then of L2.

    Arrays of L2 are an eighth of it, so that source and destination of a copy, and what else streams by, fit together.
    """
    found = [DeviceProbe(dtype, "", 2.0 * EXTENT.get(dtype, _OTHER_EXTENT) ** 3) for dtype in _DTYPES]
    level, memory = described.level("L2"), described.level("HBM")
    l2 = level.size_bytes * described.cores // max(level.shared_by, 1) if level is not None else 0
    least, most = _MEMORY_BYTES
    array = min(max(8 * l2, least), most, (memory.size_bytes if memory is not None else most) // 8) // 1024 * 1024
    found += [DeviceProbe("HBM", access, (2.0 if access == "copy" else 1.0) * array, array) for access in _ACCESSES]
    near = l2 // 8 // 1024 * 1024
    if near:
        found.append(DeviceProbe("L2", "read", float(_AGAIN * near), near))
    return found


def _repetitions(run: Callable[[int], float]) -> int:
    """How many launches take `SAMPLE_S`; asking also warms the probe up."""
    run(1)
    return max(1, min(round(SAMPLE_S / max(run(3) / 3, 1e-7)), 10_000))


class TorchBench:
    """Probes as torch operations on a CUDA (or ROCm) device."""

    def __init__(self, index: int) -> None:
        self.device = torch.device("cuda", index)

    def prepare(self, probe: DeviceProbe) -> Callable[[int], float] | None:
        """What runs a probe; None where this torch or device has no such product, or not the memory for it."""
        try:
            launch = self._memory(probe) if probe.access else self._product(probe.what)
            launch()
            torch.cuda.synchronize(self.device)
        except (RuntimeError, ValueError):  # torch raises these for dtypes, devices and sizes that it cannot do
            return None
        return lambda count: self._seconds(launch, count)

    def _seconds(self, launch: Callable[[], object], count: int) -> float:
        with torch.cuda.device(self.device):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            for _ in range(count):
                launch()
            end.record()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

    def _memory(self, probe: DeviceProbe) -> Callable[[], object]:
        source = torch.ones(probe.nbytes // 4, device=self.device)
        if probe.access == "copy":
            destination = torch.empty_like(source)
            return lambda: destination.copy_(source)
        if probe.access == "write":
            return lambda: source.fill_(2.0)
        # The same array again and again in one launch, where that is what stays in L2.
        read = source.expand(_AGAIN, -1) if probe.what == "L2" else source
        return read.sum

    def _product(self, dtype: str) -> Callable[[], object]:
        n = EXTENT.get(dtype, _OTHER_EXTENT)
        if dtype == "int8":
            a8 = torch.randint(-8, 8, (n, n), dtype=torch.int8, device=self.device)
            return lambda: torch._int_mm(a8, a8.t())
        # Normal values: zeros would draw less power, and so raise the clock.
        a = torch.randn(n, n, device=self.device)
        if dtype == "fp8_e4m3":
            narrow, one = a.to(torch.float8_e4m3fn), torch.ones((), device=self.device)
            return lambda: torch._scaled_mm(narrow, narrow.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
        if dtype in ("fp32", "tf32"):
            return lambda: _mm_fp32(a, dtype == "tf32")
        cast = a.to({"fp64": torch.float64, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype])
        return lambda: torch.mm(cast, cast)


def _mm_fp32(a: torch.Tensor, tf32: bool) -> torch.Tensor:
    """A product of fp32, with tf32 permitted or not whatever the process has set."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    try:
        return torch.mm(a, a)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
