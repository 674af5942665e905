"""Plans for sizes that were never seen, of what was found out when the same was bound for others.

A structure whose leaves have symbolic sizes (`lazy/symbols`) is bound as any other: what binding decides by sizes
becomes conditions, and what it computes of them polynomials. For other sizes that meet the conditions the plan is the
same but for these numbers, and for the schedules of its kernels, which are chosen for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tessera.compiler.bind.launches import AnyLaunch, Launch, LibraryLaunch, Memory
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import CpuPlanner
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.planning import lock
from tessera.compiler.rebind.calls import CallTemplate, library_with_numbers
from tessera.compiler.rebind.choices import MadeChoice, with_numbers
from tessera.compiler.rebind.classes import AllChosen, DecisionGroup, grouped
from tessera.lazy.structures import interning
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.threads import worker_count
from tessera.profiling.recording.facts import StepFacts
from tessera.runtime.libraries.library import raising
from tessera.runtime.plans import native
from tessera.runtime.plans.frames import UNKNOWN, Descriptors, Launched, SharedSteps, StepTable
from tessera.runtime.plans.plan import BoundPlan, PlanOutput

MOST_TABLES = 1 << 8
"""Tables of steps that are kept at one time, one for each set of kernels that sizes have met."""

Chosen = tuple[AllChosen, ...]
"""What is chosen for some sizes, by groups of decisions."""


class PlanTemplate:
    """A plan but for the sizes that its structure's leaves have, and what their numbers have to be."""

    def __init__(
        self,
        assumptions: Assumptions,
        launches: Sequence[AnyLaunch],
        memory: Memory,
        decisions: Sequence[MadeChoice],
        compiler: DeviceCompiler,
    ) -> None:
        assert isinstance(compiler.planner, CpuPlanner)
        self._assumptions, self._compiler = assumptions, compiler
        self._revision, self._threads = compiler.revision, worker_count()
        self._launches, self._slots, self._derived = launches, memory.slots, memory.derived
        self._outputs = [
            (each.number, None if each.structure is None else each.structure.dtype) for each in memory.outputs
        ]
        by_choice = {(id(each.call), id(each.choice)): number for number, each in enumerate(decisions)}
        launched = [
            by_choice[id(launch.call), id(launch.choice)] if isinstance(launch, Launch) else None for launch in launches
        ]
        groups = grouped(decisions)
        self._groups = [
            DecisionGroup(
                [decisions[number] for number in group],
                [number in launched for number in group],
                assumptions,
                compiler.planner,
            )
            for group in groups
        ]
        places = {number: (at, within) for at, group in enumerate(groups) for within, number in enumerate(group)}
        self._launched = [None if number is None else places[number] for number in launched]
        """The group of the decision that each launch is as, and its number in there; None for calls of libraries."""
        self._calls = [
            (place, CallTemplate(each)) for place, each in enumerate(launches) if isinstance(each, LibraryLaunch)
        ]
        self._run = raising(native.driver().run) if self._calls else None
        self._tables: dict[Chosen, StepTable] = {}
        self.numbers = (
            tuple([_descriptors(launch) for launch in launches]),
            tuple([each.numbers for _, each in self._calls]),
            memory.results,
            memory.arena_bytes,
            tuple(
                [
                    None if each.structure is None else (each.structure.shape, each.structure.strides)
                    for each in memory.outputs
                ]
            ),
        )
        """What `plan` needs, in nested tuples, of which numbers may be symbolic."""

    @property
    def is_current(self) -> bool:
        """Whether schedules are still chosen as they were."""
        return self._revision == self._compiler.revision

    def plan(self, sizes: Sequence[int], numbers: Any, compiles: bool = True) -> BoundPlan | None:
        """The plan for other sizes, which meet the assumptions, of `numbers` as they are for these; None where choices
        of schedules change what it does, or may differ by now, and unless it `compiles` where a kernel is missing.
        Raises what compiling raises.
        """
        with lock:
            if not self.is_current or self._threads != worker_count():
                return None
            chosen: list[AllChosen] = []
            for group in self._groups:
                found = group.chosen(sizes, self._compiler, compiles)
                if found is None:
                    return None
                chosen.append(found)
            return self._plan(tuple(chosen), sizes, numbers)

    def _plan(self, chosen: Chosen, sizes: Sequence[int], numbers: Any) -> BoundPlan:
        descriptors, calls, results, arena, outputs = numbers
        buffer, device = interning.buffer, self._compiler.device
        return BoundPlan(
            steps=self._steps(chosen, descriptors, calls, sizes),
            slots=self._slots,
            results=results,
            outputs=[
                PlanOutput(number, None if dtype is None else buffer(lies[0], lies[1], dtype, device))
                for (number, dtype), lies in zip(self._outputs, outputs, strict=True)
            ],
            arena_bytes=arena,
            facts=partial(self._facts, chosen, sizes),
            derived=self._derived,
            call=self._run,
        )

    def _steps(
        self, chosen: Chosen, descriptors: Sequence[Descriptors], calls: Sequence[Any], sizes: Sequence[int]
    ) -> SharedSteps:
        """The steps, over a table that plans with the same kernels share."""
        table = self._tables.get(chosen)
        if table is None:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            table = self._tables[chosen] = StepTable([self._launch(place, chosen) for place in self._launched])
        if not self._calls:
            return SharedSteps(table, descriptors)
        at, words = self._at(sizes), list(descriptors)
        steps = {place: call.step(own, at) for (place, call), own in zip(self._calls, calls, strict=True)}
        for place, step in steps.items():
            words[place] = step.descriptors
        return SharedSteps(table.replaced(steps), words)

    def _launch(self, place: tuple[int, int] | None, chosen: Chosen) -> Launched:
        """What a step launches; of a call of a library it is not known."""
        if place is None:
            return UNKNOWN
        choice, code = chosen[place[0]].each[place[1]]
        return code.loaded, choice.workers, code.workspace_bytes, 0

    def _at(self, sizes: Sequence[int]) -> Callable[[int], int]:
        assumptions = self._assumptions
        return lambda number: assumptions.evaluated(number, sizes)

    def _facts(self, chosen: Chosen, sizes: Sequence[int]) -> Sequence[StepFacts]:
        at = self._at(sizes)
        launches: list[AnyLaunch] = []
        for launch, place in zip(self._launches, self._launched, strict=True):
            if isinstance(launch, LibraryLaunch):
                launches.append(library_with_numbers(launch, at))
            elif place is not None:
                launches.append(Launch(with_numbers(launch.call, at), chosen[place[0]].each[place[1]].choice))
        return facts_of(launches, self._compiler.traffic)()


def _descriptors(launch: AnyLaunch) -> tuple[int, ...]:
    """The words of a launch, as `CpuPlanner` writes them; none of a call of a library."""
    words: list[int] = []
    if isinstance(launch, LibraryLaunch):
        return ()
    for view, numbers in launch.call.arguments:
        words.append(view.storage.slot)
        if not view.is_scalar:
            words.append(view.storage.offset + view.offset_bytes)
            words += numbers
    return tuple(words)
