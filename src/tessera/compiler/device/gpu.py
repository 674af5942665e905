"""The kernels of an operator for a GPU that need not be there: their Tile IR, their schedules, and what they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from tessera.backend.contract import StaticFacts
from tessera.compiler.bind.arrays import Call
from tessera.compiler.bind.launches import Choice
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.gpu_planner import ALIGNED
from tessera.compiler.device.refinement import Pruned, refined
from tessera.compiler.device.sites import Site
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import CompileError, ScheduleError, TuneSpaceEmptyError
from tessera.scheduling.families.backends import BACKEND
from tessera.scheduling.families.family import Problem
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.model.gpu_estimate import GpuEstimate
from tessera.target import Target


@dataclass(frozen=True)
class GpuKernel:
    """A kernel of an operator: `name`, `schedule`, Tile IR, its facts or why it does not compile, what the model makes
    of them (None for families that it does not know), and the schedules that the compiler's figures spoke against.
    """

    name: str
    schedule: Schedule
    module: ModuleOp
    facts: StaticFacts | CompileError
    estimate: GpuEstimate | None = None
    pruned: tuple[Pruned, ...] = ()


def gpu_kernels(
    op: object,
    shapes: object,
    dtype: object,
    target: Target,
    pins: Schedule | None = None,
    candidates: int = 0,
) -> list[GpuKernel]:
    """The kernels that `op` applied to operands of these shapes takes on `target`, compiled without running any.

    `shapes` and `dtype` are those of `autotune`; `pins` are knobs that differ from the default schedules. Without pins
    but for `backend` so many `candidates` of the model are compiled for each kernel, by each backend that is installed
    or the one that is pinned, and the best of those that do not spill is taken. Raises what the operator raises for
    them, ScheduleError for pins that break a rule, and UnsupportedTargetError where a backend is not installed.
    """
    sites, knobs = gpu_sites(op, shapes, dtype, target, pins), (pins or Schedule()).keys()
    compiler = DeviceCompiler(target)
    backends = () if BACKEND in knobs else compiler.planner.backends
    found = refined(sites, compiler, 0 if knobs - {BACKEND} else candidates, backends=backends)
    return [
        GpuKernel(
            name=each.site.name,
            schedule=each.site.launch.schedule,
            module=each.site.lowered.module,
            facts=each.facts,
            estimate=each.estimate,
            pruned=each.pruned,
        )
        for each in found
    ]


def gpu_sites(
    op: object, shapes: object, dtype: object, target: Target, pins: Schedule | None = None
) -> Sequence[Site]:
    """The launches that `op` applied to operands of these shapes takes on `target`, lowered and not compiled."""
    compiler = _PinningCompiler(target, pins or Schedule())
    launches = launches_of_operator(op, shapes, dtype, compiler)
    compiler.require_taken()
    return [Site(launch, compiler.planner.kernel(launch.choice), ALIGNED) for launch in launches]


def gpu_problems(op: object, shapes: object, dtype: object, target: Target) -> dict[str, Problem]:
    """What schedules are chosen for, of each kernel that `op` applied to operands of these shapes takes on `target`."""
    compiler = DeviceCompiler(target)
    launches = launches_of_operator(op, shapes, dtype, compiler)
    return {launch.choice.subject.spec.name: compiler.problem(launch.call) for launch in launches}


class _PinningCompiler(DeviceCompiler):
    """Changes pinned knobs of the default schedules of the kernels that have all of these knobs; no others, where that
    is legal.
    """

    def __init__(self, target: Target, pins: Schedule) -> None:
        super().__init__(target)
        self.pins, self._known, self._taken = pins, set[str](), not pins

    def choose(self, call: Call, schedule: Schedule | None = None, unaligned: frozenset[int] = ALIGNED) -> Choice:
        """Raises ScheduleError, whose hints are the rules that the pins break."""
        choice = super().choose(call, schedule, unaligned)
        space = choice.subject.kernels.space(self.problem(call))
        self._known |= space.by_name.keys()
        if schedule is not None or not self.pins or self.pins.keys() - space.by_name.keys():
            return choice
        self._taken = True
        return choice._replace(schedule=self._pinned(choice, space), source="given")

    def _pinned(self, choice: Choice, space: Space[Any]) -> Schedule:
        """The schedule with the pins; where they break a rule, with other knobs that the model completes them by."""
        changed = choice.schedule.replace(**self.pins)
        if not space.violations(changed):
            return space.check(changed)
        try:
            pinned = replace(space, default=choice.schedule).pinned(self.pins)
        except (ScheduleError, TuneSpaceEmptyError):  # whatever else is chosen: the rules that are broken say more
            return space.check(changed)
        return self._published.completed(pinned, self.pins) if choice.subject.kernels.is_modelled else pinned.default

    def require_taken(self) -> None:
        """Raises ScheduleError where no kernel had the pinned knobs."""
        if not self._taken:
            unknown = sorted(self.pins.keys() - self._known) or list(self.pins)
            raise ScheduleError(
                f"no kernel has the knob {unknown[0]!r}", hints=[f"there are {', '.join(sorted(self._known))}"]
            )
