"""Collecting launches: a kernel over views becomes a call over merged axes under a schedule, in one step or several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tessera.compiler.bind.arrays import Call, Shape, Storage, View
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, PlanCompiler, kernel_launches, views_of
from tessera.compiler.bind.layout_views import words_of
from tessera.compiler.decompose.cases import CallCase, decomposition_of
from tessera.compiler.decompose.running import Decomposed, over_parts, partial_item, run
from tessera.compiler.graph.program import KernelItem, Program, ValueInfo
from tessera.dtypes import DType
from tessera.lazy.structures.structure import contiguous_strides
from tessera.scheduling.binding.arrays import Arrays, Limits, Pattern, ShapedArrays
from tessera.scheduling.families.decomposition import Decomposition, Parts, Steps
from tessera.scheduling.families.registry import family_of_region
from tessera.scheduling.language.schedule import Schedule

UNSHAPED: Final = ShapedArrays(Pattern((), (), None, "", True), {}, (), ())
"""The arrays of a call whose operands have no axes in common."""


def _described(arrays: Arrays[View], shaped: ShapedArrays) -> tuple[tuple[View, tuple[int, ...]], ...]:
    """Each argument's view with the extents and strides that its descriptor holds."""
    return tuple(
        [
            (view, tuple([shaped.extents[axis] for axis in axes]) + strides)
            for (view, _), strides, axes in zip(arrays, shaped.strides, shaped.axes, strict=True)
        ]
    )


