"""The outer choice: how many devices each axis gets, and how a step runs on them. Many at once, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.errors import ArgumentError
from tessera.sharding.planner.transformer import Transformer

Column = NDArray[np.int64]

RECOMPUTE: Final = ("none", "selective", "full", "offload")
"""What is done about activations: kept; scores recomputed; blocks recomputed; half of the blocks' put on the host."""
SCHEDULES: Final = ("none", "gpipe", "1f1b", "interleaved", "zb1p")
ORDERS: Final = (("tp", "cp", "dp", "pp"), ("tp", "cp", "pp", "dp"))
"""Axes from the nearest devices outwards."""


class Parallelism(NamedTuple):
    """One way to run a step on tp x cp x dp x pp devices; experts are shared out over `ep` of the dp x cp ones.

    `zero` is the stage: 1 splits the optimizer's state over dp, 2 the gradients too, 3 the weights too.
    """

    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    ep: int = 1
    zero: int = 1
    recompute: str = "none"
    microbatch: int = 1
    schedule: str = "none"
    chunks: int = 1
    order: tuple[str, ...] = ORDERS[0]
    sequence_parallel: bool = True

    @property
    def devices(self) -> int:
        """All devices in use."""
        return self.tp * self.pp * self.dp * self.cp


@dataclass(frozen=True)
class PlanCandidates:
    """Candidates as columns; names as indices into `RECOMPUTE`, `SCHEDULES` and `ORDERS`."""

    tp: Column
    pp: Column
    dp: Column
    cp: Column
    ep: Column
    zero: Column
    recompute: Column
    microbatch: Column
    schedule: Column
    chunks: Column
    order: Column
    sequence_parallel: Column

    def __len__(self) -> int:
        return len(self.tp)

    def take(self, which: NDArray[Any]) -> PlanCandidates:
        """The rows of an index or a mask."""
        return PlanCandidates(*(getattr(self, field.name)[which] for field in fields(self)))

    def __getitem__(self, row: int) -> Parallelism:
        values = {field.name: int(getattr(self, field.name)[row]) for field in fields(self)}
        names: dict[str, Any] = {
            "recompute": RECOMPUTE[values["recompute"]],
            "schedule": SCHEDULES[values["schedule"]],
            "order": ORDERS[values["order"]],
            "sequence_parallel": bool(values["sequence_parallel"]),
        }
        return Parallelism(**{**values, **names})

    def stride(self, axis: str) -> Column:
        """How far apart the devices of a group of an axis are."""
        sizes = {"tp": self.tp, "cp": self.cp, "dp": self.dp, "pp": self.pp}
        found = np.ones(len(self), np.int64)
        for index, order in enumerate(ORDERS):
            before = order[: order.index(axis)]
            inner = np.prod([sizes[name] for name in before], axis=0, dtype=np.int64) if before else 1
            found = np.where(self.order == index, inner, found)
        return found

    @staticmethod
    def of(rows: Sequence[Parallelism]) -> PlanCandidates:
        """The columns of some candidates."""
        index: Mapping[str, Sequence[object]] = {"recompute": RECOMPUTE, "schedule": SCHEDULES, "order": ORDERS}
        return PlanCandidates(
            *(
                np.array(
                    [
                        index[name].index(getattr(row, name)) if name in index else int(getattr(row, name))
                        for row in rows
                    ],
                    np.int64,
                )
                for name in Parallelism._fields
            )
        )


AXES: Final = ("tp", "pp", "dp", "cp", "ep")
CHOICES: Final = (*AXES, "zero", "recompute", "microbatch", "schedule", "chunks")
"""What `fixed=` may name."""


