"""Binding: a program with the extents and strides of one structure becomes a plan, launches over one address table.

Binding decides, per kernel, the layout pattern, and has the device's compiler choose the schedule; in the end that
compiler makes the plan, which compiles the kernels whose pattern and schedule are new. For shapes that differ from
known ones only in extents nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from tessera.compiler.arrays import (
    Call,
    Shape,
    ShapedArrays,
    Storage,
    View,
    attention_arrays,
    contraction_arrays,
    map_reduce_arrays,
)
from tessera.compiler.columns import TURNED, is_turned, with_columns_along_k
from tessera.compiler.convolution import convolution_arrays
from tessera.compiler.launches import (
    AnyLaunch,
    Choice,
    Launch,
    Memory,
    PlanCompiler,
    kernel_launches,
    views_of,
)
from tessera.compiler.layout_views import centre, counted, layout_view, paddings, words_of
from tessera.compiler.library_calls import kept_result, library_launch
from tessera.compiler.placement import part_offset, placed_in_results, places_of, slots_of, strides_before
from tessera.compiler.program import Alignment, KernelItem, LayoutItem, LibraryItem, Program, ValueInfo
from tessera.compiler.split_k import PARTS, part_arrays, split_product
from tessera.compiler.window_arrays import window_arrays, with_taps_along_lanes
from tessera.dtypes import DType
from tessera.errors import ScheduleError
from tessera.lazy import structure as structures
from tessera.lazy.occurrences import Occurrence
from tessera.lazy.structure import Structure, contiguous_strides
from tessera.rewrite.groups import PRODUCTS
from tessera.runtime.liveness import NOTHING_PLACED, Lifetime, place
from tessera.runtime.plan import Output
from tessera.scheduling.schedule import Schedule

Arrays: TypeAlias = Sequence[tuple[View, Alignment]]
"""What a kernel reads and then what it writes, and how each lies over its domain."""

FAMILY_ARRAYS: Mapping[str, Callable[[KernelItem, Sequence[int], Arrays], ShapedArrays]] = {
    "attention": lambda item, domain, arrays: attention_arrays(domain, arrays, len(item.loads)),
    "contraction": lambda item, domain, arrays: contraction_arrays(domain, arrays, len(item.loads)),
    TURNED: lambda item, domain, arrays: contraction_arrays(domain, arrays, len(item.loads), True),
    "convolution": convolution_arrays,
    "window": lambda item, domain, arrays: window_arrays(domain, arrays, len(item.loads)),
}
"""Family of a kernel -> its arrays over merged axes, of the extents of its domain; those of maps and reductions have
`map_reduce_arrays`.
"""

PlanT = TypeVar("PlanT")


def bind(program: Program, order: Sequence[Occurrence], compiler: PlanCompiler[PlanT]) -> tuple[PlanT, list[Choice]]:
    """The plan of a structure, given by its post-order, and the choices of the kernels that it launches.

    `program` was compiled from the structure's symbolic form.
    """
    binder = _Binder(program, order, compiler)
    binder.place()
    plan = compiler.plan(binder.launches, binder.memory())
    return plan, [launch.choice for launch in kernel_launches(binder.launches)]


def launches_of(program: Program, structure: Structure, compiler: PlanCompiler[Any]) -> list[Launch]:
    """The kernels that a plan of `structure` would launch. Compiles none."""
    binder = _Binder(program, structure.post_order(), compiler)
    binder.place()
    return kernel_launches(binder.launches)


def extents_of(program: Program, order: Sequence[Occurrence]) -> dict[str, int]:
    """The value of each extent name of a program, for one structure."""
    extents = {name: order[node][0].shape[dimension] for name, (node, dimension) in program.extents.items()}
    extents["1"] = 1
    return extents


def _described(
    arrays: Sequence[tuple[View, Alignment]], shaped: ShapedArrays
) -> tuple[tuple[View, tuple[int, ...]], ...]:
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
        self.launches: list[AnyLaunch] = []

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

        Under a schedule that says `fusion=False` the kernel's parts are launched instead.
        """
        domain = [self.extents[name] for name in item.domain]
        if all([0 in view.shape for view in outputs]):  # noqa: C419 - on the path of binding
            return
        arrays = [(inputs[index], alignment) for index, alignment in item.loads]
        arrays += list(zip(outputs, item.stores, strict=True))
        if item.family == "window":
            arrays = with_taps_along_lanes(arrays, self._copied)
        if item.family in FAMILY_ARRAYS:
            arrays = [(self._readable(view, place, item), place) for view, place in arrays]
            layout = item.family
            if layout == "contraction" and is_turned(item, domain, arrays, self.compiler.few_columns):
                layout, arrays = TURNED, with_columns_along_k(item, domain, arrays, self._copied)
            shaped = FAMILY_ARRAYS[layout](item, domain, arrays)
        else:
            merged = map_reduce_arrays(domain, item.reduced, arrays, len(item.loads), self.compiler.largest_axis)
            if merged is None:
                self._launch_on_copies(item, inputs, outputs, schedule)
                return
            shaped = merged
        call = self.compiler.over_constants(Call(item, _described(arrays, shaped), shaped))
        choice = self.compiler.choose(call, schedule)
        parts = None if choice.schedule.get("fusion", True) else self.compiler.parts(item)
        if parts is not None:
            self._launch_parts(parts, inputs, outputs, choice.schedule)
            return
        if choice.schedule.get(PARTS, 1) != 1:
            self._launch_split(item, inputs, outputs, choice.schedule)
            return
        for step in self.compiler.steps(call, choice, self.new):
            self._note(step)

    def _readable(self, view: View, alignment: Alignment, item: KernelItem) -> View:
        """The view, or a copy in memory of numbers that a product or attention reads for more than its result."""
        rank = len(item.stores[0])
        inside = item.family == "contraction" and all(axis is None or axis < rank for axis in alignment)
        return view if inside or not view.is_counted else self.in_memory(view)

    def in_memory(self, view: View) -> View:
        """The view itself, or a copy of what has no address: a scalar argument, which lies in the address table, and
        numbers of elements, which lie nowhere.
        """
        return self._copied(view) if view.is_scalar or view.is_counted else view

    def _add(self, call: Call, choice: Choice) -> None:
        self._note(Launch(call, choice))

    def _note(self, launch: AnyLaunch) -> None:
        step = len(self.launches)
        for view in views_of(launch):
            storage = view.storage
            storage.first = step if storage.first < 0 else storage.first
            storage.last = step
        self.launches.append(launch)

    def _launch_split(
        self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], schedule: Schedule
    ) -> None:
        """A product whose K is split: its parts as a batch of products, and what adds them up."""
        split, parts = split_product(item), schedule.integer(PARTS)
        partial, rest = split.partial, split.rest
        domain = [self.extents[name] for name in partial.domain]
        if domain[-1] % parts:  # what the rule says; here wrong values would come of it
            raise ScheduleError(
                f"{item.name}: K of {domain[-1]} is not cut into {parts} equal parts", hints=["rule split-k"]
            )
        outer, self.extents = self.extents, {**self.extents, PARTS: parts}
        workspace = self.new(self.shape_of(rest.values[0]), split.workspace)
        arrays = part_arrays([(inputs[index], alignment) for index, alignment in partial.loads], parts, len(domain))
        arrays.append((workspace, (0, *[None if axis is None else axis + 1 for axis in partial.stores[0]])))
        shaped = contraction_arrays([parts, *domain[:-1], domain[-1] // parts], arrays, len(partial.loads))
        call = Call(partial, _described(arrays, shaped), shaped)
        self._add(call, self.compiler.choose(call, schedule.replace(split_k=1)))
        views = {0: workspace, **dict(enumerate(inputs, 1)), **dict(zip(rest.roots, outputs, strict=True))}
        self._run(rest, views, None)
        self.extents = outer

    def _launch_parts(
        self, parts: Program, inputs: Sequence[View], outputs: Sequence[View], schedule: Schedule
    ) -> None:
        """The operations of a fused kernel one by one; the matrix product among them keeps the kernel's schedule."""
        self._run(parts, {**dict(enumerate(inputs)), **dict(zip(parts.roots, outputs, strict=True))}, schedule)

    def _run(self, program: Program, views: dict[int, View], schedule: Schedule | None) -> None:
        """The kernels of a program over `views` of its arguments and roots; a product among them under `schedule`."""
        for item in program.items:
            assert isinstance(item, KernelItem)
            for value in item.outputs:
                info = program.values[value]
                views.setdefault(value, self.new(self.shape_of(info), info.dtype))
            keep = schedule if item.family in (*PRODUCTS, "window") else None
            self.launch(item, [views[v] for v in item.inputs], [views[v] for v in item.outputs], keep)

    def _launch_on_copies(
        self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], schedule: Schedule | None
    ) -> None:
        """A reduction over several dimensions that do not merge runs over contiguous copies of its inputs."""
        self.launch(item, [self._copied(view) for view in inputs], outputs, schedule)

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


class _Binder(Launcher):
    def __init__(self, program: Program, order: Sequence[Occurrence], compiler: PlanCompiler[Any]) -> None:
        self.program, self.order = program, order
        super().__init__(compiler, extents_of(program, order))
        self.views: dict[int, View] = {}
        self.places = places_of(program)

    def place(self) -> None:
        """Turns every item of the program into views and launches."""
        for number, node in enumerate(self.program.leaves):
            self.views[number] = self._leaf_view(self.order[node])
        for item in self.program.items:
            if isinstance(item, KernelItem):
                self._kernel(item)
            elif isinstance(item, LayoutItem):
                self._layout(item)
            else:
                self._library(item)
        self.roots = [self._root_view(value) for value in self.program.roots]

    def _leaf_view(self, occurrence: Occurrence) -> View:
        structure = occurrence.structure
        storage = Storage(0, occurrence.leaf, frozen=structure.frozen)
        return View(storage, structure.dtype, structure.shape, structure.strides, 0, structure.kind == "scalar")

    def _shape(self, value: int) -> Shape:
        return self.shape_of(self.program.values[value])

    # -- kernels --------------------------------------------------------------------------------------------------

    def _kernel(self, item: KernelItem) -> None:
        for value in item.outputs:
            self.views[value] = self._placed(value)
        inputs = [self.views[value] for value in item.inputs]
        outputs = [self.views[value] for value in item.outputs]
        self.launch(item, inputs, outputs)

    def _placed(self, value: int) -> View:
        """Memory for a kernel's result, laid out as its reader wants it."""
        shape, dtype = self._shape(value), self.program.values[value].dtype
        chain, part = self.places.chains.get(value), self.places.parts.get(value)
        if part is not None:
            whole = self._joined(part.joined)
            if part.joined.operator == "pad":
                return centre(whole, shape, self.order[part.joined.node].structure.named_attributes["before"])
            offset = part_offset(part, self._shape) * whole.strides[part.joined.axis] * dtype.itemsize
            return View(whole.storage, dtype, shape, whole.strides, offset)
        view = self.new(shape, dtype)
        strides = None if chain is None else strides_before(chain, self._shape)
        return view if strides is None else view._replace(strides=strides)

    def _joined(self, item: LayoutItem) -> View:
        """The result of a concatenation or of padding, into which its parts are written."""
        known = self.views.get(item.output)
        if known is None:
            known = self.new(self._shape(item.output), self.program.values[item.output].dtype)
            self.views[item.output] = known
        return known

    def _library(self, item: LibraryItem) -> None:
        inputs = [self._for_library(self.views[value]) for value in item.inputs]
        node = self.order[item.node].structure
        kept = kept_result(node, inputs)
        if kept is not None:
            (value,) = item.outputs.values()
            self.views[value] = kept
            return
        launch = library_launch(item, node, inputs, self.new)
        for view, name in zip(launch.outputs, launch.operator.joint or (launch.operator.name,), strict=True):
            if name in item.outputs:
                self.views[item.outputs[name]] = view
        if any([0 not in view.shape for view in launch.outputs]):  # noqa: C419 - on the path of binding
            self._note(launch)

    def _for_library(self, view: View) -> View:
        """The view, or a copy of what torch cannot see: what has no address, or is walked backwards."""
        forwards = all([stride >= 0 for stride in view.strides])  # noqa: C419 - on the path of binding
        return self.in_memory(view) if forwards else self._copied(view)

    # -- layout operators -----------------------------------------------------------------------------------------

    def _layout(self, item: LayoutItem) -> None:
        shape = self._shape(item.output)
        if item.operator in _MADE:
            self.views[item.output] = _MADE[item.operator](self, item)
            return
        source = self.in_memory(self.views[item.inputs[0]])
        view = layout_view(item, source, shape, self.order[item.node].structure)
        if view is None:
            view = layout_view(item, self._copied(source), shape, self.order[item.node].structure)
            assert view is not None
        self.views[item.output] = view

    def _counted(self, item: LayoutItem) -> View:
        return counted(self._shape(item.output))

    def _pad(self, item: LayoutItem) -> View:
        """Copies what is padded, unless it was written in its place, and then what goes around it."""
        result, attributes = self._joined(item), self.order[item.node].structure.named_attributes
        source, *value = [self.views[value] for value in item.inputs]
        if source.storage is not result.storage:
            self.copy(source, centre(result, source.shape, attributes["before"]))
        fill = self.in_memory(value[0]) if value else None
        for copied, target in paddings(result, source.shape, attributes["before"], attributes["mode"], fill):
            self.copy(copied, target)
        return result

    def _concat(self, item: LayoutItem) -> View:
        """Copies the parts that have not been written in their places."""
        result, axis, start = self._joined(item), item.axis, 0
        for value in item.inputs:
            part = self.views[value]
            offset = start * result.strides[axis] * result.dtype.itemsize
            if part.storage is not result.storage:
                self.copy(part, View(result.storage, result.dtype, part.shape, result.strides, offset))
            start += part.shape[axis]
        return result

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory(self) -> Memory:
        """Slots for all storages of the launches, results and temporaries in their places."""
        roots = self.roots
        results: list[Storage] = []
        for root in roots:
            if root.storage.leaf is None and root.storage not in results:
                results.append(root.storage)
        storages = list(dict.fromkeys([view.storage for launch in self.launches for view in views_of(launch)]))
        temporaries = [s for s in storages if s.leaf is None and s not in results]
        temporaries = placed_in_results(temporaries, results) if temporaries else temporaries
        layout = place([Lifetime(s.nbytes, s.first, s.last) for s in temporaries]) if temporaries else NOTHING_PLACED
        slots, derived = slots_of(storages, results, temporaries, layout.offsets)
        outputs = [self._output(root, results) for root in roots]
        return Memory(slots, [storage.nbytes for storage in results], outputs, layout.nbytes, derived)

    def _root_view(self, value: int) -> View:
        view = self.views[value]
        repeated = any([not stride and size > 1 for size, stride in zip(view.shape, view.strides, strict=True)])  # noqa: C419
        # A root that rewriting reduced to (a view of) an input, a part of a temporary, or one element repeated: results
        # own their memory, and may be written to.
        owned = view.storage.leaf is None and not (view.offset_bytes or view.is_counted or repeated)
        return view if owned else self._copied(view)

    def _output(self, view: View, results: Sequence[Storage]) -> Output:
        structure = structures.buffer(view.shape, view.strides, view.dtype, self.compiler.device)
        return Output(results.index(view.storage), structure)


_MADE: Mapping[str, Callable[[_Binder, LayoutItem], View]] = {
    "concat": _Binder._concat,
    "iota": _Binder._counted,
    "pad": _Binder._pad,
}
"""Layout operators that are no views of their first operand."""
