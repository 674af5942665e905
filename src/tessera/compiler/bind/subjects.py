"""Subjects: a kernel of a program with one layout pattern, which is what gets scheduled, tuned and compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from xdsl.ir import Operation

from tessera.compiler.graph.memo import Memo, Table
from tessera.compiler.graph.program import KernelItem
from tessera.errors import ScheduleError
from tessera.ir.graph.operations import GraphOperation
from tessera.lazy.policy import FAST, Policy
from tessera.ops.pins import KNOBS
from tessera.scheduling.binding.arrays import Pattern
from tessera.scheduling.families.family import Kernels, Layouts, Poser, Problem
from tessera.scheduling.families.registry import family_of_region, kernels_on
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.lowering.spec import Argument, Spec
from tessera.system.caching import cached_property
from tessera.target import Target


class Subject:
    """A kernel with a layout pattern, for a device with several maths under a policy. There is one object for each of
    these, so identity is equality.
    """

    def __init__(self, item: KernelItem, pattern: Pattern, target: Target, policy: Policy = FAST) -> None:
        self.item, self.pattern, self.target, self._policy = item, pattern, target, policy
        self.memo = Memo()

    @cached_property
    def in_blocks(self) -> Subject:
        """The same kernel of a product with code for several blocks of K."""
        return Subject(self.item, replace(self.pattern, one_block=False), self.target, self._policy)

    def step(self, reported_as: KernelItem, spec: Spec) -> Subject:
        """What one step of this kernel computes: a subject of its own, made once for each layout."""
        known = self.memo.of(_STEPS)
        key = spec.name, spec.arguments
        if key not in known:
            item = replace(reported_as, name=spec.name, is_step=True, memo=Memo())
            known[key] = item.memo.of(SUBJECTS)[None] = StepSubject(item, spec, self.target)
        return known[key]

    @cached_property
    def spec(self) -> Spec:
        """The specification that lowerings take. Whether tf32 is permitted says the operator, or the policy for all."""
        family = family_of_region(self.item.family)
        assert family.read is not None
        spec: Spec = family.read(self.item, self.pattern)
        permitted: Spec = family.under_math(spec, self._policy.tf32, self._policy.rewrites_arithmetic)
        return permitted

    @cached_property
    def pins(self) -> Schedule:
        """The knobs that the user pinned: by `pin` on any operator of the kernel, the tile by `tile_shape=` too.

        Raises ScheduleError (E_SCHEDULE_ILLEGAL) where two operators of the kernel ask for different values.
        """
        found: dict[str, KnobValue] = {}
        for operation in self.item.operation.body.block.ops:
            for knob, value in _asked(operation).items():
                if found.setdefault(knob, value) != value:
                    raise ScheduleError(
                        f"two operators of the kernel {self.item.name} are pinned to {knob}={found[knob]} and "
                        f"{knob}={value}",
                        hints=["pin one of them", "or pin fusion=False as well, so that they are kernels of their own"],
                    )
        return Schedule(found)

    @cached_property
    def kernels(self) -> Kernels:
        """What its family has on the device. Raises UnsupportedTargetError (E_UNSUPPORTED_TARGET)."""
        return kernels_on(self.spec, self.target)

    def problem(self, extents: Mapping[str, int], workers: int, layouts: Layouts | None = None) -> Problem:
        """What legality rules and cost models need to know, for these extents and, of kernels that read them, these
        layouts of operands. On the path of binding.
        """
        found: Problem = self._pose(extents, workers) if layouts is None else self._pose(extents, workers, layouts)
        return found

    @cached_property
    def _pose(self) -> Poser:
        return self.kernels.pose(self.spec, self.target)


class StepSubject(Subject):
    """A subject whose specification was made of another's. Its item has no other."""

    def __init__(self, item: KernelItem, spec: Spec, target: Target) -> None:
        super().__init__(item, Pattern(spec.arguments, (), None, "", True), target)
        self._spec = spec

    @property
    def spec(self) -> Spec:
        """The specification that lowerings take."""
        return self._spec


SUBJECTS: Final = Table[object, Subject]("subjects of a kernel, by what tells them apart; of a step the only one")
_STEPS: Final = Table[tuple[str, tuple[Argument, ...]], Subject]("subjects of the steps of a subject")


def subject_of(item: KernelItem, pattern: Pattern, maker: object, target: Target, policy: Policy = FAST) -> Subject:
    """The subject of a kernel under a pattern, for the compiler that is its `maker`; a step has only one."""
    known = item.memo.of(SUBJECTS)
    if item.is_step:
        return known[None]
    key = (maker, pattern, policy)
    subject = known.get(key)
    if subject is None:
        subject = known[key] = Subject(item, pattern, target, policy)
    return subject


def _asked(operation: Operation) -> Mapping[str, KnobValue]:
    """The knobs that stand on an operation."""
    if not isinstance(operation, GraphOperation):
        return {}
    knobs = operation.attribute(KNOBS, "")
    assert isinstance(knobs, str)
    tile = {"tile": operation.integers("tile_shape")} if "tile_shape" in operation.attributes else {}
    return {**tile, **Schedule.parse(knobs)}
