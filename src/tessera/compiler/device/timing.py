"""Timed builds: while a `Timing` is the source of plans, what runs is plans of kernels that time their tiles.

The usual plans and their objects stay as they are, and are used again afterwards.
"""

from __future__ import annotations

import math
import time
from functools import cache, partial

import numpy

from tessera.backend.registry import cpu_backend
from tessera.compiler import pipeline, planning
from tessera.compiler.bind.binding import placed
from tessera.compiler.device import compilers
from tessera.compiler.device.planner import AnyTiles, TimedPlan
from tessera.ir.parsing import parse
from tessera.lazy.devices import is_mesh
from tessera.lazy.structures.structure import Plan, Structure
from tessera.profiling.ring import recorder
from tessera.profiling.tiles.device_tiles import DeviceTiles
from tessera.profiling.tiles.tiles import ClockCost
from tessera.rewrite.engine import Firing
from tessera.runtime.plans import native
from tessera.runtime.plans.calling import call, last_durations

_EMPTY_TILES = """
"tessera.tile.kernel"() ({
^bb0(%count: index):
  "tessera.tile.parallel"(%count) ({
  ^bb0(%lower: index, %upper: index):
    "tessera.tile.for"(%lower, %upper) ({
    ^bb0(%tile: index):
      "tessera.tile.yield"() : () -> ()
    }) {step = 1 : i64, macro_tile} : (index, index) -> ()
  }) {steps = array<i64: 1>, split = 0 : i64} : (index) -> ()
}) {sym_name = "empty_tiles", outputs = array<i64>, timed} : () -> ()
"""
_MEASURED = 50_000


class Timing:
    """The timed plans of one profile. `tiles` has, for each by its number, what each step's tiles took; None for the
    steps that have none: calls of libraries.
    """

    def __init__(self) -> None:
        self.tiles: dict[int, AnyTiles] = {}
        self.rewritten: list[Firing] = []
        """The rewrites that put other operators in the place of those that were written, before there were kernels."""
        self.notes: list[str] = []
        """What is not in the tiles."""
        self._clocks: dict[str, list[DeviceTiles]] = {}
        self._plans: dict[pipeline.PlanKey, Plan] = {}

    def plan(self, structure: Structure) -> Plan:
        """The timed plan of a structure under the numerics policy in force, bound if need be."""
        if is_mesh(structure.device):
            return pipeline.usual_plan(structure)  # which asks for the plans of what each device computes
        key = pipeline.plan_key(structure)
        with planning.lock:
            plan = self._plans.get(key)
            if plan is None:
                plan = self._plans[key] = self._bind(structure)
            return plan

    def forget(self) -> None:
        """Forgets what tiles took so far, not the plans."""
        for steps in self.tiles.values():
            for each in steps:
                if each is not None:
                    each.forget()

    def _bind(self, asked: Structure) -> Plan:
        structure, log = planning.as_planned(asked)
        self.rewritten += log
        order = structure.post_order()
        compiler = compilers.compiler_of(structure.device)
        launches, memory = placed(planning.program_of(structure, order), order, compiler)
        return compiler.planner.timed_plan(launches, memory, partial(self._keep, compiler.device), self.notes.append)

    def _keep(self, device: str, plan: TimedPlan, tiles: AnyTiles) -> None:
        self.tiles[plan.number] = tiles
        self._clocks.setdefault(device, []).extend(each for each in tiles if isinstance(each, DeviceTiles))

    def clocks(self) -> dict[str, int]:
        """In steps of how many nanoseconds the clock of each GPU was seen to advance."""
        seen = {name: [each.advance_ns for each in tiles if each.advance_ns] for name, tiles in self._clocks.items()}
        return {name: math.gcd(*steps) for name, steps in seen.items() if steps}


@cache
def clock_cost() -> ClockCost:
    """What timing a tile costs on this machine, measured with tiles that do nothing."""
    native.driver()  # which provides the clock
    backend = cpu_backend()
    loaded = backend.load(backend.compile(parse(_EMPTY_TILES), compilers.kernel_compiler().target))
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter()
        times = call(loaded, [_MEASURED])
        best = min(best, (time.perf_counter() - start) / _MEASURED)
    assert times is not None
    inside = float(numpy.median(last_durations(times)[0])) * recorder.ns_per_tick()
    return ClockCost(inside_ns=inside, whole_ns=max(best * 1e9, inside))
