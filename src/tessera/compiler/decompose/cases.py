"""Calls that may be decomposed, and the one place where that is decided, for all families and devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from tessera.compiler.bind.arrays import Call, View
from tessera.compiler.bind.launches import Choice, Launch, PlanCompiler
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.refusion import fused_anew
from tessera.compiler.graph.program import KernelItem
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.lazy.policy import current_policy
from tessera.lazy.structures.structure import contiguous_strides
from tessera.lazy.threads import worker_count
from tessera.rewrite.fusion.kernels import Bounds
from tessera.scheduling.families.decomposition import Decomposition, Expected, Steps, When
from tessera.scheduling.families.registry import decompositions
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sizes import size_class
from tessera.scheduling.lowering.spec import Argument
from tessera.scheduling.model.estimate import Estimate
from tessera.target import Target

T = TypeVar("T")


class Rehearser(Protocol):
    """What collects launches, and can also say which there would be."""

    @property
    def compiler(self) -> PlanCompiler[Any]:
        """The compiler of the device."""

    @property
    def extents(self) -> Mapping[str, int]:
        """The extents of the kernels' dimensions, by their names."""

    def is_laid_out(self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View]) -> bool:
        """Whether a kernel takes operands as they lie."""

    def rehearsed(self, case: CallCase, steps: Steps) -> list[Launch]:
        """The launches of steps in the place of a call, of which nothing is kept."""


class CallCase:
    """A call, over the tensors that it reads and writes: the `Case` of what decompositions are asked. `first` is the
    number of the first launch that is made for it.
    """

    __slots__ = ("_subject", "asked", "call", "choice", "first", "inputs", "launcher", "outputs")

    def __init__(
        self,
        launcher: Rehearser,
        call: Call,
        inputs: Sequence[View],
        outputs: Sequence[View],
        asked: Schedule | None,
        first: int,
    ) -> None:
        self.launcher, self.call, self.inputs, self.outputs = launcher, call, inputs, outputs
        self.asked, self.first = asked, first
        self.choice: Choice | None = None
        self._subject: Subject | None = None

    @property
    def subject(self) -> Subject:
        """The kernel with the layout of the call."""
        if self.choice is not None:
            return self.choice.subject
        if self._subject is None:
            self._subject = self.launcher.compiler.subject(self.call)
        return self._subject

    @property
    def chosen(self) -> Choice:
        """How the call would run."""
        assert self.choice is not None, "no schedule has been chosen"
        return self.choice

    @property
    def target(self) -> Target:
        """The device."""
        return self.launcher.compiler.target

    @property
    def kernel(self) -> ScheduleKernelOp:
        """What is computed, as operators."""
        return self.call.item.operation

    @property
    def spec(self) -> Any:
        """What is computed, over the axes of the call."""
        return self.subject.spec

    @property
    def extents(self) -> Mapping[str, int]:
        """The extents of the axes."""
        return self.call.shaped.extents

    @property
    def named(self) -> Mapping[str, int]:
        """The extents of the kernel's dimensions, by their names."""
        return self.launcher.extents

    @property
    def arguments(self) -> Sequence[tuple[View, tuple[int, ...]]]:
        """Each argument, with the extents and strides that its descriptor holds."""
        return self.call.arguments

    @property
    def kinds(self) -> Sequence[Argument]:
        """What the kernel takes each argument for."""
        return self.call.shaped.pattern.arguments

    @property
    def pins(self) -> Schedule:
        """The knobs that the user pinned."""
        return self.subject.pins

    @property
    def fixed_order(self) -> bool:
        """Whether the order of sums may depend on nothing but the operands."""
        return current_policy().fixed_order

    @property
    def schedule(self) -> Schedule:
        """The schedule that was chosen."""
        assert self.choice is not None, "no schedule has been chosen"
        return self.choice.schedule

    @property
    def is_given(self) -> bool:
        """Whether somebody asked for a schedule."""
        return self.asked is not None

    @property
    def workers(self) -> int:
        """The workers that share the work under that schedule."""
        return self.chosen.workers

    def problem(self) -> Any:
        """What rules and cost models need to know of the call, for all workers that there are."""
        return self.subject.problem(self.extents, worker_count())

    def estimate(self, problem: Any, schedule: Schedule) -> Estimate:
        """What the cost model of a CPU expects of a problem under a schedule."""
        model = self.launcher.compiler.model
        assert model is not None, "nobody estimates what calls cost on this device"
        return model.estimate(problem, schedule)

    def itself(self) -> Expected:
        """What it expects of the call under its schedule."""
        return self._expected(Launch(self.call, self.chosen))

    def expected(self, steps: Steps) -> Sequence[Expected]:
        """What it expects of each launch of other steps."""
        return [self._expected(launch) for launch in self.launcher.rehearsed(self, steps)]

    def _expected(self, launch: Launch) -> Expected:
        problem = launch.subject.problem(launch.call.shaped.extents, launch.choice.workers)
        return Expected(launch.schedule, self.estimate(problem, launch.schedule).seconds)

    def is_laid_out_contiguously(self) -> bool:
        """Whether the kernel would take contiguous copies of what it reads."""
        inputs = [view._replace(strides=contiguous_strides(view.shape)) for view in self.inputs]
        return self.launcher.is_laid_out(self.call.item, inputs, self.outputs)

    def is_divided(self, bounds: Bounds) -> bool:
        """Whether the kernel becomes several where it is fused anew within bounds."""
        return fused_anew(self.call.item, bounds) is not None

    def once(self, make: Callable[[Any], T]) -> T:
        """What `make` gives for the specification, made once for each kernel and layout."""
        subject = self.subject
        return subject.memo.once(make, subject.spec)

    def once_of_kernel(self, make: Callable[[ScheduleKernelOp], T]) -> T:
        """What `make` gives for the kernel, made once."""
        return self.call.item.memo.once(make, self.call.item.operation)


def decomposition_of(case: CallCase, when: When) -> Decomposition | None:
    """What runs in the place of a call: the first of its family's decompositions that applies and pays."""
    for each in decompositions(case.call.item.family, when):
        if each.applies(case) and (each.pays is None or _pays(each, each.pays, case)):
            return each
    return None


def _pays(decomposition: Decomposition, pays: Callable[[CallCase], bool], case: CallCase) -> bool:
    """What the cost model says, asked once for extents of about the same size."""
    sizes = [size_class(extent) for extent in case.extents.values()]
    workers = 0 if case.choice is None else case.choice.workers
    key = (decomposition, case.subject, workers, worker_count(), current_policy(), *sizes)
    decided = case.launcher.compiler.decided
    known = decided.get(key)
    if known is None:
        known = decided[key] = pays(case)
    return known
