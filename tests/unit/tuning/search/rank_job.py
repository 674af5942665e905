"""One of two ranks that tune recorded tables together. Arguments: rank, port, folder, scenarios.

Prints a JSON object a line: what the rank saw in a scenario.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from tessera import settings
from tessera.errors import TuneFailedError
from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.autotuner import Autotune
from tessera.tuning.config import Config
from tessera.tuning.interfaces import TuningProblem
from tessera.tuning.measure.measurement import Done, Effort, ReplayMeasurer, unheard
from tessera.tuning.measure.trial import Trial
from tessera.tuning.online.ticket import Ticket
from tessera.tuning.search import ranks
from tessera.tuning.store.entry import Entry
from tests.unit.tuning.support import MATMUL, SPACE, misled_seconds, problem, shaped, synthetic_table

LIMIT_S = 60.0
"""Seconds that ranks wait for each other here once they are a group."""
START_S = 120.0
"""Seconds in which both have loaded torch, on however busy a machine."""


class Backend:
    """Poses the synthetic problem for every operator."""

    archs = (MATMUL.arch,)

    def subject(self, op: object, shapes: Any, dtype: object, device: object = None) -> TuningProblem:
        return problem(shaped(*shapes), misled_seconds)

    def objection(self, entry: Entry) -> str | None:
        return None


class Dying(ReplayMeasurer):
    """A measurer whose process ends without a word at its second batch."""

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard) -> list[Trial]:
        if self.asked:
            os._exit(9)
        return super().measure(cases, effort, done)


def together(rank: int) -> dict[str, Any]:
    """Both tune one shape, whose winner rank 0 keeps, and ask for it again; and a space in which nothing runs."""
    measurer = ReplayMeasurer(synthetic_table())
    autotune = Autotune(Backend, measurer)
    with ranks.team(LIMIT_S) as team:
        assert team is not None
        config = autotune("matmul", (64, 64, 64), method="on_device")
        again = autotune("matmul", (64, 64, 64), method="on_device")
        model = autotune("matmul", (8, 8, 8))
        try:
            Autotune(Backend, ReplayMeasurer({}))("matmul", (9, 9, 9), method="on_device")
            failure = ""
        except TuneFailedError as error:
            failure = error.message
    return {
        "schedule": str(config.schedule),
        "trials": len(config.trials),
        "asked": len(set(measurer.asked)),
        "again": [again.source, str(again.schedule)],
        "model": str(model.schedule),
        "entries": sum(1 for _ in autotune.database.entries()),
        "failure": failure,
    }


class Unable(ReplayMeasurer):
    """A measurer whose process cannot be started."""

    def measure(self, cases: Sequence[tuple[Schedule, object]], effort: Effort, done: Done = unheard) -> list[Trial]:
        raise TuneFailedError("no measuring process")


def unable(rank: int) -> dict[str, Any]:
    """Rank 1 cannot measure one shape; both tune the next one."""
    table = synthetic_table()
    measurer = Unable(table) if rank == 1 else ReplayMeasurer(table)
    with ranks.team(LIMIT_S):
        try:
            failure = str(Autotune(Backend, measurer)("matmul", (16, 8, 8), method="on_device").schedule)
        except TuneFailedError as error:
            failure = error.message
        config = Autotune(Backend, ReplayMeasurer(table))("matmul", (16, 16, 8), method="on_device")
    return {"failure": failure, "schedule": str(config.schedule)}


def losing(rank: int, dies: int) -> dict[str, Any]:
    """One rank ends in the middle of a search."""
    table = synthetic_table()
    autotune = Autotune(Backend, Dying(table) if rank == dies else ReplayMeasurer(table))
    with ranks.team(LIMIT_S):
        try:
            found = str(autotune("matmul", (64, 64, 128), method="on_device").schedule)
        except TuneFailedError as error:
            found = f"{error.code}: {error.message}"
    return {"found": found}


def agreeing(rank: int) -> dict[str, Any]:
    """Both meet a kernel in a training job, of which they know different schedules; then one that only rank 0 meets."""
    autotune = Autotune(Backend, ReplayMeasurer(synthetic_table()))
    autotune.enable(True, share="first_call")
    warmup = autotune.warmup
    assert warmup is not None  # no rank of a job waits at first calls
    schedules = list(SPACE.candidates())
    known = Config(schedules[rank], MATMUL, "nearest")
    used, states = [], []
    for step in range(3000):
        with warmup.collecting() as tickets:
            used.append(str(warmup.choose(problem(predict=misled_seconds), autotune.database, known).schedule))
        states.append(tickets[0].state if tickets else "")
        warmup.between_calls(tickets)
        time.sleep(0.002)  # the work of a step
        dist.barrier()  # as the collectives of a training step do
        if not tickets and step % 50 == 49:
            break
    return {"used": used, "first": str(schedules[rank]), "states": sorted(set(states))}


def orphaned(rank: int) -> dict[str, Any]:
    """Both meet a kernel, then rank 0, whose process has the store, ends; rank 1 calls on, and meets another kernel."""
    autotune = Autotune(Backend, ReplayMeasurer({}))
    autotune.enable(True)
    warmup = autotune.warmup
    assert warmup is not None
    schedule = list(SPACE.candidates())[rank]
    used = []

    def meet(rows: int) -> Sequence[Ticket]:
        with warmup.collecting() as tickets:
            known = Config(schedule, shaped(rows, 8, 8), "nearest")
            used.append(str(warmup.choose(problem(known.identity), autotune.database, known).schedule))
        return tickets

    tickets = meet(1)
    dist.barrier()
    if rank == 0:
        os._exit(9)
    time.sleep(0.5)
    while not warmup.between_calls(tickets):
        time.sleep(0.01)
    meet(2)
    return {"used": used, "own": str(schedule)}


SCENARIOS: dict[str, Callable[[int], dict[str, Any]]] = {
    "together": together,
    "unable": unable,
    "agreeing": agreeing,
    "losing the second": lambda rank: losing(rank, 1),
    "losing the first": lambda rank: losing(rank, 0),
    "orphaned": orphaned,
}


def main() -> None:
    """Runs scenarios one after the other as one rank; each prints what the rank saw."""
    rank, port, folder, scenarios = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), sys.argv[4:]
    limit = timedelta(seconds=START_S)
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", world_size=2, rank=rank, timeout=limit)
    for scenario in scenarios:
        with settings.override(cache_dir=folder / str(rank), tune_site_dir=None):
            print(json.dumps({scenario: SCENARIOS[scenario](rank)}), flush=True)
    os._exit(0)  # the group's threads may wait for a rank that is gone


if __name__ == "__main__":
    main()
