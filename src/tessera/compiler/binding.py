"""Binding: a program with the extents and strides of one structure becomes a plan, a list of launches over one address table.

Binding decides, per kernel, the layout pattern and the schedule, and has the kernel compiled when that pair is new. For shapes
that differ from known ones only in extents nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tessera.compiler.kernels import Kernel, KernelCompiler
from tessera.compiler.layout import Strides, domain_strides, merge_axes
from tessera.compiler.program import Alignment, KernelItem, LayoutItem, Program
from tessera.compiler.specs import Pattern
from tessera.dtypes import DType
from tessera.lazy import structure as structures
from tessera.lazy.structure import Occurrence, Structure, contiguous_strides
from tessera.lazy.views import reshaped_strides
from tessera.runtime.liveness import Lifetime, place
from tessera.runtime.plan import BoundPlan, Output, Slot, Step
from tessera.scheduling.spec import Argument

Shape = tuple[int, ...]


@dataclass(eq=False)
class Storage:
    """Memory of the plan: a leaf's (`leaf` is its number), a temporary, or a result."""

    nbytes: int
    leaf: int | None = None
    first: int = -1
    last: int = -1
    slot: int = -1
    offset: int = 0


@dataclass(frozen=True)
class View:
    """A tensor: where it lies, in elements."""

    storage: Storage
    dtype: DType
    shape: Shape
    strides: Strides
    offset_bytes: int = 0
    is_scalar: bool = False


@dataclass(frozen=True)
class Call:
    """A kernel of the program applied to arrays: what is scheduled, tuned and compiled."""

    item: KernelItem
    arguments: tuple[tuple[View, tuple[int, ...]], ...]
    """Each argument's view and the extents and strides that its descriptor holds."""
    shaped: ShapedArrays


@dataclass(frozen=True)
class Launch:
    """One kernel launch before slots and arena offsets are known."""

    call: Call
    kernel: Kernel
    workers: int


def bind(program: Program, structure: Structure, compiler: KernelCompiler) -> tuple[BoundPlan, list[Kernel]]:
    """The plan of `structure`, whose symbolic form `program` was compiled from, and the kernels that it launches."""
    binder = _Binder(program, structure, compiler)
    binder.place()
    return binder.plan(), [launch.kernel for launch in binder.launches]


def launches_of(program: Program, structure: Structure, compiler: KernelCompiler) -> list[Launch]:
    """The launches that a plan of `structure` would have."""
    binder = _Binder(program, structure, compiler)
    binder.place()
    return binder.launches