def enumerate_candidates(
    model: Transformer, devices: int, batch: int, *, offload: bool, fixed: Mapping[str, object]
) -> PlanCandidates:
    """All candidates on `devices` that divide what they split; tp may leave heads uneven, pp layers.

    Raises ArgumentError for a name or a value in `fixed` that there is not.
    """
    _check(fixed)
    rows = [
        (tp, pp, dp, cp, ep, microbatch, schedule, chunks)
        for tp, pp, dp, cp in _divisions(devices)
        if tp <= model.heads and pp <= model.layers and model.sequence % (2 * cp) == 0
        for ep in _experts(model, dp * cp)
        if _allowed(fixed, tp=tp, pp=pp, dp=dp, cp=cp, ep=ep)
        for microbatch in _microbatches(batch, dp)
        if _allowed(fixed, microbatch=microbatch)
        for schedule, chunks in _schedules(model, pp)
        if _allowed(fixed, schedule=SCHEDULES[schedule], chunks=chunks)
    ]
    ways = [
        (zero, recompute, order)
        for zero, recompute, order in product(
            range(4), range(len(RECOMPUTE) if offload else len(RECOMPUTE) - 1), range(len(ORDERS))
        )
        if _allowed(fixed, zero=zero, recompute=RECOMPUTE[recompute])
        and not (recompute == 1 and model.fused_attention)  # nothing to recompute: scores are never kept
    ]
    table = np.array(rows, np.int64).reshape(-1, 8)
    other = np.array(ways, np.int64).reshape(-1, 3)
    left, right = (index.ravel() for index in np.indices((len(table), len(other))))
    tp, pp, dp, cp, ep, microbatch, schedule, chunks = table[left].T
    zero, recompute, order = other[right].T
    found = PlanCandidates(tp, pp, dp, cp, ep, zero, recompute, microbatch, schedule, chunks, order, np.ones_like(tp))
    # Where an axis has one device, what is said of it changes nothing: one of the equal rows stays.
    possible = (recompute != RECOMPUTE.index("offload")) | (pp == 1)
    # Interleaving goes through microbatches in groups of pp; a smaller last one makes ranks wait.
    possible &= (schedule != SCHEDULES.index("interleaved")) | (batch // (dp * microbatch) % pp == 0)
    useful = possible & ((dp > 1) | (zero == (_wanted(fixed, "zero") or 0))) & (((pp > 1) & (dp > 1)) | (order == 0))
    return found.take(useful)


def _wanted(fixed: Mapping[str, object], name: str) -> int | None:
    value = fixed.get(name)
    return value if isinstance(value, int) else None


def _allowed(fixed: Mapping[str, object], **values: object) -> bool:
    return all(fixed.get(name, value) == value for name, value in values.items())


def _check(fixed: Mapping[str, object]) -> None:
    for name, value in fixed.items():
        if name not in CHOICES:
            raise ArgumentError(f"fixed: {name!r} is no choice of a plan", hints=[f"there are {', '.join(CHOICES)}"])
        known = {"recompute": RECOMPUTE, "schedule": SCHEDULES}.get(name)
        if known is not None and value not in known:
            raise ArgumentError(f"fixed: {name} is one of {', '.join(known)}, not {value!r}")
        if known is None and (not isinstance(value, int) or value < (0 if name == "zero" else 1)):
            raise ArgumentError(f"fixed: {name} is a number of devices or pieces, not {value!r}")


@lru_cache(maxsize=64)
def _divisors(number: int) -> tuple[int, ...]:
    return tuple(value for value in range(1, number + 1) if number % value == 0)


def _divisions(devices: int) -> Iterator[tuple[int, int, int, int]]:
    """(tp, pp, dp, cp) whose product is `devices`."""
    for tp in _divisors(devices):
        for pp in _divisors(devices // tp):
            for cp in _divisors(devices // tp // pp):
                yield tp, pp, devices // tp // pp // cp, cp


def _experts(model: Transformer, ranks: int) -> list[int]:
    if model.experts == 1:
        return [1]
    return [value for value in _divisors(ranks) if model.experts % value == 0]


def _microbatches(batch: int, dp: int) -> list[int]:
    """Sequences of one microbatch: powers of two up to 16; none where dp does not divide the batch."""
    if batch % dp:
        return []
    return [size for size in (1, 2, 4, 8, 16) if (batch // dp) % size == 0]


def _schedules(model: Transformer, pp: int) -> list[tuple[int, int]]:
    """(index of the schedule, chunks); interleaving needs a layer for each stage, embedding and head counted."""
    if pp == 1:
        return [(0, 1)]
    some = [(SCHEDULES.index(name), 1) for name in ("gpipe", "1f1b", "zb1p")]
    return some + [
        (SCHEDULES.index("interleaved"), chunks)
        for chunks in range(2, model.layers // pp + 2)
        if model.layers % (pp * chunks) == 0 or (model.layers + 2) % (pp * chunks) == 0
    ]
