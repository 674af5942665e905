"""Binding: a program with the extents and strides of one structure becomes a plan, launches over one address table.

Binding decides, per kernel, the layout pattern, and has the device's compiler choose the schedule; in the end that
compiler makes the plan, which compiles the kernels whose pattern and schedule are new. For shapes that differ from
known ones only in extents nothing is compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from tessera.compiler.bind.arrays import Shape, Storage, View
from tessera.compiler.bind.launcher import Launcher
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch, Memory, PlanCompiler, kernel_launches, views_of
from tessera.compiler.bind.layout_views import centre, counted, layout_view, paddings
from tessera.compiler.bind.library_calls import kept_result, library_launch
from tessera.compiler.bind.memory_order import shared_order, takes_any_order
from tessera.compiler.bind.placement import (
    Part,
    part_offset,
    placed_in_results,
    places_of,
    slots_of,
    strides_before,
    strides_through,
)
from tessera.compiler.decompose.running import Decomposed
from tessera.compiler.graph.program import KernelItem, LayoutItem, LibraryItem, Program
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops.record import Movement
from tessera.runtime.memory.liveness import NOTHING_PLACED, Lifetime, place
from tessera.runtime.plans.plan import PlanOutput
from tessera.scheduling.binding.axes import UNLIMITED, Strides
from tessera.scheduling.families.registry import family_of_region

PlanT = TypeVar("PlanT")


def bind(program: Program, order: Sequence[Occurrence], compiler: PlanCompiler[PlanT]) -> tuple[PlanT, list[Choice]]:
    """The plan of a structure, given by its post-order, and the choices of the kernels that it launches.

    `program` was compiled from the structure's symbolic form.
    """
    launches, memory = placed(program, order, compiler)
    return compiler.plan(launches, memory), [launch.choice for launch in kernel_launches(launches)]


def placed(
    program: Program, order: Sequence[Occurrence], compiler: PlanCompiler[Any], alone: Collection[int] = ()
) -> tuple[Sequence[AnyLaunch], Memory]:
    """The steps of that plan, and where its tensors lie: no temporaries in the memory of the outputs in `alone`.
    Compiles no kernel.
    """
    binder = _Binder(program, order, compiler)
    binder.place()
    return binder.launches, binder.memory(alone)


def launches_of(program: Program, structure: Structure, compiler: PlanCompiler[Any]) -> list[Launch]:
    """The kernels that a plan of `structure` would launch. Compiles none."""
    return kernel_launches(steps_of(program, structure, compiler))


def steps_of(program: Program, structure: Structure, compiler: PlanCompiler[Any]) -> list[AnyLaunch]:
    """All steps that a plan of `structure` would have, in order: kernels, and calls of libraries. Compiles none."""
    binder = _Binder(program, structure.post_order(), compiler)
    binder.place()
    return list(binder.launches)


def decomposed_of(
    program: Program, structure: Structure, compiler: PlanCompiler[Any]
) -> tuple[list[AnyLaunch], list[Decomposed]]:
    """Those steps, and which kernels of the program take several of them, and why."""
    binder = _Binder(program, structure.post_order(), compiler)
    binder.place()
    return list(binder.launches), list(binder.decomposed)


def extents_of(program: Program, order: Sequence[Occurrence]) -> dict[str, int]:
    """The value of each extent name of a program, for one structure."""
    extents = {name: order[node][0].shape[dimension] for name, (node, dimension) in program.extents.items()}
    extents["1"] = 1
    return extents


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
        inputs = [self.views[value] for value in item.inputs]
        order = self._order(item, inputs)
        for value in item.outputs:
            self.views[value] = self._placed(value, order)
        outputs = [self.views[value] for value in item.outputs]
        self.launch(item, inputs, outputs)

    def _order(self, item: KernelItem, inputs: Sequence[View]) -> Strides | None:
        """The strides that the operands of a map share, or of a softmax or norm, where its results may have them."""
        rank = len(item.domain)
        by_lanes = item.reduced is None or self.compiler.largest_axis == UNLIMITED  # reductions of GPUs walk last axes
        if family_of_region(item.family).is_anchored or not by_lanes or rank < 2:
            return None
        shape = tuple([self.extents[name] for name in item.domain])
        strides = shared_order(shape, [(inputs[index], alignment) for index, alignment in item.loads])
        if strides is None or any(store != tuple(range(rank)) for store in item.stores):
            return None
        inner = next(dimension for dimension, stride in enumerate(strides) if stride == 1 != shape[dimension])
        free = [takes_any_order(value, inner, self.places.readers, self.program.roots) for value in item.outputs]
        return strides if all(free) else None

    def _placed(self, value: int, order: Strides | None) -> View:
        """Memory for a kernel's result, laid out as its reader wants it, or else in an order that its maker wants."""
        shape, dtype = self._shape(value), self.program.values[value].dtype
        chain, part = self.places.chains.get(value), self.places.parts.get(value)
        place = None if part is None else self._within(part)
        if part is not None and place is not None:
            inside = strides_through(part.views, place.strides, self._shape)
            if inside is not None:
                return place._replace(shape=shape, strides=inside)
        view = self.new(shape, dtype)
        strides = order if chain is None else strides_before(chain, self._shape)
        return view if strides is None else view._replace(strides=strides)

    def _within(self, part: Part) -> View:
        """The place of a part in what it is joined to, or padded to."""
        whole, shape = self._joined(part.joined), self._shape(part.joined.inputs[part.place])
        if part.joined.movement == "padded":
            return centre(whole, shape, self.order[part.joined.node].structure.named_attributes["before"])
        offset = part_offset(part, self._shape) * whole.strides[part.joined.axis] * whole.dtype.itemsize
        return View(whole.storage, whole.dtype, shape, whole.strides, whole.offset_bytes + offset)

    def _joined(self, item: LayoutItem) -> View:
        """The result of a concatenation or of padding, into which its parts are written."""
        known = self.views.get(item.output)
        if known is None:
            known = self.views[item.output] = self._placed(item.output, None)
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
            self.note(launch)

    def _for_library(self, view: View) -> View:
        """The view, or a copy of what torch cannot see: what has no address, or is walked backwards."""
        return self._copied(view) if view.is_backwards else self.in_memory(view)

    # -- layout operators -----------------------------------------------------------------------------------------

    def _layout(self, item: LayoutItem) -> None:
        shape = self._shape(item.output)
        if item.movement in _MADE:
            self.views[item.output] = _MADE[item.movement](self, item)
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
                place = result.offset_bytes + offset
                self.copy(part, View(result.storage, result.dtype, part.shape, result.strides, place))
            start += part.shape[axis]
        return result

    # -- memory ---------------------------------------------------------------------------------------------------

    def memory(self, alone: Collection[int] = ()) -> Memory:
        """Slots for all storages of the launches, results and temporaries in their places, none of them in the memory
        of the roots in `alone`.
        """
        roots = self.roots
        results: list[Storage] = []
        for root in roots:
            if root.storage.leaf is None and root.storage not in results:
                results.append(root.storage)
        storages = list(dict.fromkeys([view.storage for launch in self.launches for view in views_of(launch)]))
        temporaries = [s for s in storages if s.leaf is None and s not in results]
        if temporaries:
            barred = [roots[number].storage for number in alone]
            temporaries = placed_in_results(temporaries, [each for each in results if each not in barred])
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

    def _output(self, view: View, results: Sequence[Storage]) -> PlanOutput:
        structure = interning.buffer(view.shape, view.strides, view.dtype, self.compiler.device)
        return PlanOutput(results.index(view.storage), structure)


_MADE: Mapping[Movement, Callable[[_Binder, LayoutItem], View]] = {
    "joined": _Binder._concat,
    "counted": _Binder._counted,
    "padded": _Binder._pad,
}
"""Layout operators that are no views of their first operand."""
