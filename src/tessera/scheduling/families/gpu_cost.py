"""The cost model of GPUs: a roofline with waves, occupancy, stages and L2 that says how long a schedule takes, and why.

The interface is that of `cost.RooflineModel`. Time is that of the busiest multiprocessor, or of the slowest shared
resource (L2, memory), plus a share of the others (they overlap, but not perfectly), plus the launch. It is built to
rank schedules: the tests hold the ranks that are published, and what must be true whatever the figures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias, overload

from tessera.scheduling.families.product.gpu.cost import ContractionWork, contraction_work
from tessera.scheduling.families.product.gpu.problem import GpuContractionProblem
from tessera.scheduling.families.rows.gpu.cost import RowsWork, rows_work
from tessera.scheduling.families.rows.gpu.problem import GpuRowsProblem
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.estimate import RESOURCES, Binding, Estimate, Resource
from tessera.scheduling.model.gpu_machine import GpuMachine, gpu_machine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target import Ceilings, Target
from tessera.target.occupancy import Occupancy

GPU_BINDINGS: Final[tuple[Binding, ...]] = ("compute", "shared memory", "latency", "L2", "HBM", "launch")

OVERLAP_LOSS: Final = 0.03
"""The part of every other resource's time that is not hidden behind the slowest's; assumed."""
LAUNCH_S: Final = 2e-6
"""From one kernel's end to the next one's first block, within a captured graph."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionEstimate(Estimate):
    """An estimate of a product with all that it is made of."""

    problem: GpuContractionProblem
    schedule: Schedule
    work: ContractionWork
    rates: GpuMachine

    @property
    def resource(self) -> Resource:
        """What the kernel waits for most, in words."""
        units: Resource = "multiply-add units" if self.work.unit == "fma" else "matrix units"
        return _resource(self, units, self.work.tiles_per_multiprocessor)

    def explain(self) -> str:
        """Every term with its numbers, so that a person can check them: a line each."""
        return "\n".join([*_contraction_lines(self), *_rate_lines(self)])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsEstimate(Estimate):
    """An estimate of a map or reduction with all that it is made of."""

    problem: GpuRowsProblem
    schedule: Schedule
    work: RowsWork
    rates: GpuMachine

    @property
    def resource(self) -> Resource:
        """What the kernel waits for most, in words."""
        return _resource(self, "multiply-add units", self.work.blocks_per_multiprocessor)

    def explain(self) -> str:
        """Every term with its numbers, so that a person can check them: a line each."""
        return "\n".join([*_rows_lines(self), *_rate_lines(self)])


GpuEstimate: TypeAlias = ContractionEstimate | RowsEstimate


class GpuRooflineModel:
    """Estimates for one GPU. `ceilings`: measured ones, which replace published figures; None: published ones."""

    def __init__(self, ceilings: Ceilings | None, target: Target) -> None:
        self.measured, self.target = ceilings, target
        self.machine = gpu_machine(target, ceilings)

    @property
    def ceilings(self) -> Ceilings | None:
        """What the rates come from; `choice.modelled_choice` trusts a model that has any."""
        return self.measured or self.target.ceilings

    @overload
    def estimate(
        self,
        problem: GpuContractionProblem,
        schedule: Mapping[str, KnobValue],
        resources: BlockResources | None = None,
    ) -> ContractionEstimate: ...

    @overload
    def estimate(
        self, problem: GpuRowsProblem, schedule: Mapping[str, KnobValue], resources: BlockResources | None = None
    ) -> RowsEstimate: ...

    def estimate(
        self,
        problem: GpuContractionProblem | GpuRowsProblem,
        schedule: Mapping[str, KnobValue],
        resources: BlockResources | None = None,
    ) -> GpuEstimate:
        """What a legal schedule of the problem costs; with `resources` as the compiler reported them, else predicted.

        KeyError for a schedule that lacks one of the knobs tile, warps and pipeline_depth (rows: whole_row).
        """
        chosen = schedule if isinstance(schedule, Schedule) else Schedule(schedule)
        source = self.machine.sources["compute"]
        if isinstance(problem, GpuContractionProblem):
            work = contraction_work(problem, chosen, self.machine, resources)
            total, binding, terms = _contraction_seconds(work)
            return ContractionEstimate(
                total,
                binding,
                MappingProxyType(terms),
                source,
                problem=problem,
                schedule=chosen,
                work=work,
                rates=self.machine,
            )
        rows = rows_work(problem, chosen, self.machine, resources)
        total, binding, terms = _rows_seconds(rows)
        return RowsEstimate(
            total,
            binding,
            MappingProxyType(terms),
            source,
            problem=problem,
            schedule=chosen,
            work=rows,
            rates=self.machine,
        )