class _Binder:
    def __init__(self, program: Program, structure: Structure, compiler: KernelCompiler) -> None:
        self.program, self.structure, self.compiler = program, structure, compiler
        self.order: Sequence[Occurrence] = structure.post_order()
        self.extents: Mapping[str, int] = {
            name: self.order[node].structure.shape[dimension] for name, (node, dimension) in program.extents.items()
        } | {"1": 1}
        self.views: dict[int, View] = {}
        self.launches: list[Launch] = []

    def place(self) -> None:
        """Turns every item of the program into views and launches."""
        for number, node in enumerate(self.program.leaves):
            self.views[number] = self._leaf_view(self.order[node])
        for item in self.program.items:
            if isinstance(item, KernelItem):
                self._kernel(item)
            else:
                self._layout(item)
        self.roots = [self._root_view(value) for value in self.program.roots]

    def _leaf_view(self, occurrence: Occurrence) -> View:
        structure = occurrence.structure
        storage = Storage(0, leaf=occurrence.leaf)
        return View(storage, structure.dtype, structure.shape, structure.strides, is_scalar=structure.kind == "scalar")

    def _shape(self, value: int) -> Shape:
        return tuple([self.extents[name] for name in self.program.values[value].dims])

    def _new(self, shape: Shape, dtype: DType) -> View:
        nbytes = math.prod(shape) * dtype.itemsize
        return View(Storage(nbytes), dtype, shape, contiguous_strides(shape))

    # -- kernels --------------------------------------------------------------------------------------------------

    def _kernel(self, item: KernelItem) -> None:
        for value in item.outputs:
            self.views[value] = self._new(self._shape(value), self.program.values[value].dtype)
        inputs = [self.views[value] for value in item.inputs]
        outputs = [self.views[value] for value in item.outputs]
        self.launch(item, inputs, outputs, [self.extents[name] for name in item.domain])

    def launch(self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], domain: Sequence[int]) -> None:
        """Adds the launch of a kernel over `domain`; nothing where there is nothing to write."""
        if all(0 in view.shape for view in outputs):
            return
        arrays = [(inputs[index], alignment) for index, alignment in item.loads]
        arrays += list(zip(outputs, item.stores, strict=True))
        if item.family == "contraction":
            shaped = contraction_arrays(domain, arrays, len(item.loads))
        else:
            merged = map_reduce_arrays(domain, item.reduced, arrays, len(item.loads))
            if merged is None:
                self._launch_on_copies(item, inputs, outputs, domain)
                return
            shaped = merged
        step = len(self.launches)
        words = []
        for (view, _), strides, axes in zip(arrays, shaped.strides, shaped.axes, strict=True):
            storage = view.storage
            storage.first = step if storage.first < 0 else storage.first
            storage.last = step
            words.append((view, tuple([shaped.extents[axis] for axis in axes]) + strides))
        call = Call(item, tuple(words), shaped)
        self.launches.append(Launch(call, *self.compiler.kernel(call)))

    def _launch_on_copies(
        self, item: KernelItem, inputs: Sequence[View], outputs: Sequence[View], domain: Sequence[int]
    ) -> None:
        """A reduction over several dimensions that do not merge runs over contiguous copies of its inputs."""
        copies = []
        for view in inputs:
            copy = self._new(view.shape, view.dtype)
            self.copy(view, copy)
            copies.append(copy)
        self.launch(item, copies, outputs, domain)

    def copy(self, source: View, destination: View) -> None:
        """Adds a kernel that copies one view into another of the same shape."""
        item = self.compiler.copy_item(source.dtype, source.shape)
        self.launch(item, [source], [destination], source.shape)

    # -- layout operators -----------------------------------------------------------------------------------------

    def _layout(self, item: LayoutItem) -> None:
        shape = self._shape(item.output)
        if item.operator == "concat":
            self.views[item.output] = self._concat(item, shape)
            return
        source = self.views[item.inputs[0]]
        node = self.order[item.node].structure
        if item.operator == "transpose":
            permutation = item.attributes["permutation"]
            strides = tuple(source.strides[d] for d in permutation)  # type: ignore[attr-defined]
            view = View(source.storage, source.dtype, shape, strides, source.offset_bytes)
        elif item.operator == "broadcast_to":
            lead = len(shape) - len(source.shape)
            strides = (0,) * lead + tuple(
                0 if own != wanted else stride
                for own, wanted, stride in zip(source.shape, shape[lead:], source.strides, strict=True)
            )
            view = View(source.storage, source.dtype, shape, strides, source.offset_bytes)
        elif item.operator == "slice":
            view = self._slice(source, shape, node)
        else:
            view = self._reshape(source, shape)
        self.views[item.output] = view

    def _slice(self, source: View, shape: Shape, node: Structure) -> View:
        attributes = node.named_attributes
        starts, steps = attributes["starts"], attributes["steps"]
        first = (
            sum(start * stride for start, stride in zip(starts, source.strides, strict=True)) if 0 not in shape else 0
        )
        strides = tuple(stride * step for stride, step in zip(source.strides, steps, strict=True))
        return View(source.storage, source.dtype, shape, strides, source.offset_bytes + first * source.dtype.itemsize)

    def _reshape(self, source: View, shape: Shape) -> View:
        strides = reshaped_strides(source.shape, source.strides, shape)
        if strides is None:
            contiguous = self._new(source.shape, source.dtype)
            self.copy(source, contiguous)
            return View(contiguous.storage, source.dtype, shape, contiguous_strides(shape))
        return View(source.storage, source.dtype, shape, strides, source.offset_bytes)

    def _concat(self, item: LayoutItem, shape: Shape) -> View:
        result = self._new(shape, self.program.values[item.output].dtype)
        axis = item.attributes["axis"]
        assert isinstance(axis, int)
        start = 0
        for value in item.inputs:
            part = self.views[value]
            offset = start * result.strides[axis] * result.dtype.itemsize
            self.copy(part, View(result.storage, result.dtype, part.shape, result.strides, offset))
            start += part.shape[axis]
        return result

    # -- the plan -------------------------------------------------------------------------------------------------

    def plan(self) -> BoundPlan:
        """The launches over one address table, results and temporaries in their places."""
        roots = self.roots
        results: list[Storage] = []
        for root in roots:
            if root.storage.leaf is None and root.storage not in results:
                results.append(root.storage)
        storages = list(dict.fromkeys(view.storage for launch in self.launches for view, _ in launch.call.arguments))
        temporaries = [s for s in storages if s.leaf is None and s not in results]
        layout = place([Lifetime(s.nbytes, s.first, s.last) for s in temporaries])
        slots = self._slots(storages, results, temporaries, layout.offsets)
        steps = [self._step(launch) for launch in self.launches]
        outputs = [self._output(root, results) for root in roots]
        facts = self.compiler.facts(self.launches)
        return BoundPlan(
            steps=steps,
            slots=slots,
            results=[storage.nbytes for storage in results],
            outputs=outputs,
            arena_bytes=layout.nbytes,
            facts=facts,
        )

    def _root_view(self, value: int) -> View:
        view = self.views[value]
        if view.storage.leaf is None and not view.offset_bytes:
            return view
        # A root that rewriting reduced to (a view of) an input, or a part of a temporary: results own their memory.
        copy = self._new(view.shape, view.dtype)
        self.copy(view, copy)
        return copy

    def _slots(
        self,
        storages: Sequence[Storage],
        results: Sequence[Storage],
        temporaries: Sequence[Storage],
        offsets: Sequence[int],
    ) -> list[Slot]:
        slots: list[Slot] = []
        of_leaf: dict[int, int] = {}
        for storage in storages:
            if storage.leaf is not None:
                if storage.leaf not in of_leaf:
                    of_leaf[storage.leaf] = len(slots)
                    slots.append(Slot("leaf", storage.leaf))
                storage.slot = of_leaf[storage.leaf]
        for index, storage in enumerate(results):
            storage.slot = len(slots)
            slots.append(Slot("result", index))
        if temporaries:
            for storage, offset in zip(temporaries, offsets, strict=True):
                storage.slot, storage.offset = len(slots), offset
            slots.append(Slot("arena"))
        return slots

    def _step(self, launch: Launch) -> Step:
        descriptors: list[int] = []
        for view, words in launch.call.arguments:
            descriptors.append(view.storage.slot)
            if not view.is_scalar:
                descriptors.append(view.storage.offset + view.offset_bytes)
                descriptors += words
        kernel = launch.kernel
        return Step(kernel.loaded, tuple(descriptors), launch.workers, kernel.workspace_bytes)

    def _output(self, view: View, results: Sequence[Storage]) -> Output:
        return Output(results.index(view.storage), structures.buffer(view.shape, view.strides, view.dtype))


