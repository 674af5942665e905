"""What a matrix product under a schedule costs on a GPU, and why."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

from tessera.scheduling.families.product.gpu.cost import ContractionWork, contraction_work
from tessera.scheduling.families.product.gpu.problem import GpuContractionProblem
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import Binding, Resource
from tessera.scheduling.model.gpu_constants import GpuConstants
from tessera.scheduling.model.gpu_estimate import GPU_BINDINGS, GpuEstimate, block_line, us
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources


@dataclass(frozen=True, slots=True, kw_only=True)
class ContractionEstimate(GpuEstimate):
    """An estimate of a product with all that it is made of."""

    problem: GpuContractionProblem
    work: ContractionWork

    @property
    def resource(self) -> Resource:
        """What the kernel waits for most, in words."""
        units: Resource = "multiply-add units" if self.work.unit == "fma" else "matrix units"
        return self.waits_for(units, self.work.tiles_per_multiprocessor)

    def lines(self) -> list[str]:
        """The terms, a line each."""
        problem, work, rates, step = self.problem, self.work, self.rates, self.work.step
        flops = 2.0 * problem.m * problem.n * problem.k * max(problem.batch, 1)
        split = f", K split {work.split_k} ways" if work.split_k > 1 else ""
        return [
            f"{self.seconds * 1e6:.1f} us, {flops / self.seconds / 1e12:.4g} TFLOP/s, bound by {self.binding}",
            block_line(work.resources, work.held),
            f"waves          {work.tiles} blocks{split} on {rates.multiprocessors} multiprocessors: at most "
            f"{work.tiles_per_multiprocessor} each, {work.wave_fill:.0%} of them full",
            f"step           {work.steps} a block: {_ns(step.mma_s)} of {work.unit}, {_ns(step.shared_s)} of "
            f"shared memory traffic, {_ns(step.wait_s)} until loads arrive: {_ns(step.seconds)} for {step.at_once}",
            f"in flight      {step.in_flight} bytes a multiprocessor",
            f"compute        {us(work.mma_s)} at {work.flop_per_s / 1e12:.4g} TFLOP/s of {work.unit}",
            f"shared memory  {us(work.shared_s)} at {rates.shared_byte_per_s / 1e9:.4g} GB/s a multiprocessor",
            f"latency        {us(work.wait_s)}, of it {us(work.block_s)} filling pipelines and writing results",
            *self.traffic_lines(),
            *([f"adding up      {us(work.sum_s)}: the parts of K, in a kernel of its own"] if work.split_k > 1 else []),
        ]


def estimate_product(
    problem: GpuContractionProblem, schedule: Schedule, rates: GpuMachine, taken: BlockResources | None = None
) -> ContractionEstimate:
    """What a legal schedule costs; with `taken` as the compiler reported it of a block, else as predicted."""
    work = contraction_work(problem, schedule, rates, taken)
    total, binding, terms = _seconds(work, rates.constants)
    source = rates.sources["compute"]
    named = MappingProxyType(terms)
    return ContractionEstimate(
        total, binding, named, source, problem=problem, schedule=schedule, work=work, rates=rates
    )


def _seconds(work: ContractionWork, known: GpuConstants) -> tuple[float, Binding, dict[str, float]]:
    launch = known.launch_s * (2 if work.split_k > 1 else 1)
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
    total = slowest + known.overlap_loss * (sum(shared) - slowest) + work.sum_s + launch
    return total, max(GPU_BINDINGS, key=terms.__getitem__), terms


def _ns(seconds: float) -> str:
    return f"{seconds * 1e9:.0f} ns"
