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
from tessera.runtime.plans.frames import SharedSteps, StepTable
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
        self._calls = [CallTemplate(each) for each in launches if isinstance(each, LibraryLaunch)]
        self._run = raising(native.driver().run) if self._calls else None
        self._tables: dict[Chosen, StepTable] = {}
        self.numbers = (
            tuple([_descriptors(launch) for launch in launches]),
            tuple([each.numbers for each in self._calls]),
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
                PlanOutput(number, None if dtype is None else buffer(*lies, dtype, device))
                for (number, dtype), lies in zip(self._outputs, outputs, strict=True)
            ],
            arena_bytes=arena,
            facts=partial(self._facts, chosen, sizes),
            derived=self._derived,
            call=self._run,
        )

    def _steps(
        self, chosen: Chosen, descriptors: Sequence[tuple[int, ...]], calls: Sequence[Any], sizes: Sequence[int]
    ) -> SharedSteps:
        """The steps; plans without calls of libraries, whose kernels are their own, share tables."""
        table = self._tables.get(chosen)
        if table is not None:
            return SharedSteps(table, descriptors)
        launched: list[Any] = []
        words = list(descriptors)
        called = iter(zip(self._calls, calls, strict=True))
        for number, place in enumerate(self._launched):
            if place is None:
                call, own = next(called)
                step = call.step(own, self._at(sizes))
                launched.append((step.kernel, step.workers, step.workspace_bytes, step.threads))
                words[number] = step.descriptors
                continue
            choice, code = chosen[place[0]].each[place[1]]
            launched.append((code.loaded, choice.workers, code.workspace_bytes, 0))
        table = StepTable(launched)
        if not self._calls:
            if len(self._tables) >= MOST_TABLES:
                self._tables.clear()
            self._tables[chosen] = table
        return SharedSteps(table, words)

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
