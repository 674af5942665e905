"""Steps of decompositions as launches: memory for workspaces, and what runs over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tessera.compiler.bind.arrays import Call, Shape, ShapedArrays, View, over_others
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, PlanCompiler
from tessera.compiler.decompose.cases import CallCase
from tessera.compiler.decompose.refusion import fused_anew
from tessera.compiler.graph.program import KernelItem, Program
from tessera.dtypes import DType
from tessera.lazy.structure import contiguous_strides
from tessera.scheduling.families.decomposition import Array, Decomposition, Fused, Itself, Kernel, Steps
from tessera.scheduling.language.schedule import Schedule


class Decomposed(NamedTuple):
    """A kernel that runs as several: how, and the numbers of the launches from `first` to before `end` that do so."""

    item: KernelItem
    decomposition: Decomposition
    first: int
    end: int
    workspaces: Mapping[str, View]


class Collector(Protocol):
    """What collects launches."""

    @property
    def compiler(self) -> PlanCompiler[Any]:
        """The compiler of the device."""

    def new(self, shape: Shape, dtype: DType) -> View:
        """A contiguous tensor in memory of the plan."""

    def note(self, launch: AnyLaunch) -> None:
        """Adds a launch."""

    def decide(self, case: CallCase, whole: Call | None = None) -> None:
        """Adds the launches of a call, which is a step of `whole`."""

    def run_instead(
        self,
        first: int,
        program: Program,
        inputs: Sequence[View],
        outputs: Sequence[View],
        schedule: Schedule | None,
        family: str,
    ) -> None:
        """Runs a program in place of the launches from `first` on; kernels of `family` under `schedule`."""


def run(steps: Steps, case: CallCase, whole: Call | None, collector: Collector) -> Mapping[str, View]:
    """Adds the launches of steps in the place of a call, as steps of `whole`; gives the workspaces."""
    workspaces = {name: collector.new(each.shape, each.dtype) for name, each in steps.workspaces.items()}
    for step in steps.steps:
        if isinstance(step, Fused):
            item = case.call.item
            program = fused_anew(item, step.bounds)
            assert program is not None, f"{item.name} is one kernel within {step.bounds}"
            collector.run_instead(case.first, program, case.inputs, case.outputs, step.schedule, item.family)
        elif isinstance(step, Itself):
            others = {
                index: (kind, _view(array, case, workspaces), (*array.extents, *array.strides))
                for index, (kind, array) in step.arrays.items()
            }
            call = over_others(case.call, others)
            again = CallCase(case.launcher, call, case.inputs, case.outputs, step.schedule, case.first)
            collector.decide(again, whole)
        else:
            collector.note(_launch(step, case, workspaces, collector.compiler)._replace(whole=whole))
    return workspaces


def _view(array: Array, case: CallCase, workspaces: Mapping[str, View]) -> View:
    if isinstance(array.memory, int):
        view = case.call.arguments[array.memory][0]
        return view if array.shape is None else view._replace(dtype=array.dtype or view.dtype, shape=array.shape)
    view = workspaces[array.memory]
    if array.shape is None:
        return view
    return View(view.storage, array.dtype or view.dtype, array.shape, contiguous_strides(array.shape))


def _launch(step: Kernel, case: CallCase, workspaces: Mapping[str, View], compiler: PlanCompiler[Any]) -> Launch:
    """The launch of a kernel of its own."""
    arguments = tuple([(_view(array, case, workspaces), (*array.extents, *array.strides)) for array in step.arrays])
    source = arguments[0][0]
    reported_as = compiler.copy_item(source.dtype, source.shape) if step.moves else case.call.item
    subject = case.subject.step(reported_as, step.spec)
    axes = tuple([argument.axes for argument in step.spec.arguments])
    strides = tuple([array.strides for array in step.arrays])
    call = Call(subject.item, arguments, ShapedArrays(subject.pattern, step.extents, axes, strides))
    if step.schedule is None:
        return Launch(call, compiler.choose_default(subject, call))
    return Launch(call, Choice(subject, step.schedule, step.workers))
