"""Steps of decompositions as launches: memory for workspaces, and what runs over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

from xdsl.dialects.builtin import ModuleOp

from tessera.compiler.bind.arrays import Call, Shape, View, over_others
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, LibraryLaunch, PlanCompiler
from tessera.compiler.decompose.cases import CallCase
from tessera.compiler.decompose.refusion import fused_anew
from tessera.compiler.graph.memo import Memo, Table
from tessera.compiler.graph.program import KernelItem, Program, read_program
from tessera.dtypes import DType
from tessera.ir.schedule.operations import ScheduleKernelOp
from tessera.lazy.structures.structure import contiguous_strides
from tessera.rewrite.fusion.alignment import Alignment, align_region
from tessera.scheduling.binding.arrays import ShapedArrays
from tessera.scheduling.families.decomposition import (
    Array,
    Called,
    Copied,
    Decomposition,
    Fused,
    Itself,
    KernelStep,
    Parts,
    Steps,
)
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.language.sources import ScheduleSource


class Decomposed(NamedTuple):
    """A kernel that runs as several: how, and the numbers of the launches from `first` to before `end` that do so."""

    item: KernelItem
    decomposition: Decomposition
    first: int
    end: int
    workspaces: Mapping[str, View]


class LaunchCollector(Protocol):
    """What collects launches."""

    @property
    def compiler(self) -> PlanCompiler[Any]:
        """The compiler of the device."""

    def new(self, shape: Shape, dtype: DType) -> View:
        """A contiguous tensor in memory of the plan."""

    def note(self, launch: AnyLaunch) -> None:
        """Adds a launch."""

    def launch(
        self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], schedule: Schedule | None = None
    ) -> None:
        """Adds the launches of a kernel."""

    def decide(self, case: CallCase, whole: Call | None = None) -> None:
        """Adds the launches of a call, which is a step of `whole`."""

    def copy(self, source: View, destination: View) -> None:
        """Adds a kernel that copies one view into another of the same shape."""

    def launch_parts(self, step: Parts, case: CallCase, result: View, whole: Call | None) -> None:
        """Adds the launch of a kernel over parts of a call's operands, as a step of `whole`."""

    def run_function(
        self, program: Program, inputs: Sequence[View], outputs: Sequence[View], extents: Mapping[str, int]
    ) -> None:
        """Runs a program, whose dimensions have `extents` beside those that are known."""

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


def run(steps: Steps, case: CallCase, whole: Call | None, collector: LaunchCollector) -> Mapping[str, View]:
    """Adds the launches of steps in the place of a call, as steps of `whole`; gives the workspaces."""
    workspaces = {name: collector.new(each.shape, each.dtype) for name, each in steps.workspaces.items()}
    for step in steps.steps:
        if isinstance(step, Fused):
            item = case.call.item
            program = fused_anew(item, step.bounds)
            assert program is not None, f"{item.name} is one kernel within {step.bounds}"
            collector.run_instead(case.first, program, case.inputs, case.outputs, step.schedule, item.family)
        elif isinstance(step, Itself):
            _run_itself(step, case, whole, workspaces, collector)
        elif isinstance(step, KernelStep):
            collector.note(_launch(step, case, workspaces, collector.compiler)._replace(whole=whole))
        elif isinstance(step, Copied):
            collector.copy(_strided(step.source, case, workspaces), _strided(step.result, case, workspaces))
        elif isinstance(step, Called):
            source, result = (_strided(each, case, workspaces) for each in (step.source, step.result))
            collector.note(LibraryLaunch(step.operator, step.attributes, (source,), (result,)))
        elif isinstance(step, Parts):
            collector.launch_parts(step, case, workspaces[step.result], whole)
        else:
            program = case.call.item.memo.of(FUNCTIONS).get(step.module)
            if program is None:
                program = case.call.item.memo.of(FUNCTIONS)[step.module] = read_program(step.module, (), {})
            first = [workspaces[name] for name in step.workspaces]
            collector.run_function(program, [*first, *case.inputs], case.outputs, step.extents)
    return workspaces