def _resource(found: GpuEstimate, units: Resource, wanted: int) -> Resource:
    """Computing by its units, or by registers that spill; waiting by occupancy, where more blocks are wanted on a
    multiprocessor than it holds.
    """
    if found.binding == "compute":
        return "spills" if found.work.resources.spill_bytes else units
    if found.binding == "latency" and found.work.held.blocks < wanted:
        return "occupancy"
    return RESOURCES[found.binding]


def _contraction_seconds(work: ContractionWork) -> tuple[float, Binding, dict[str, float]]:
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
    return total, max(GPU_BINDINGS, key=terms.__getitem__), terms


def _rows_seconds(work: RowsWork) -> tuple[float, Binding, dict[str, float]]:
    terms = {
        "compute": work.compute_s,
        "shared memory": 0.0,
        "latency": work.wait_s,
        "L2": work.l2_s,
        "HBM": work.hbm_s,
        "launch": LAUNCH_S,
    }
    slowest = max(terms.values())
    total = slowest + OVERLAP_LOSS * (sum(terms.values()) - LAUNCH_S - slowest) + LAUNCH_S
    return total, max(GPU_BINDINGS, key=terms.__getitem__), terms


def _contraction_lines(found: ContractionEstimate) -> list[str]:
    problem, work, rates, step = found.problem, found.work, found.rates, found.work.step
    flops = 2.0 * problem.m * problem.n * problem.k * max(problem.batch, 1)
    split = f", K split {work.split_k} ways" if work.split_k > 1 else ""
    return [
        f"{found.seconds * 1e6:.1f} us, {flops / found.seconds / 1e12:.4g} TFLOP/s, bound by {found.binding}",
        _block_line(work.resources, work.held),
        f"waves          {work.tiles} blocks{split} on {rates.multiprocessors} multiprocessors: at most "
        f"{work.tiles_per_multiprocessor} each, {work.wave_fill:.0%} of them full",
        f"step           {work.steps} a block: {_ns(step.mma_s)} of {work.unit}, {_ns(step.shared_s)} of "
        f"shared memory traffic, {_ns(step.wait_s)} until loads arrive: {_ns(step.seconds)} for {step.at_once}",
        f"in flight      {step.in_flight} bytes a multiprocessor",
        f"compute        {_us(work.mma_s)} at {work.flop_per_s / 1e12:.4g} TFLOP/s of {work.unit}",
        f"shared memory  {_us(work.shared_s)} at {rates.shared_byte_per_s / 1e9:.4g} GB/s a multiprocessor",
        f"latency        {_us(work.wait_s)}, of it {_us(work.block_s)} filling pipelines and writing results",
        *_traffic_lines(work, rates),
        *([f"adding up      {_us(work.sum_s)}: the parts of K, in a kernel of its own"] if work.split_k > 1 else []),
    ]


def _rows_lines(found: RowsEstimate) -> list[str]:
    work, rates = found.work, found.rates
    reached = work.hbm_bytes / found.seconds / 1e12
    return [
        f"{found.seconds * 1e6:.1f} us, {reached:.4g} TB/s of compulsory traffic, bound by {found.binding}",
        _block_line(work.resources, work.held),
        f"waves          {work.blocks} blocks on {rates.multiprocessors} multiprocessors: at most "
        f"{work.blocks_per_multiprocessor} each, {work.wave_fill:.0%} of them full; {work.steps} tiles a block",
        f"in flight      {work.in_flight} bytes a multiprocessor; {rates.bytes_in_flight} keep memory busy",
        f"loads          {work.vector_bytes} bytes a thread",
        f"compute        {_us(work.compute_s)}",
        f"latency        {_us(work.wait_s)}",
        *_traffic_lines(work, rates),
    ]


def _block_line(taken: BlockResources, held: Occupancy) -> str:
    return (
        f"block          {taken.registers} registers a thread, {taken.shared_bytes} bytes of shared memory "
        f"({taken.source}): {held.blocks} at a time on a multiprocessor, bound by {held.binds}"
    )


def _traffic_lines(work: ContractionWork | RowsWork, rates: GpuMachine) -> list[str]:
    return [
        f"L2             {_us(work.l2_s)}: {work.l2_bytes / 1e6:.4g} MB at {rates.l2_byte_per_s / 1e12:.4g} TB/s",
        f"HBM            {_us(work.hbm_s)}: {work.hbm_bytes / 1e6:.4g} MB at {rates.hbm_byte_per_s / 1e12:.4g} TB/s",
    ]


def _rate_lines(found: GpuEstimate) -> list[str]:
    named = (f"{name} rate:".ljust(15) + source for name, source in found.rates.sources.items())
    return [f"launch         {_us(found.terms['launch'])}", *named]


def _us(seconds: float) -> str:
    return f"{seconds * 1e6:.1f} us"


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:.0f} ns"