class Launcher:
    """Collects launches over views. `extents` gives the value of each extent name."""

    def __init__(self, compiler: PlanCompiler[Any], extents: Mapping[str, int]) -> None:
        self.compiler, self.extents = compiler, extents
        self.limits = Limits(compiler.target, compiler.largest_axis)
        self.launches: list[AnyLaunch] = []
        self.decomposed: list[Decomposed] = []

    def shape_of(self, value: ValueInfo) -> Shape:
        """The extents of a program's value."""
        return tuple([self.extents[name] for name in value.dims])

    def new(self, shape: Shape, dtype: DType) -> View:
        """A contiguous tensor in memory of the plan."""
        nbytes = math.prod(shape) * dtype.itemsize
        return View(Storage(nbytes), dtype, shape, contiguous_strides(shape))

    def launch(
        self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], schedule: Schedule | None = None
    ) -> None:
        """Adds the launch of a kernel under `schedule`, or the one chosen for it; none where nothing is written.

        What the device does not make in one kernel, a schedule that says `fusion=False` and stages that are faster put
        other kernels in its place (`scheduling/families/decomposition.py`).
        """
        first = len(self.launches)
        domain = [self.extents[name] for name in item.domain]
        if all([0 in view.shape for view in outputs]):  # noqa: C419 - on the path of binding
            return
        arrays: Arrays[View] = [
            *[(inputs[index], alignment) for index, alignment in item.loads],
            *zip(outputs, item.stores, strict=True),
        ]
        laid_out = self._laid_out(item, domain, arrays)
        if laid_out is None:
            call = Call(item, tuple([(view, ()) for view in inputs]), UNSHAPED)
            case = CallCase(self, call, inputs, outputs, schedule, first)
            found = decomposition_of(case, "layout")
            assert found is not None, f"{item.name}: no kernel takes these operands"
            self._decompose(found, case, None)
            return
        arrays, shaped = laid_out
        call = self.compiler.over_constants(Call(item, _described(arrays, shaped), shaped))
        self.decide(CallCase(self, call, inputs, outputs, schedule, first))

    def decide(self, case: CallCase, whole: Call | None = None) -> None:
        """Adds the launches of a call, which is a step of `whole`: its own, or those of what runs in its place."""
        found = decomposition_of(case, "call")
        if found is None:
            case.choice = self.compiler.choose(case.call, case.asked)
            found = decomposition_of(case, "schedule")
        if found is not None:
            self._decompose(found, case, whole)
            return
        self.note(Launch(case.call, case.chosen, whole))

    def _decompose(self, decomposition: Decomposition, case: CallCase, whole: Call | None) -> None:
        # The call is what has a schedule to be tuned, where its space has that under which it is decomposed.
        if whole is None and decomposition.when == "schedule" and decomposition.proposes is None:
            whole = case.call
        workspaces = run(decomposition.steps(case), case, whole, self)
        self.decomposed.append(Decomposed(case.call.item, decomposition, case.first, len(self.launches), workspaces))

    def rehearsed(self, case: CallCase, steps: Steps) -> list[Launch]:
        """The launches of steps in the place of a call, of which nothing is kept."""
        rehearsal = _Rehearsal(self.compiler, self.extents)
        run(steps, case, None, rehearsal)
        return kernel_launches(rehearsal.launches)

    def in_memory(self, view: View) -> View:
        """The view itself, or a copy of what has no address: a scalar argument, which lies in the address table, and
        numbers of elements, which lie nowhere.
        """
        return self._copied(view) if view.is_scalar or view.is_counted else view

    def _add(self, call: Call, choice: Choice) -> None:
        self.note(Launch(call, choice))

    def note(self, launch: AnyLaunch) -> None:
        """Adds a launch."""
        step = len(self.launches)
        for view in views_of(launch):
            storage = view.storage
            storage.first = step if storage.first < 0 else storage.first
            storage.last = step
        self.launches.append(launch)

    def launch_parts(self, step: Parts, case: CallCase, result: View, whole: Call | None) -> None:
        """Adds the launch of a kernel over parts of a call's operands, as a step of `whole`."""
        item = partial_item(case.call.item, step.kernel)
        domain = [self.extents[name] for name in item.domain]
        laid_out = self._laid_out(item, *over_parts(item, step.count, domain, case.inputs, result))
        assert laid_out is not None
        arrays, shaped = laid_out
        call = Call(item, _described(arrays, shaped), shaped)
        self.note(Launch(call, self.compiler.choose(call, step.schedule), whole))

    def run_function(
        self, program: Program, inputs: Sequence[View], outputs: Sequence[View], extents: Mapping[str, int]
    ) -> None:
        """Runs a program, whose dimensions have `extents` beside those that are known."""
        outer, self.extents = self.extents, {**self.extents, **extents}
        self._run(program, {**dict(enumerate(inputs)), **dict(zip(program.roots, outputs, strict=True))}, None, "")
        self.extents = outer

    def run_instead(
        self,
        first: int,
        program: Program,
        inputs: Sequence[View],
        outputs: Sequence[View],
        schedule: Schedule | None,
        family: str,
    ) -> None:
        """Other kernels in a fused one's place, whose launches from `first` on go: the new ones prepare their own. That
        of the fused kernel's own `family`, what it was fused around, keeps its schedule, if any.
        """
        del self.launches[first:]
        views = {**dict(enumerate(inputs)), **dict(zip(program.roots, outputs, strict=True))}
        self._run(program, views, schedule, family)

    def _run(self, program: Program, views: dict[int, View], schedule: Schedule | None, family: str) -> None:
        """The kernels of a program over `views` of its arguments and roots; one of `family` under `schedule`."""
        for item in program.items:
            assert isinstance(item, KernelItem)
            for value in item.outputs:
                if value not in views:
                    views[value] = self.new(self.shape_of(program.values[value]), program.values[value].dtype)
            keep = schedule if item.family == family and family_of_region(family).is_anchored else None
            self.launch(item, [views[v] for v in item.inputs], [views[v] for v in item.outputs], keep)

    def is_laid_out(self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View]) -> bool:
        """Whether a kernel takes operands as they lie."""
        arrays = [(inputs[index], alignment) for index, alignment in item.loads]
        arrays += list(zip(outputs, item.stores, strict=True))
        return self._laid_out(item, [self.extents[name] for name in item.domain], arrays) is not None

    def _laid_out(
        self, item: KernelItem, domain: Sequence[int], arrays: Arrays[View]
    ) -> tuple[Arrays[View], ShapedArrays] | None:
        """The arrays of a kernel over merged axes, with copies of what it cannot read as it lies; None where the
        operands have no axes in common.
        """
        lay_out = family_of_region(item.family).lay_out
        assert lay_out is not None
        return lay_out(item, domain, arrays, self.limits, self._copied)

    def _copied(self, view: View, strides: Shape | None = None) -> View:
        """A copy of a view in memory of the plan, in these strides; contiguous by default."""
        copy = self.new(view.shape, view.dtype)
        if strides is not None:
            reached = 1 + sum((extent - 1) * stride for extent, stride in zip(view.shape, strides, strict=True))
            copy = View(Storage(reached * view.dtype.itemsize), view.dtype, view.shape, strides)
        self.copy(view, copy)
        return copy

    def copy(self, source: View, destination: View) -> None:
        """Adds a kernel that copies one view into another of the same shape."""
        source, destination = words_of(source), words_of(destination)
        item = self.compiler.copy_item(source.dtype, source.shape)
        names = {name: extent for name, extent in zip(item.domain, source.shape, strict=True) if name != "1"}
        outer, self.extents = self.extents, {**names, "1": 1}
        self.launch(item, [source], [destination])
        self.extents = outer


class _Rehearsal(Launcher):
    """Finds launches without placing anything in memory."""

    def note(self, launch: AnyLaunch) -> None:
        """Adds a launch."""
        self.launches.append(launch)


def is_decomposed(call: Call, schedule: Schedule, compiler: PlanCompiler[Any]) -> bool:
    """Whether a call takes several launches under a schedule that somebody asks for."""
    case = CallCase(Launcher(compiler, {}), call, (), (), schedule, 0)
    case.choice = compiler.choose(call, schedule)
    return decomposition_of(case, "schedule") is not None