def _run_itself(
    step: Itself, case: CallCase, whole: Call | None, workspaces: Mapping[str, View], collector: LaunchCollector
) -> None:
    views = {index: _view(array, case, workspaces) for index, (_, array) in step.arrays.items()}
    others = {
        index: (kind, views[index], (*array.extents, *array.strides))
        for index, (kind, array) in step.arrays.items()
        if kind is not None
    }
    if len(others) < len(views):  # inputs, not yet arguments
        inputs = [views.get(index, view) for index, view in enumerate(case.inputs)]
        collector.launch(case.call.item, inputs, case.outputs, step.schedule)
        return
    call = over_others(case.call, others)
    again = CallCase(case.launcher, call, case.inputs, case.outputs, step.schedule, case.first)
    collector.decide(again, whole)


FUNCTIONS: Final = Table[ModuleOp, Program]("programs of fused functions")
PARTIAL: Final = Table[ScheduleKernelOp, KernelItem]("kernels over parts of another's operands")


def partial_item(item: KernelItem, operation: ScheduleKernelOp) -> KernelItem:
    """Another kernel over the operands of `item` and its domain, with one result. Made once."""
    known = item.memo.of(PARTIAL)
    if operation not in known:
        last = operation.body.block.last_op
        assert last is not None
        alignments = align_region(operation)
        loads = dict.fromkeys(
            (argument.index, alignment)
            for argument in operation.body.block.args
            for alignment in alignments.uses.get(argument, ())
        )
        stores = tuple([alignments.results[value] for value in last.operands])
        outputs = tuple(range(len(item.inputs), len(item.inputs) + len(stores)))
        known[operation] = replace(
            item,
            operation=operation,
            name=operation.sym_name.data,
            outputs=outputs,
            loads=tuple(loads),
            stores=stores,
            memo=Memo(),
        )
    return known[operation]


def part_arrays(arrays: Sequence[tuple[View, Alignment]], parts: int, rank: int) -> list[tuple[View, Alignment]]:
    """Operands with equal parts of the last of `rank` dimensions of their domain as a new first dimension of it. They
    are views of the same memory.
    """
    return [_part(view, alignment, parts, rank - 1) for view, alignment in arrays]


def _part(view: View, alignment: Alignment, parts: int, last: int) -> tuple[View, Alignment]:
    moved = _moved(alignment)
    if last not in alignment:
        return view, moved
    place = alignment.index(last)
    extent, stride = view.shape[place] // parts, view.strides[place]
    shape = (parts, *view.shape[:place], extent, *view.shape[place + 1 :])
    return view._replace(shape=shape, strides=(extent * stride, *view.strides)), (0, *moved)


def _moved(alignment: Alignment) -> Alignment:
    return tuple([None if axis is None else axis + 1 for axis in alignment])


def over_parts(
    item: KernelItem, parts: int, domain: Sequence[int], inputs: Sequence[View], result: View
) -> tuple[list[int], list[tuple[View, Alignment]]]:
    """The domain and the arrays of a kernel over parts of its last dimension, whose result has them first."""
    arrays = part_arrays([(inputs[index], alignment) for index, alignment in item.loads], parts, len(domain))
    arrays.append((result, (0, *_moved(item.stores[0]))))
    return [parts, *domain[:-1], domain[-1] // parts], arrays


def _strided(array: Array, case: CallCase, workspaces: Mapping[str, View]) -> View:
    """An array as a tensor of its own extents and strides."""
    base = case.call.arguments[array.memory][0] if isinstance(array.memory, int) else workspaces[array.memory]
    offset = base.offset_bytes + array.offset_bytes
    # What has no address, a scalar argument or numbers of elements, stays what it is.
    return base._replace(shape=array.extents, strides=array.strides, offset_bytes=offset)


def _view(array: Array, case: CallCase, workspaces: Mapping[str, View]) -> View:
    if isinstance(array.memory, int):
        view = case.call.arguments[array.memory][0]
        return view if array.shape is None else view._replace(dtype=array.dtype or view.dtype, shape=array.shape)
    view = workspaces[array.memory]
    if array.stands_for is not None:
        like = case.call.arguments[array.stands_for][0]
        return View(view.storage, like.dtype, like.shape, like.strides)
    if array.shape is None:
        return view
    return View(view.storage, array.dtype or view.dtype, array.shape, contiguous_strides(array.shape))


def _launch(step: KernelStep, case: CallCase, workspaces: Mapping[str, View], compiler: PlanCompiler[Any]) -> Launch:
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
    chosen_by: ScheduleSource = "model" if case.choice is None else case.choice.source
    return Launch(call, Choice(subject, step.schedule, step.workers, chosen_by))
