"""What is published of a GPU: peaks, clocks, bandwidths, power and links, every figure with where it stands.

A figure that nobody published is None, and its source says why. What is measured on a device stands in `Ceilings`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Peak:
    """Dense arithmetic (no structured sparsity) in one dtype; a fused multiply-add is two operations.

    `unit` is "matrix" (tensor cores, matrix cores) or "vector" (ordinary instructions). One multiprocessor does
    `per_clock` operations in a cycle of the unit's boost clock `clock_hz`; `published` is the data sheet's figure for
    the whole device, in operations/s.
    """

    dtype: str
    unit: Literal["matrix", "vector"]
    per_clock: int
    clock_hz: float
    published: float
    source: str

    def computed(self, multiprocessors: int) -> float:
        """Operations/s that clock and multiprocessors make: what `published` must agree with."""
        return multiprocessors * self.clock_hz * self.per_clock


@dataclass(frozen=True)
class MemoryFacts:
    """The bandwidth of one memory level, all instances together, in byte/s, and the sources of size and bandwidth."""

    level: str
    size_source: str
    byte_per_s: float | None
    source: str


@dataclass(frozen=True)
class Link:
    """One kind of link between a GPU and others, or its host.

    `count` links of `byte_per_s` each way each; `scope` says what they lead to. `total_byte_per_s` is the figure that
    data sheets print: all links, both ways together.
    """

    kind: Literal["NVLink", "NVLink-C2C", "PCIe", "Infinity Fabric"]
    generation: int
    count: int
    byte_per_s: float
    scope: Literal["peers", "host"]
    source: str

    @property
    def one_way_byte_per_s(self) -> float:
        """All links together in one direction."""
        return self.count * self.byte_per_s

    @property
    def total_byte_per_s(self) -> float:
        """All links together, both directions."""
        return 2 * self.one_way_byte_per_s


@dataclass(frozen=True)
class Interconnect:
    """How a GPU reaches its peers and its host; what plans over several GPUs count on."""

    links: tuple[Link, ...]

    def to(self, scope: Literal["peers", "host"]) -> Link | None:
        """The fastest link to peers or to the host, None where none is published."""
        found = [link for link in self.links if link.scope == scope]
        return max(found, key=lambda link: link.total_byte_per_s, default=None)


@dataclass(frozen=True)
class DataSheet:
    """The published facts of one GPU.

    `device_names` are what drivers call it (their beginning), `clock_hz` its highest clock, `power_w` the most that the
    board takes. `sources` names where the number of multiprocessors and the limits of blocks stand.
    """

    device_names: tuple[str, ...]
    peaks: tuple[Peak, ...]
    memory: tuple[MemoryFacts, ...]
    clock_hz: float
    clock_source: str
    power_w: float
    power_source: str
    interconnect: Interconnect
    sources: tuple[tuple[str, str], ...]

    def peak(self, dtype: str, unit: Literal["matrix", "vector"] | None = None) -> Peak | None:
        """The peak of a dtype on a unit (None: the faster one), None where it has none."""
        found = [peak for peak in self.peaks if peak.dtype == dtype and unit in (None, peak.unit)]
        return max(found, key=lambda peak: peak.published, default=None)

    def level(self, name: str) -> MemoryFacts | None:
        """The facts of a memory level ("shared", "L1", "L2", "Infinity Cache", "HBM")."""
        return next((facts for facts in self.memory if facts.level == name), None)
