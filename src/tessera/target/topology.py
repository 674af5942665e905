"""How devices reach one another: levels of links from the nearest outwards, and what collectives take on each.

A constant says where it stands. "fitted" constants reproduce published measurements at the sizes that were measured and
at none below; "assumed" ones were measured by nobody, and predictions that rest on them say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from tessera.errors import ArgumentError
from tessera.target.gpu import gpu

Algorithm: TypeAlias = Literal["ring", "tree", "one-shot", "in-switch"]
"""Within one level; a collective over several levels is "hierarchical", made of these."""

Basis: TypeAlias = Literal["fitted", "measured", "data sheet", "assumed"]


@dataclass(frozen=True, slots=True)
class Path:
    """One algorithm on one level: seconds = `start_s` + steps x `hop_s` + bytes on the wire / `byte_per_s`.

    `byte_per_s` is what one device sends, one way; `largest` is the largest tensor, in bytes, that the algorithm is
    used for. `source` says where the constants stand, `basis` what they are worth.
    """

    algorithm: Algorithm
    start_s: float
    hop_s: float
    byte_per_s: float
    basis: Basis
    source: str
    largest: float = math.inf


@dataclass(frozen=True, slots=True)
class LinkLevel:
    """`size` units of the level below (devices, for the first) that one kind of link joins."""

    name: str
    size: int
    paths: tuple[Path, ...]

    def path(self, algorithm: Algorithm) -> Path | None:
        """The constants of an algorithm, None where the level has it not."""
        return next((path for path in self.paths if path.algorithm == algorithm), None)


@dataclass(frozen=True, slots=True)
class Topology:
    """A system of equal devices. `device` names one of `target.gpu.GPUS`; None is this machine's CPU.

    Collectives over several levels move chunks on all of them at once: the level that takes longest hides the others
    but for a share `exposed` of their transfers.
    `validated_from` is the smallest message, in bytes, for which collectives over all devices were compared with a
    measurement; None where they never were.
    """

    name: str
    device: str | None
    levels: tuple[LinkLevel, ...]
    exposed: float = 1.0
    validated_from: int | None = None

    @property
    def devices(self) -> int:
        """All devices."""
        found = 1
        for level in self.levels:
            found *= level.size
        return found


_MEGATRON = "bandwidth and latency of the calculon model's a100_80g system, github.com/calculon-ai/calculon"
_SHEET = "NVLink one way, data sheet of the device"
_ASSUMED = "assumed: no published measurement was found"
_COREWEAVE = "github.com/coreweave/nccl-tests README, fp32 sum, out of place"
_SMALL, _MEDIUM = 2**20, 2**28
"""Bytes up to which all ranks read all, and up to which trees are used: at the sizes above, fitted rings hold."""
_LOOPBACK = "measured on 2 cores of a Sapphire Rapids VM, 2 ranks, torch 2.13 Gloo and shared memory, 23 November 2026"


def _nvlink(device: str) -> float:
    """Bytes/s one way of a device's links to its peers."""
    sheet = gpu(device).datasheet
    link = sheet.interconnect.to("peers") if sheet else None
    assert link is not None  # every device named here has one
    return link.one_way_byte_per_s


def _node(device: str, share: float, basis: Basis, source: str, size: int = 8) -> LinkLevel:
    """A node whose NVLink gives `share` of its data sheet."""
    rate = share * _nvlink(device)
    return LinkLevel(
        "NVLink",
        size,
        (
            Path("ring", 0.0, 2e-6, rate, basis, source),
            Path("tree", 0.0, 3e-6, 0.5 * rate, "assumed", _ASSUMED, _MEDIUM),
            Path("one-shot", 4e-6, 0.0, rate, "assumed", _ASSUMED, _SMALL),
        ),
    )


_EXPOSED = 0.36616
"""Fitted: what two racks of 72 lose to one at 16 GiB, with InfiniBand at its data sheet's rate."""


