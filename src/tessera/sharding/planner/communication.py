"""What collectives cost: for each level the cheapest algorithm, latency + bytes on the wire / bytes/s.

`cost` says of one collective how it runs and what binds it; `seconds` gives the same times for many at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from tessera.errors import ArgumentError
from tessera.target.topology import Algorithm, Basis, LinkLevel, Path, Topology

Collective: TypeAlias = Literal["all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "permute"]
Numbers: TypeAlias = NDArray[np.float64]
_Count: TypeAlias = Callable[[int], float]


def _all(n: int) -> float:
    return 1.0


def _share(n: int) -> float:
    return (n - 1) / n


def _others(n: int) -> float:
    return n - 1


def _depth(n: int) -> float:
    return (n - 1).bit_length()


WIRE: Final[Mapping[tuple[Collective, Algorithm], tuple[_Count, _Count]]] = {
    ("all_reduce", "ring"): (lambda n: 2 * _share(n), lambda n: 2 * _others(n)),
    ("all_reduce", "tree"): (lambda n: 2.0, lambda n: 2 * _depth(n)),
    ("all_reduce", "one-shot"): (_others, _all),
    ("all_reduce", "in-switch"): (lambda n: 1 + 1 / n, _all),
    ("reduce_scatter", "ring"): (_share, _others),
    ("reduce_scatter", "one-shot"): (_share, _all),
    ("reduce_scatter", "in-switch"): (_all, _all),
    ("all_gather", "ring"): (_share, _others),
    ("all_gather", "one-shot"): (_share, _all),
    ("all_gather", "in-switch"): (_share, _all),
    ("all_to_all", "ring"): (_share, _others),
    ("all_to_all", "one-shot"): (_share, _all),
    ("broadcast", "ring"): (_all, _others),
    ("broadcast", "tree"): (_all, _depth),
    ("broadcast", "one-shot"): (_others, _all),
    ("broadcast", "in-switch"): (_all, _all),
    ("permute", "ring"): (_all, _all),
    ("permute", "one-shot"): (_all, _all),
}
"""(bytes that a device sends by bytes of the tensor, steps one after the other) of a group of n > 1 on one level.

The tensor is the whole one: the result of an all_gather, the operand of a reduce_scatter, what one device sends in an
all_to_all, broadcast or permute. Rings: Patarasuk and Yuan 2009. Sums in switches (NVLS, SHARP): a device sends its
operand once, and its share of the result.
"""


@dataclass(frozen=True)
class LevelShare:
    """One level's share of a collective: "all_reduce" over two levels has a reduce_scatter and an all_gather inside."""

    level: str
    kind: Collective
    algorithm: Algorithm
    devices: int
    wire_bytes: float
    latency_s: float
    transfer_s: float
    basis: Basis
    source: str


@dataclass(frozen=True)
class CollectiveCost:
    """A predicted collective. `validated` says that messages of this size were compared with measurements."""

    kind: Collective
    nbytes: float
    parts: tuple[LevelShare, ...]
    exposed: float
    validated: bool

    @property
    def seconds(self) -> float:
        """Latencies add up; the level whose transfers take longest hides those of the others but for `exposed`."""
        latency = sum(part.latency_s for part in self.parts)
        by_level: dict[str, float] = {}
        for part in self.parts:
            by_level[part.level] = by_level.get(part.level, 0.0) + part.transfer_s
        longest = max(by_level.values(), default=0.0)
        return latency + longest + self.exposed * (sum(by_level.values()) - longest)

    @property
    def wire_bytes(self) -> float:
        """What one device sends on all levels."""
        return sum(part.wire_bytes for part in self.parts)

    @property
    def algorithm(self) -> str:
        """The algorithm of its level; "hierarchical" where there are several levels, "none" in a group of one."""
        if len({part.level for part in self.parts}) > 1:
            return "hierarchical"
        return self.parts[0].algorithm if self.parts else "none"

    @property
    def bound(self) -> str:
        """The resource that binds: a level's bandwidth or its latency."""
        shares: dict[str, float] = {}
        for part in self.parts:
            for what, seconds in (("latency", part.latency_s), ("bandwidth", part.transfer_s)):
                shares[f"{part.level} {what}"] = shares.get(f"{part.level} {what}", 0.0) + seconds
        return max(shares, key=lambda name: shares[name], default="nothing")

    def __str__(self) -> str:
        ways = ", ".join(f"{part.algorithm} over {part.devices} on {part.level}" for part in self.parts) or "one device"
        note = "" if self.validated else ", not validated"
        return f"{self.kind} of {self.nbytes:.4g} B: {1e6 * self.seconds:.4g} us predicted ({ways}; {self.bound}{note})"


