"""Plans for sizes that were never seen, of what was found out when the same was bound for others.

A structure whose leaves have symbolic sizes (`lazy/symbols`) is bound as any other: what binding decides by sizes
becomes conditions, and what it computes of them polynomials. For other sizes that meet the conditions the plan is the
same but for these numbers, and for the schedules of its kernels, which are chosen for each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, LibraryLaunch, Memory
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import CpuPlanner, call_step
from tessera.compiler.explain.reports import facts_of
from tessera.compiler.planning import lock
from tessera.compiler.rebind.choices import MadeChoice, chosen_again, class_of, library_with_numbers, with_numbers
from tessera.lazy.structures import interning
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.symbols.functions import all_hold, numbers_of
from tessera.lazy.threads import worker_count
from tessera.profiling.recording.facts import StepFacts
from tessera.runtime.libraries.library import raising
from tessera.runtime.plans import native
from tessera.runtime.plans.plan import BoundPlan, PlanOutput, Step

MOST_CHOICES = 1 << 10
"""Extents of a launch whose choice is remembered at one time."""

MOST_CLASSES = 32
"""Classes of sizes that are told apart by what is chosen for them, and attempts at one that are made in vain."""


class _Chosen(NamedTuple):
    """What a decision was for some extents: the choice, and the kernel where it is launched."""

    choice: Choice
    code: Any


class _Class(NamedTuple):
    """Sizes for which a decision is the same: the conditions, as text and as code."""

    conditions: frozenset[str]
    holds: Callable[..., bool]
    chosen: _Chosen


class _Deciding:
    """A decision that is made again for other sizes."""

    def __init__(self, decision: MadeChoice, is_launched: bool) -> None:
        self.decision, self.is_launched = decision, is_launched
        self.known: dict[tuple[int, ...], _Chosen | None] = {}
        self.classes: list[_Class] = []
        self.in_vain = 0

    def of_class(self, sizes: Sequence[int]) -> _Class | None:
        """The class of some sizes, if that is known."""
        return next((each for each in self.classes if each.holds(*sizes)), None)

    def keep(self, extents: tuple[int, ...], chosen: _Chosen | None) -> None:
        """Notes what is chosen for extents."""
        if len(self.known) >= MOST_CHOICES:
            self.known.clear()
        self.known[extents] = chosen


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
        self._assumptions, self._compiler, self._planner = assumptions, compiler, compiler.planner
        self._revision, self._threads = compiler.revision, worker_count()
        self._launches, self._slots, self._derived = launches, memory.slots, memory.derived
        self._dtypes = [None if each.structure is None else each.structure.dtype for each in memory.outputs]
        self._places = [each.number for each in memory.outputs]
        by_choice = {(id(each.call), id(each.choice)): number for number, each in enumerate(decisions)}
        self._launched = [
            by_choice[id(launch.call), id(launch.choice)] if isinstance(launch, Launch) else None for launch in launches
        ]
        """The number of the decision that each launch is as, None for calls of libraries."""
        self._run = raising(native.driver().run) if None in self._launched else None
        launched = set(self._launched)
        self._deciding = [_Deciding(each, number in launched) for number, each in enumerate(decisions)]
        self._together: list[tuple[Callable[..., bool], Sequence[_Chosen]]] = []
        """What is chosen for all decisions, by conditions that are those of all of them."""
        self._numbers = numbers_of(
            assumptions,
            (
                tuple(tuple(each.call.shaped.extents.values()) for each in decisions),
                tuple(_descriptors(launch) for launch in launches),
                memory.results,
                memory.arena_bytes,
                tuple(
                    None if each.structure is None else (each.structure.shape, each.structure.strides)
                    for each in memory.outputs
                ),
            ),
        )

    @property
    def is_current(self) -> bool:
        """Whether schedules are still chosen as they were."""
        return self._revision == self._compiler.revision

    def plan(self, sizes: Sequence[int], compiles: bool = True) -> BoundPlan | None:
        """The plan for other sizes, which meet the assumptions; None where choices of schedules change what it does, or
        may differ by now, and unless it `compiles` where a kernel is missing. Raises what compiling raises.
        """
        with lock:
            return self._plan(sizes, compiles) if self.is_current and self._threads == worker_count() else None

    def _plan(self, sizes: Sequence[int], compiles: bool) -> BoundPlan | None:
        extents, descriptors, results, arena, outputs = self._numbers(*sizes)
        chosen = next((each for holds, each in self._together if holds(*sizes)), None)
        if chosen is None:
            chosen = self._decided(extents, sizes, compiles)
        if chosen is None:
            return None
        steps = []
        for number, launch, words in zip(self._launched, self._launches, descriptors, strict=True):
            if number is None:
                assert isinstance(launch, LibraryLaunch)
                steps.append(call_step(library_with_numbers(launch, self._at(sizes))))
                continue
            choice, code = chosen[number]
            steps.append(Step(code.loaded, words, choice.workers, code.workspace_bytes))
        device = self._compiler.device
        return BoundPlan(
            steps=steps,
            slots=self._slots,
            results=results,
            outputs=[
                PlanOutput(
                    place, None if lies is None or dtype is None else interning.buffer(lies[0], lies[1], dtype, device)
                )
                for place, dtype, lies in zip(self._places, self._dtypes, outputs, strict=True)
            ],
            arena_bytes=arena,
            facts=self._facts([None if number is None else chosen[number].choice for number in self._launched], sizes),
            derived=self._derived,
            call=self._run,
        )

    def _decided(
        self, extents: Sequence[tuple[int, ...]], sizes: Sequence[int], compiles: bool
    ) -> Sequence[_Chosen] | None:
        """What is chosen for each decision. Where all of them are of known classes, these are one from then on: most
        conditions are those of several.
        """
        chosen: list[_Chosen] = []
        conditions: list[frozenset[str]] = []
        for deciding, each in zip(self._deciding, extents, strict=True):
            own = deciding.of_class(sizes)
            if own is not None:
                conditions.append(own.conditions)
            found = self._choose(deciding, each, sizes, compiles) if own is None else own.chosen
            if found is None:
                return None
            chosen.append(found)
        if len(conditions) == len(chosen) and len(self._together) < MOST_CLASSES:
            holds = all_hold(self._assumptions, frozenset[str]().union(*conditions))
            self._together.insert(0, (holds, chosen))
        return chosen

    def _choose(
        self, deciding: _Deciding, extents: tuple[int, ...], sizes: Sequence[int], compiles: bool
    ) -> _Chosen | None:
        if extents in deciding.known:
            return deciding.known[extents]
        decision, is_launched = deciding.decision, deciding.is_launched
        choice = chosen_again(decision, self._compiler, self._at(sizes), is_launched)
        if choice is None:
            deciding.keep(extents, None)
            return None
        if is_launched and not (compiles or self._planner.has_kernel(choice)):
            return None
        chosen = _Chosen(choice, self._planner.kernel(choice).code if is_launched else None)
        deciding.keep(extents, chosen)
        if len(deciding.classes) < MOST_CLASSES and deciding.in_vain < MOST_CLASSES:
            conditions = class_of(decision, self._compiler, choice, self._assumptions.at(sizes), is_launched)
            if conditions is None:
                deciding.in_vain += 1
            else:
                holds = all_hold(self._assumptions, conditions)
                deciding.classes.insert(0, _Class(conditions, holds, chosen))
        return chosen

    def _at(self, sizes: Sequence[int]) -> Callable[[int], int]:
        assumptions = self._assumptions
        return lambda number: assumptions.evaluated(number, sizes)

    def _facts(self, choices: Sequence[Choice | None], sizes: Sequence[int]) -> Callable[[], Sequence[StepFacts]]:
        def found() -> Sequence[StepFacts]:
            at = self._at(sizes)
            launches: list[AnyLaunch] = []
            for launch, choice in zip(self._launches, choices, strict=True):
                if isinstance(launch, LibraryLaunch):
                    launches.append(library_with_numbers(launch, at))
                elif choice is not None:
                    launches.append(Launch(with_numbers(launch.call, at), choice))
            return facts_of(launches, self._compiler.traffic)()

        return found


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
