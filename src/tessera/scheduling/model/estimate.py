"""What a cost model says of schedules: seconds, what holds them up, and what each resource would take alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from tessera.scheduling.language.columns import Mask

Binding: TypeAlias = Literal[
    "compute", "L1", "L2", "L3", "DRAM", "HBM", "shared memory", "latency", "launch", "unknown"
]

Resource: TypeAlias = Literal[
    "multiply-add units", "instruction issue", "latency of multiply-adds", "edges of tiles", "load ports",
    "L2 bandwidth", "L3 bandwidth", "DRAM bandwidth", "packing", "matrix units", "shared memory bandwidth",
    "latency of loads", "occupancy", "spills", "HBM bandwidth", "launch", "unknown",
]  # fmt: skip
"""What a kernel waits for most, in words; docs/cost-model.md says of each what it means and what helps."""

LEVELS: Final = ("L1", "L2", "L3", "DRAM")
"""The memory levels of a CPU, each a term."""

PARTS: Final[Mapping[str, Resource]] = {
    "FMA": "multiply-add units",
    "issue": "instruction issue",
    "wait": "latency of multiply-adds",
    "edges": "edges of tiles",
    "spills": "spills",
}
"""Terms that are alternatives within "compute", and what they are of; the largest of them is what computing waits for.
"""

RESOURCES: Final[Mapping[str, Resource]] = {
    "compute": "multiply-add units",
    "L1": "load ports",
    "L2": "L2 bandwidth",
    "L3": "L3 bandwidth",
    "DRAM": "DRAM bandwidth",
    "HBM": "HBM bandwidth",
    "shared memory": "shared memory bandwidth",
    "latency": "latency of loads",
    "packing": "packing",
    "launch": "launch",
}
"""The resource of each binding where the estimate knows no better."""


class Bandwidth(NamedTuple):
    """What a memory level can deliver to all workers together, in byte/s; `source` says how it is known."""

    level: str
    byte_per_s: float
    source: str


Seconds: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of one call, what holds it up, and the seconds that each resource would need alone.

    `terms` are by resource: on CPUs "compute" (and `PARTS` of it, as far as the model tells them apart), the memory
    levels, "packing" and "launch"; on GPUs those of `gpu_cost.GPU_BINDINGS`.
    `source` is that of the ceilings: "measured", or where they were taken from.
    """

    seconds: float
    binding: Binding
    terms: Mapping[str, float]
    source: str = ""

    @property
    def resource(self) -> Resource:
        """What a kernel waits for most, in words: `binding` with the part of computing that takes longest."""
        if self.binding == "compute" and self.terms.get("packing", 0.0) > self.terms["compute"]:
            return "packing"
        parts = [part for part in PARTS if self.terms.get(part, 0.0) > 0.0]
        if self.binding == "compute" and parts:
            return PARTS[max(parts, key=lambda part: self.terms[part])]
        return RESOURCES.get(self.binding, "unknown")


class Estimates(Sequence[Estimate]):
    """Estimates of many schedules, in their order, as arrays: `seconds`, and `terms` by name.

    `charged` is what each binding is judged by, in the order in which ties are decided. An `Estimate` is made when it
    is asked for.
    """

    def __init__(
        self, seconds: Seconds, terms: Mapping[str, Seconds], charged: Mapping[Binding, Seconds], source: str = ""
    ) -> None:
        self.seconds, self.terms, self.source = seconds, terms, source
        self._charged = charged

    @classmethod
    def of(cls, estimates: Sequence[Estimate]) -> Estimates:
        """Estimates that were made one by one; a term that one of them lacks is 0 there."""
        names = dict.fromkeys(name for each in estimates for name in each.terms)
        bindings = dict.fromkeys(each.binding for each in estimates)
        terms = {name: np.array([each.terms.get(name, 0.0) for each in estimates]) for name in names}
        charged = {name: np.array([float(each.binding == name) for each in estimates]) for name in bindings}
        source = estimates[0].source if estimates else ""
        return cls(np.array([each.seconds for each in estimates]), terms, charged, source)

    def __len__(self) -> int:
        return len(self.seconds)

    @overload
    def __getitem__(self, index: int) -> Estimate: ...

    @overload
    def __getitem__(self, index: slice) -> list[Estimate]: ...

    def __getitem__(self, index: int | slice) -> Estimate | list[Estimate]:
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        binding: Binding = "unknown"
        if self._charged:
            binding = max(self._charged, key=lambda name: self._charged[name][index])
        terms = {name: float(column[index]) for name, column in self.terms.items()}
        return Estimate(float(self.seconds[index]), binding, terms, self.source)

    def taken_apart(self, which: Mask, between_s: float, launches: int) -> Estimates:
        """These estimates, but for `which` schedules those of kernels that run one after another: with `between_s`
        seconds more for what they write and read again, and so many more launches, and without registers that spill
        only because everything is computed at once: that saves the time by which computing takes longer than memory.
        """
        nothing = np.zeros(len(self))
        spills = np.where(which, self.terms.get("spills", 0.0), 0.0)
        memory = np.max([self.terms.get(level, nothing) for level in LEVELS], axis=0)
        saved = np.clip(self.terms.get("compute", nothing) - memory, 0.0, spills)
        more = {"DRAM": np.where(which, between_s, 0.0), "compute": -spills, "spills": -spills}
        more["launch"] = np.where(which, launches, 0) * self.terms.get("launch", np.zeros(len(self)))
        terms = {name: column + more[name] if name in more else column for name, column in self.terms.items()}
        charged = {name: column + more[name] if name in more else column for name, column in self._charged.items()}
        seconds = self.seconds + more["DRAM"] + more["launch"] - saved
        return Estimates(seconds, terms, charged, self.source)