@dataclass(frozen=True)
class ShapedArrays:
    """A kernel's arrays over merged axes: the pattern to generate code for, and the numbers for its descriptors."""

    pattern: Pattern
    extents: Mapping[str, int]
    axes: tuple[tuple[str, ...], ...]
    strides: tuple[tuple[int, ...], ...]


def map_reduce_arrays(
    domain: Sequence[int], reduced: tuple[int, int] | None, arrays: Sequence[tuple[View, Alignment]], loads: int
) -> ShapedArrays | None:
    """Merges the domain of a map or reduction; None when the reduced dimensions do not merge into one axis."""
    rank = len(domain)
    strides = [domain_strides(view.strides, alignment, rank) for view, alignment in arrays]
    first, last = reduced if reduced is not None else (rank, rank)
    before = merge_axes(domain[:first], [s[:first] for s in strides])
    middle = merge_axes(domain[first:last], [s[first:last] for s in strides])
    after = merge_axes(domain[last:], [s[last:] for s in strides])
    if len(middle.extents) > 1:
        return None
    names, extents, columns = [], [], []

    def take(prefix: str, axes: Any, indices: range) -> None:
        for i in indices:
            names.append(f"{prefix}{i}")
            extents.append(axes.extents[i])
            columns.append([s[i] for s in axes.strides])

    by_rows = last == rank and reduced is not None
    if reduced is None:
        lane_source, inner = before, range(0)
        outer_range = range(max(len(before.extents) - 1, 0))
    else:
        lane_source = middle if by_rows else after
        outer_range = range(len(before.extents))
        inner = range(max(len(after.extents) - 1, 0))
    take("o", before, outer_range)
    take("i", after, inner)
    outer = tuple(names)

    def take_one(name: str, axes: Any, dimensions: range) -> None:
        """The last axis of `axes`; where all of its dimensions have extent 1, one that is walked by who has them."""
        names.append(name)
        extents.append(axes.extents[-1] if axes.extents else 1)
        if axes.extents:
            columns.append([s[-1] for s in axes.strides])
        else:
            columns.append([int(any(d in alignment for d in dimensions)) for _, alignment in arrays])

    if reduced is not None and not by_rows:
        take_one("r", middle, range(first, last))
    lane_dimensions = range(rank) if reduced is None else range(first, last) if by_rows else range(last, rank)
    take_one("c", lane_source, lane_dimensions)
    return _shaped(names, extents, columns, arrays, loads, outer, reduced is not None, by_rows)


