"""Tables made up from formulas, for the tests of what is done with recorded ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import replace

from bench.tuning.strategies import Case
from bench.tuning.table import About, Record, Table, Turns
from tessera.scheduling.language.schedule import Schedule
from tests.unit.tuning.support import PROVENANCE, SPACE, problem, shaped, synthetic_seconds

SHAPE = (512, 512, 512)


def about(shape: tuple[int, ...] = SHAPE, operator: str = "matmul", legal: int = 0) -> About:
    """A description of a table over `SPACE`."""
    return About(
        name=f"{operator}-fp32-{'x'.join(map(str, shape))}",
        operator=operator,
        shapes=shape,
        dtype="fp32",
        threads=1,
        cpu="a CPU",
        cores=2,
        versions={"python": "3.11"},
        identity=shaped(*shape),
        family="contraction",
        provenance=PROVENANCE,
        ceilings=None,
        knobs={knob.name: knob.choices for knob in SPACE.knobs},
        default=SPACE.default,
        legal=legal or len(list(SPACE.candidates())),
        limit=1500,
        whole=SPACE.size,
        seed=0,
    )


def record(schedule: Schedule, seconds: Iterable[float], batch: int = 0, code: str = "", **more: object) -> Record:
    """A schedule that ran, with undisturbed samples from one batch."""
    samples = tuple(seconds)
    turns = (Turns(batch, samples, (False,) * len(samples)),) if samples else ()
    return Record(schedule, "ok", turns, code or str(schedule), **more)  # type: ignore[arg-type]


def case(found: Table, predict: Callable[[Schedule], float] = synthetic_seconds) -> Case:
    """A table under a model that is a function; nothing of it can be built."""
    return Case(found, replace(problem(found.about.identity, predict), space=found.space))


def table(
    seconds: Callable[[Schedule], float] = synthetic_seconds,
    predict: Callable[[Schedule], float] = synthetic_seconds,
    noise: float = 0.0,
    samples: int = 20,
    shape: tuple[int, ...] = SHAPE,
) -> Table:
    """All of `SPACE`, with samples spread by `noise` around a formula."""
    generator = random.Random(1)
    records = [
        record(
            schedule,
            [seconds(schedule) * (1 + generator.uniform(-noise, noise)) for _ in range(samples)],
            estimated_s=predict(schedule),
        )
        for schedule in SPACE.candidates()
    ]
    return Table(about(shape), tuple(records), (1e-3,))