def _rack() -> LinkLevel:
    """The 72 GPUs of a GB200 NVL72."""
    source = f"{_COREWEAVE}, single rack: through 512 MiB and 8 GiB; the sizes between are held out"
    return LinkLevel(
        "NVLink",
        72,
        (
            Path("ring", 0.0, 4.0414e-6, 858.87e9, "fitted", source),
            Path("tree", 0.0, 6e-6, 0.4 * _nvlink("GB200"), "assumed", _ASSUMED, _MEDIUM),
            Path("one-shot", 6e-6, 0.0, 0.9 * _nvlink("GB200"), "assumed", _ASSUMED, _SMALL),
        ),
    )


def _racks(size: int, hop_s: float, byte_per_s: float, basis: Basis, rate_source: str) -> Topology:
    """Racks of GB200 over InfiniBand."""
    source = f"latency: {_COREWEAVE}, {size} racks, through 512 MiB and 16 GiB; bytes/s: {rate_source}"
    ring = Path("ring", 0.0, hop_s, byte_per_s, basis, source)
    name = "gb200-nvl72x2" if size == 2 else f"x{size}"
    return Topology(name, "GB200", (_rack(), LinkLevel("InfiniBand", size, (ring,))), _EXPOSED, 2**29)


_DGX_A100 = Topology(
    "dgx-a100",
    "A100-SXM4-80GB",
    (
        _node("A100", 1.0, "data sheet", _SHEET),
        LinkLevel(
            "InfiniBand", 560, (Path("ring", 0.0, 5e-6, 25e9, "data sheet", f"HDR, 200 Gbit/s a GPU; {_MEGATRON}"),)
        ),
    ),
)
_H100_SOURCE = f"{_COREWEAVE}, 64 H100 with SHARP: through 512 MiB and 8 GiB; the sizes between are held out"
_DGX_H100 = Topology(
    "dgx-h100",
    "H100-SXM5-80GB",
    (
        _node("H100", 0.79925, "fitted", _H100_SOURCE),
        LinkLevel(
            "InfiniBand",
            128,
            (
                Path("ring", 0.0, 5e-6, 50e9, "data sheet", "NDR, 400 Gbit/s a GPU"),
                Path(
                    "in-switch",
                    2.2357e-4,
                    0.0,
                    50e9,
                    "fitted",
                    f"NDR, sums in the switches; {_H100_SOURCE}",
                ),
            ),
        ),
    ),
    exposed=0.08,
)
_LOOPBACK_LEVEL = LinkLevel(
    "memory of one host",
    64,
    (
        Path("one-shot", 2.7e-6, 0.0, 5.5e9, "measured", f"{_LOOPBACK}: shared memory, 4 KiB", 2**16),
        Path("ring", 1e-5, 1e-6, 5.5e9, "measured", f"{_LOOPBACK}: shared memory, 64 MiB in place"),
    ),
)

TOPOLOGIES: Final[Mapping[str, Topology]] = {
    topology.name: topology
    for topology in (
        Topology("loopback", None, (_LOOPBACK_LEVEL,)),
        _DGX_A100,
        _DGX_H100,
        Topology("gb200-nvl72", "GB200", (_rack(),), validated_from=2**29),
        _racks(2, 1.4775e-4, 50e9, "data sheet", "400 Gbit/s a GPU"),
        _racks(20, 1.0616e-4, 6.914e9, "fitted", "fitted to the same points, an eighth of 400 Gbit/s a GPU"),
    )
}
"""By name. "x20" are twenty racks of "gb200-nvl72"."""


def topology(name: str) -> Topology:
    """A topology by its name. Raises ArgumentError for an unknown one."""
    if name not in TOPOLOGIES:
        raise ArgumentError(f"{name!r} is no known topology", hints=[f"known are {', '.join(TOPOLOGIES)}"])
    return TOPOLOGIES[name]