def spread(topology: Topology, size: int, stride: int = 1) -> tuple[int, ...]:
    """How many members a group has on each level, from the nearest: of `size` devices that are `stride` apart.

    A group of 16 with stride 1 in nodes of 8 is (8, 2). What a level does not divide evenly is rounded up.
    """
    counts = []
    for level in topology.levels[:-1]:
        here = max(1, min(size, level.size // stride))
        counts.append(here)
        size = -(-size // here)
        stride = max(1, stride * here // level.size)
    return (*counts, size)


class LevelExchange(NamedTuple):
    """A collective within one level: `lines` are latency, seconds a byte of the whole tensor, and the largest tensor of
    its algorithms.
    """

    level: LinkLevel
    kind: Collective
    devices: int
    share: float
    lines: tuple[tuple[float, float, float, Path], ...]


@lru_cache(maxsize=65_536)
def steps(topology: Topology, kind: Collective, size: int, stride: int = 1) -> tuple[LevelExchange, ...]:
    """A collective as steps within levels.

    An all_reduce over several levels is a reduce_scatter on each inner one, an all_reduce of what is left on the
    outermost and all_gathers back; the others go through one level after the other.
    """
    levels = [(level, n) for level, n in zip(topology.levels, spread(topology, size, stride), strict=True) if n > 1]
    if kind == "permute":
        levels = levels[-1:]  # its slowest neighbour decides
    found: list[tuple[LinkLevel, Collective, int, float]] = []
    share = 1.0
    for level, n in levels[:-1] if kind == "all_reduce" else levels:
        found.append((level, "reduce_scatter" if kind == "all_reduce" else kind, n, share))
        share /= n if kind in ("all_reduce", "reduce_scatter", "all_gather") else 1
    if kind == "all_reduce" and levels:
        inner = found[::-1]
        found.append((levels[-1][0], kind, levels[-1][1], share))
        found += [(level, "all_gather", n, part) for level, _, n, part in inner]
    return tuple(LevelExchange(level, one, n, part, _lines(level, one, n, part)) for level, one, n, part in found)


def _lines(level: LinkLevel, kind: Collective, n: int, share: float) -> tuple[tuple[float, float, float, Path], ...]:
    found = []
    for path in level.paths:
        if (kind, path.algorithm) in WIRE:
            wire, hops = WIRE[kind, path.algorithm]
            latency = path.start_s + hops(n) * path.hop_s
            found.append((latency, share * wire(n) / path.byte_per_s, path.largest / share, path))
    return tuple(found)


def seconds(
    topology: Topology, kind: Collective, nbytes: Numbers, size: NDArray[np.int64], stride: NDArray[np.int64]
) -> Numbers:
    """Seconds of many collectives at once, each by its cheapest algorithms: of `nbytes` over `size` devices each."""
    groups, which = np.unique(size * (1 << 32) + stride, return_inverse=True)
    rows = [steps(topology, kind, int(group) >> 32, int(group) & 0xFFFFFFFF) for group in groups]
    depth = max((len(row) for row in rows), default=0)
    width = max((len(step.lines) for row in rows for step in row), default=1)
    lines = np.zeros((len(rows), depth, width, 3))
    lines[..., 2] = np.inf
    at_level = np.zeros((len(topology.levels), len(rows), depth))
    for row, found in enumerate(rows):
        for index, step in enumerate(found):
            lines[row, index] = (np.inf, 0.0, np.inf)
            lines[row, index, : len(step.lines)] = [line[:3] for line in step.lines]
            at_level[topology.levels.index(step.level), row, index] = 1.0
    if not depth:
        return np.zeros(len(which))
    which = which.reshape(-1)
    latency, transfer, largest = np.moveaxis(lines[which], -1, 0)
    transfer = np.where(nbytes[:, None, None] <= largest, transfer * nbytes[:, None, None], np.inf)
    best = np.argmin(latency + transfer, axis=2)[..., None]
    latency, transfer = (np.take_along_axis(each, best, 2)[..., 0] for each in (latency, transfer))
    by_level = (at_level[:, which] * transfer).sum(axis=2)
    longest = by_level.max(axis=0)
    total: Numbers = latency.sum(axis=1) + longest + topology.exposed * (by_level.sum(axis=0) - longest)
    return total


def cost(
    topology: Topology,
    kind: Collective,
    nbytes: float,
    size: int | None = None,
    stride: int = 1,
    algorithm: Algorithm | None = None,
) -> CollectiveCost:
    """One collective over a group (all devices without `size`), with algorithms and reasons.

    `algorithm` forces one. Raises ArgumentError for a group that the topology does not hold, and where a level that the
    group spans lacks the algorithm.
    """
    group = topology.devices if size is None else size
    if min(group, stride) < 1 or group * stride > topology.devices:
        raise ArgumentError(f"a group of {group} devices, {stride} apart, in {topology.name} of {topology.devices}")
    parts = []
    for step in steps(topology, kind, group, stride):
        known = ", ".join(line[3].algorithm for line in step.lines)
        lines = [line for line in step.lines if line[3].algorithm == (algorithm or line[3].algorithm)]
        lines = [line for line in lines if algorithm or nbytes <= line[2]]
        if not lines:
            message = f"{step.level.name} of {topology.name} has no {algorithm} for {step.kind}"
            raise ArgumentError(message, hints=[f"it has {known}"])
        latency, byte_s, _, path = min(lines, key=lambda line: line[0] + line[1] * nbytes)
        wire = nbytes * step.share * WIRE[step.kind, path.algorithm][0](step.devices)
        transfer = nbytes * byte_s
        name = step.level.name
        parts.append(
            LevelShare(name, step.kind, path.algorithm, step.devices, wire, latency, transfer, path.basis, path.source)
        )
    least = topology.validated_from
    compared = least is not None and nbytes >= least and group == topology.devices and kind == "all_reduce"
    return CollectiveCost(kind, nbytes, tuple(parts), topology.exposed, compared)
