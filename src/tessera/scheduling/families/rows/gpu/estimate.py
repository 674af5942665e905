"""What a map or a reduction under a schedule costs on a GPU, and why."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tessera.scheduling.families.rows.gpu.cost import RowsWork, rows_work
from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Binding, Resource
from tessera.scheduling.model.gpu_constants import GpuConstants
from tessera.scheduling.model.gpu_estimate import GPU_BINDINGS, GpuEstimate, block_line, us
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEstimate(GpuEstimate):
    """An estimate of a map or reduction with all that it is made of."""

    problem: GpuRowsProblem
    work: RowsWork

    @property
    def resource(self) -> Resource:
        """What the kernel waits for most, in words."""
        return self.waits_for("multiply-add units", self.work.blocks_per_multiprocessor)

    def lines(self) -> list[str]:
        """The terms, a line each."""
        work, rates = self.work, self.rates
        reached = work.hbm_bytes / self.seconds / 1e12
        return [
            f"{self.seconds * 1e6:.1f} us, {reached:.4g} TB/s of compulsory traffic, bound by {self.binding}",
            block_line(work.resources, work.held),
            f"waves          {work.blocks} blocks on {rates.multiprocessors} multiprocessors: at most "
            f"{work.blocks_per_multiprocessor} each, {work.wave_fill:.0%} of them full; {work.steps} tiles a block",
            f"in flight      {work.in_flight} bytes a multiprocessor; {rates.bytes_in_flight} keep memory busy",
            f"loads          {work.vector_bytes} bytes a thread",
            f"compute        {us(work.compute_s)}",
            f"latency        {us(work.wait_s)}",
            *self.traffic_lines(),
        ]


def estimate_rows(
    problem: GpuRowsProblem, schedule: Schedule, rates: GpuMachine, taken: BlockResources | None = None
) -> RowsEstimate:
    """What a legal schedule costs; with `taken` as the compiler reported it of a block, else as predicted."""
    work = rows_work(problem, schedule, rates, taken)
    total, binding, terms = _seconds(work, rates.constants)
    named, source = MappingProxyType(terms), rates.sources["compute"]
    return RowsEstimate(total, binding, named, source, problem=problem, schedule=schedule, work=work, rates=rates)


def _seconds(work: RowsWork, known: GpuConstants) -> tuple[float, Binding, dict[str, float]]:
    terms = {
        "compute": work.compute_s,
        "shared memory": 0.0,
        "latency": work.wait_s,
        "L2": work.l2_s,
        "HBM": work.hbm_s,
        "launch": known.launch_s,
    }
    slowest = max(terms.values())
    others = sum(terms.values()) - known.launch_s - slowest
    total = slowest + known.overlap_loss * others + known.launch_s
    return total, max(GPU_BINDINGS, key=terms.__getitem__), terms
