"""The roofline bound of a case, from the ceilings Tessera measures on this machine. Runs inside worker processes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CaseBound:
    """The least seconds a case can take, and what sets them: "compute" or a memory level."""

    seconds: float
    binds: str


def case_bound(operation: str, flops: int, size: int, dtype: str, threads: int) -> CaseBound | None:
    """The bound of `flops` operations and `size` bytes on `threads` threads; None where the ceilings for that many
    were not measured."""
    from tessera.analyze import Roofline, RooflinePoint, machine

    point = RooflinePoint(operation, flops, size, 1.0, dtype, threads)
    found = Roofline((point,), machine()).bound(point)
    return None if found is None else CaseBound(found.seconds, found.binding)
