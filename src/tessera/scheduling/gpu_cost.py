"""The cost model of GPUs: a roofline with waves, occupancy, stages and L2 that says how long a schedule takes, and why.

The interface is that of `cost.RooflineModel`. Time is that of the busiest multiprocessor, or of the slowest shared
resource (L2, memory), plus a share of the others (they overlap, but not perfectly), plus the launch. It is built to
rank schedules: the tests hold the ranks that are published, and what must be true whatever the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from tessera.scheduling.cost import Binding, Estimate
from tessera.scheduling.gpu_contraction_cost import BlockResources, ContractionWork, contraction_work
from tessera.scheduling.gpu_machine import GpuMachine, gpu_machine
from tessera.scheduling.gpu_space import GpuContractionProblem
from tessera.scheduling.schedule import KnobValue, Schedule
from tessera.target import Ceilings, Target

GPU_BINDINGS: Final[tuple[Binding, ...]] = ("compute", "shared memory", "latency", "L2", "HBM", "launch")

OVERLAP_LOSS: Final = 0.03
"""The part of every other resource's time that is not hidden behind the slowest's; assumed."""
LAUNCH_S: Final = 2e-6
"""From one kernel's end to the next one's first block, within a captured graph."""


@dataclass(frozen=True, slots=True)
class GpuEstimate(Estimate):
    """An estimate with all that it is made of, which `explain` prints."""

    problem: GpuContractionProblem
    schedule: Schedule
    work: ContractionWork
    rates: GpuMachine

    def explain(self) -> str:
        """Every term with its numbers, so that a person can check them: a line each."""
        return "\n".join(_lines(self))


class GpuRooflineModel:
    """Estimates for one GPU. `ceilings`: measured ones, which replace published figures; None: published ones."""

    def __init__(self, ceilings: Ceilings | None, target: Target) -> None:
        self.measured, self.target = ceilings, target
        self.machine = gpu_machine(target, ceilings)

    @property
    def ceilings(self) -> Ceilings | None:
        """What the rates come from; `choice.modelled_choice` trusts a model that has any."""
        return self.measured or self.target.ceilings

    def estimate(
        self,
        problem: GpuContractionProblem,
        schedule: Mapping[str, KnobValue],
        resources: BlockResources | None = None,
    ) -> GpuEstimate:
        """What a legal schedule of the problem costs; with `resources` as the compiler reported them, else predicted.

        KeyError for a schedule that lacks one of the knobs tile, warps and pipeline_depth.
        """
        chosen = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        work = contraction_work(problem, chosen, self.machine, resources)
        launch = LAUNCH_S * (2 if work.split_k > 1 else 1)
        terms = {
            "compute": work.mma_s,
            "shared memory": work.shared_s,
            "latency": work.wait_s,
            "L2": work.l2_s,
            "HBM": work.hbm_s,
            "launch": launch,
        }
        shared = (work.busy_s, work.l2_s, work.hbm_s)
        slowest = max(shared)
        total = slowest + OVERLAP_LOSS * (sum(shared) - slowest) + work.sum_s + launch
        binding = max(GPU_BINDINGS, key=terms.__getitem__)
        source = self.machine.sources["compute"]
        return GpuEstimate(total, binding, MappingProxyType(terms), source, problem, chosen, work, self.machine)


def _lines(found: GpuEstimate) -> list[str]:
    work, rates, problem, step = found.work, found.rates, found.problem, found.work.step
    flops = 2.0 * problem.m * problem.n * problem.k * max(problem.batch, 1)
    taken, held = work.resources, work.held
    split = f", K split {work.split_k} ways" if work.split_k > 1 else ""
    return [
        f"{found.seconds * 1e6:.1f} us, {flops / found.seconds / 1e12:.4g} TFLOP/s, bound by {found.binding}",
        f"block          {taken.registers} registers a thread, {taken.shared_bytes} bytes of shared memory "
        f"({taken.source}): {held.blocks} at a time on a multiprocessor, bound by {held.binds}",
        f"waves          {work.tiles} blocks{split} on {rates.multiprocessors} multiprocessors: at most "
        f"{work.tiles_per_multiprocessor} each, {work.wave_fill:.0%} of them full",
        f"step           {work.steps} a block: {_ns(step.mma_s)} of {work.unit}, {_ns(step.shared_s)} of "
        f"shared memory traffic, {_ns(step.wait_s)} until loads in flight arrive: {_ns(step.seconds)} for {step.at_once}",
        f"in flight      {step.in_flight} bytes a multiprocessor",
        f"compute        {_us(work.mma_s)} at {work.flop_per_s / 1e12:.4g} TFLOP/s of {work.unit}",
        f"shared memory  {_us(work.shared_s)} at {rates.shared_byte_per_s / 1e9:.4g} GB/s a multiprocessor",
        f"latency        {_us(work.wait_s)}, of it {_us(work.block_s)} filling pipelines and writing results",
        f"L2             {_us(work.l2_s)}: {work.l2_bytes / 1e6:.4g} MB at {rates.l2_byte_per_s / 1e12:.4g} TB/s",
        f"HBM            {_us(work.hbm_s)}: {work.hbm_bytes / 1e6:.4g} MB at {rates.hbm_byte_per_s / 1e12:.4g} TB/s",
        *([f"adding up      {_us(work.sum_s)}: the parts of K, in a kernel of its own"] if work.split_k > 1 else []),
        f"launch         {_us(found.terms['launch'])}",
        *(f"{name} rate:".ljust(15) + source for name, source in rates.sources.items()),
    ]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:.0f} ns"