def _shaped(
    names: Sequence[str],
    extents: Sequence[int],
    columns: Sequence[Sequence[int]],
    arrays: Sequence[tuple[View, Alignment]],
    loads: int,
    outer: tuple[str, ...],
    reduces: bool,
    by_rows: bool,
) -> ShapedArrays:
    arguments, axes, strides = [], [], []
    for index, (view, _) in enumerate(arrays):
        if view.is_scalar:
            arguments.append(Argument(view.dtype, is_scalar=True))
            axes.append(())
            strides.append(())
            continue
        walked = [i for i, column in enumerate(columns) if column[index] != 0]
        own = tuple(columns[i][index] for i in walked)
        # Lowerings read an axis' extent from an argument that walks it; an extent of 1 may be walked by none.
        for i, column in enumerate(columns):
            carrier = 0 if names[i] == "r" or (by_rows and names[i] == "c") else loads
            if index == carrier and not any(column):
                walked.append(i)
                own += (1,)
        labels = tuple(names[i] for i in walked)
        static = tuple(1 if label == "c" and stride == 1 else None for label, stride in zip(labels, own, strict=True))
        arguments.append(Argument(view.dtype, labels, static))
        axes.append(labels)
        strides.append(own)
    pattern = Pattern(tuple(arguments), outer, ("c" if by_rows else "r") if reduces else None, "c", True)
    return ShapedArrays(pattern, dict(zip(names, extents, strict=True)), tuple(axes), tuple(strides))


def contraction_arrays(domain: Sequence[int], arrays: Sequence[tuple[View, Alignment]], loads: int) -> ShapedArrays:
    """Merges the batch dimensions of a matrix product; its last three domain dimensions are m, n and k."""
    rank = len(domain)
    strides = [domain_strides(view.strides, alignment, rank) for view, alignment in arrays]
    batch = merge_axes(domain[: rank - 3], [s[: rank - 3] for s in strides])
    names = [f"b{i}" for i in range(len(batch.extents))]
    extents = dict(zip((*names, "m", "n", "k"), (*batch.extents, *domain[rank - 3 :]), strict=True))
    carried_k = any(s[rank - 1] for s in strides)
    arguments, axes, numbers = [], [], []
    for index, ((view, alignment), own) in enumerate(zip(arrays, strides, strict=True)):
        if view.is_scalar:
            arguments.append(Argument(view.dtype, is_scalar=True))
            axes.append(())
            numbers.append(())
            continue
        row = dict(zip((*names, "m", "n", "k"), (*batch.strides[index], *own[rank - 3 :]), strict=True))
        forced = {"m", "n"} if index >= loads else {"k"} if index == 0 and not carried_k else set()
        single = {
            name
            for name, place in (("m", rank - 3), ("n", rank - 2), ("k", rank - 1))
            if place in alignment and extents[name] == 1
        }
        labels = tuple(name for name in row if row[name] != 0 or name in forced or name in single)
        values = tuple(row[name] or 1 for name in labels)
        unit = _unit_label(labels, values)
        arguments.append(Argument(view.dtype, labels, tuple(1 if label == unit else None for label in labels)))
        axes.append(labels)
        numbers.append(values)
    pattern = Pattern(tuple(arguments), tuple(names), None, "n", True)
    return ShapedArrays(pattern, extents, tuple(axes), tuple(numbers))


def _unit_label(labels: tuple[str, ...], strides: tuple[int, ...]) -> str | None:
    """The axis that code may treat as contiguous: k before n before m, as each operand's inner axis comes last."""
    contiguous = [label for label, stride in zip(labels, strides, strict=True) if stride == 1]
    order = ("n", "k", "m") if "n" in labels else ("k", "m")
    return next((label for label in order if label in contiguous), None)
