"""Shared by the tuning tests: a small space, identities, and a synthetic table from a formula (no measurements)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from tessera.scheduling.language.knobs import Knob, Rule, Space
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.trial import Timing
from tessera.tuning.measure.workload import Case, KernelCall, Workload
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.identity import Identity, Provenance

MATMUL = Identity("matmul", (1024, 1024, 1024), ("fp32", "fp32"), ("rows", "rows"), "ieee", "fp32", "fast", "zen5", 2)
PROVENANCE = Provenance("gen1", "0.1.0", "2.13.0", "0.50.0", "performance", "on_device", "2025-01-01T00:00:00+00:00")

SPACE = Space(
    (
        Knob("tile", ((4, 16), (8, 16), (8, 32), (12, 32), (14, 32)), "register tile"),
        Knob("kc", (64, 128, 256, 512, 1024), "depth of a packed block"),
        Knob("prefetch", (False, True), "prefetch of the result"),
    ),
    (
        Rule(
            "panel_fits",
            "a packed panel fits into the cache",
            lambda s, limit: s.integer("kc") * s.integers("tile")[1] <= limit,
        ),
    ),
    20_000,
    Schedule(tile=(8, 16), kc=64, prefetch=False),
)

OPTIMUM = Schedule(tile=(12, 32), kc=256, prefetch=True)


def synthetic_seconds(schedule: Schedule) -> float:
    """A smooth formula with its only minimum, 1 ms, at `OPTIMUM`."""
    rows, columns = schedule.integers("tile")
    tile = abs(math.log2(rows * columns / 384)) * 0.3
    depth = abs(math.log2(schedule.integer("kc") / 256)) * 0.15
    return 1e-3 * (1 + tile + depth + (0.0 if schedule["prefetch"] else 0.05))


def misled_seconds(schedule: Schedule) -> float:
    """A cost model that likes small depths, unlike `synthetic_seconds`."""
    rows, columns = schedule.integers("tile")
    return 1e-3 * (1 + schedule.integer("kc") / 512 + abs(math.log2(rows * columns / 256)))


def timing(seconds: float, noise: float = 0.002) -> Timing:
    """A timing with an interval of +- `noise` around `seconds`."""
    return Timing(seconds, seconds * (1 - noise), seconds * (1 + noise), 5, 5)


def synthetic_table(seconds: Callable[[Schedule], float] = synthetic_seconds) -> dict[Schedule, Timing]:
    """The synthetic table: every schedule of `SPACE` with its formula's time."""
    return {schedule: timing(seconds(schedule)) for schedule in SPACE.candidates()}


def entry(measured_s: float | None = 1e-3, identity: Identity = MATMUL, kc: int = 256) -> Entry:
    """An entry with the given time; None makes it a guess of the model."""
    schedule = OPTIMUM.replace(kc=kc)
    origin = "model" if measured_s is None else "measured"
    return Entry(identity, schedule, origin, PROVENANCE, 2e-3, measured_s, 7)  # type: ignore[arg-type]


def problem(identity: Identity = MATMUL, predict: Callable[[Schedule], float] = synthetic_seconds) -> TuningProblem:
    """A problem on `SPACE` whose kernels are the schedules' texts: for measurers that do not run them."""
    workload = Workload((), ())
    return TuningProblem(
        identity, SPACE, lambda schedule: Case(workload, (KernelCall(str(schedule).encode(), ()),)), predict, "gen1"
    )


def shaped(*shape: int) -> Identity:
    """`MATMUL` of another shape."""
    return replace(MATMUL, shape=shape)
