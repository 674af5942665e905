"""What the cost model of GPUs says of a kernel: seconds, what holds it up, and every term with its numbers.

Time is that of the busiest multiprocessor, or of the slowest shared resource (L2, memory), plus a share of the others
(they overlap, but not perfectly), plus the launch.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Final

from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.estimate import RESOURCES, Binding, Estimate, Resource
from tessera.scheduling.model.gpu_machine import GpuMachine
from tessera.scheduling.model.gpu_resources import BlockResources
from tessera.target.occupancy import Occupancy

GPU_BINDINGS: Final[tuple[Binding, ...]] = ("compute", "shared memory", "latency", "L2", "HBM", "launch")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEstimate(Estimate):
    """An estimate with all that it is made of: the problem, and the work that its family counted."""

    problem: Any
    schedule: Schedule
    work: Any
    rates: GpuMachine

    def explain(self) -> str:
        """Every term with its numbers, so that a person can check them: a line each."""
        return "\n".join([*self.lines(), *self.rate_lines()])

    @abstractmethod
    def lines(self) -> list[str]:
        """The terms that the family counts, in its words."""

    def waits_for(self, units: Resource, wanted: int) -> Resource:
        """What the kernel waits for most, in words. Computing by its units, or by registers that spill; waiting by
        occupancy, where more blocks are wanted on a multiprocessor than it holds.
        """
        if self.binding == "compute":
            return "spills" if self.work.resources.spill_bytes else units
        if self.binding == "latency" and self.work.held.blocks < wanted:
            return "occupancy"
        return RESOURCES[self.binding]

    def traffic_lines(self) -> list[str]:
        """Time and traffic of L2 and of memory."""
        work, rates = self.work, self.rates
        return [
            f"L2             {us(work.l2_s)}: {work.l2_bytes / 1e6:.4g} MB at {rates.l2_byte_per_s / 1e12:.4g} TB/s",
            f"HBM            {us(work.hbm_s)}: {work.hbm_bytes / 1e6:.4g} MB at {rates.hbm_byte_per_s / 1e12:.4g} TB/s",
        ]

    def rate_lines(self) -> list[str]:
        """The launch, and where the rates come from."""
        named = (f"{name} rate:".ljust(15) + source for name, source in self.rates.sources.items())
        return [f"launch         {us(self.terms['launch'])}", *named]


def block_line(taken: BlockResources, held: Occupancy) -> str:
    """What one block takes, and how many of them a multiprocessor holds."""
    return (
        f"block          {taken.registers} registers a thread, {taken.shared_bytes} bytes of shared memory "
        f"({taken.source}): {held.blocks} at a time on a multiprocessor, bound by {held.binds}"
    )


def us(seconds: float) -> str:
    """Microseconds."""
    return f"{seconds * 1e6:.1f} us"
