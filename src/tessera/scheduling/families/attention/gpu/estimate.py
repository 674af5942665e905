"""What attention, or one walk of its gradient, under a schedule costs on a GPU, and why."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tessera.scheduling.families.attention.gpu.cost import Walk, WalkWork, walk_work
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Binding, Resource
from tessera.scheduling.model.gpu_constants import GpuConstants
from tessera.scheduling.model.gpu_estimate import GPU_BINDINGS, GpuEstimate, block_line, us
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources


@dataclass(frozen=True, slots=True, kw_only=True)
class WalkEstimate(GpuEstimate):
    """An estimate of a walk with all that it is made of."""

    work: WalkWork

    @property
    def resource(self) -> Resource:
        """What the kernel waits for most, in words."""
        units: Resource = "multiply-add units" if self.work.unit == "fma" else "matrix units"
        if self.work.score_s > self.work.mma_s:
            units = "instruction issue"
        return self.waits_for(units, self.work.programs_per_multiprocessor)

    def lines(self) -> list[str]:
        """The terms, a line each."""
        work, walk, rates = self.work, self.work.walk, self.rates
        joined = [f"joining        {us(work.join_s)}: the parts of the keys, in a kernel of its own"]
        return [
            f"{self.seconds * 1e6:.1f} us, {walk.flops / self.seconds / 1e12:.4g} TFLOP/s with padding, bound by "
            f"{self.binding} (predicted)",
            block_line(work.resources, work.held),
            f"waves          {walk.programs} programs of at most {walk.longest:.0f} steps on {rates.multiprocessors} "
            f"multiprocessors, {work.fill:.0%} of them full",
            f"in flight      {work.in_flight:.0f} bytes a multiprocessor",
            f"products       {us(work.mma_s)} at {work.flop_per_s / 1e12:.4g} TFLOP/s of {work.unit}, of each step "
            f"{len(walk.products)}",
            f"scores         {us(work.score_s)}: exponentials, {walk.operations:g} instructions a score beside them",
            f"shared memory  {us(work.shared_s)} at {rates.shared_byte_per_s / 1e9:.4g} GB/s a multiprocessor",
            f"latency        {us(work.wait_s)}{', pages are looked up first' if walk.looked_up else ''}",
            *self.traffic_lines(),
            *(joined if work.join_s else []),
        ]


def estimate_walk(
    problem: Any, walk: Walk, schedule: Schedule, rates: GpuMachine, taken: BlockResources | None
) -> WalkEstimate:
    """What a legal schedule costs; with `taken` as the compiler reported it of a block, else as predicted."""
    work = walk_work(walk, schedule, rates, taken)
    total, binding, terms = _seconds(work, rates.constants)
    named, source = MappingProxyType(terms), rates.sources["compute"]
    return WalkEstimate(total, binding, named, source, problem=problem, schedule=schedule, work=work, rates=rates)


def _seconds(work: WalkWork, known: GpuConstants) -> tuple[float, Binding, dict[str, float]]:
    terms = {
        "compute": work.compute_s,
        "shared memory": work.shared_s,
        "latency": work.wait_s,
        "L2": work.l2_s,
        "HBM": work.hbm_s,
        "launch": known.launch_s,
    }
    shared = (work.busy_s, work.l2_s, work.hbm_s)
    slowest = max(shared)
    total = slowest + known.overlap_loss * (sum(shared) - slowest) + work.join_s + known.launch_s
    return total, max(GPU_BINDINGS, key=terms.__getitem__), terms
