"""What a partition does for sizes that it has not seen, of what was recorded when it was bound for others.

The partition is bound once more with symbolic sizes (`lazy/symbols`), those that the graph has as symbols: rows,
structures, layouts and binding itself are what they always are. What comes of it holds for all sizes that meet the
conditions, and binding for those takes a few comparisons and numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

from tessera.compiler.entry import Template, plan_template
from tessera.integrations.torch.graphs.extents import Extents, UnknownSize
from tessera.integrations.torch.mapping import Unsupported
from tessera.integrations.torch.options import CompileOptions
from tessera.integrations.torch.partitions.binding import PartitionWork, WrittenPartition
from tessera.integrations.torch.partitions.layouts import Layout
from tessera.integrations.torch.partitions.outputs import Computed, Given, Outputs
from tessera.lazy import evaluation, policy
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Plan, Structure
from tessera.lazy.symbols.assumptions import LEAST, Assumptions
from tessera.lazy.symbols.functions import holds, numbers_of
from tessera.lazy.symbols.integers import is_symbolic, symbolic_in, value_of


class ReboundPartition:
    """What a partition does for one layout of its inputs, as recorded for others. Thread-safe."""

    is_new = False
    """Whether it is to be recorded."""

    def __init__(self, recording: PartitionRecording, plan: Plan, outputs: Outputs) -> None:
        self._recording, self._plan, self.outputs = recording, plan, outputs

    @property
    def is_current(self) -> bool:
        """Whether the plan may be run here and now as it is."""
        return policy.is_current(self._plan.threads) and self._recording.is_current

    def __call__(self, values: Sequence[Any], leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The outputs, of the inputs' values and their leaves."""
        given = tuple([leaves[place] if own is None else own for place, own in self._recording.leaves])
        if evaluation.before_run is not None:
            evaluation.before_run()
        return self.outputs(values, self._plan.run(given))


class _Input(NamedTuple):
    """What an input has to be: of numbers the number itself, of tensors the structure, whose sizes may be symbolic."""

    leaf: Any

    def alike(self, leaf: Any) -> bool:
        """Whether another input is the same but for sizes."""
        mine = self.leaf
        if not isinstance(mine, Structure):
            return is_symbolic(mine) or (type(leaf) is type(mine) and bool(leaf == mine))
        if not isinstance(leaf, Leaf):
            return False
        other = leaf.structure
        return mine is other or (
            mine.dtype is other.dtype
            and mine.kind == other.kind
            and mine.device == other.device
            and mine.frozen == other.frozen
            and len(mine.shape) == len(other.shape)
        )


class PartitionRecording:
    """What a partition does for all sizes that meet some conditions."""

    def __init__(self, work: PartitionWork, leaves: Sequence[Any], options: CompileOptions) -> None:
        """Raises Unrecorded, and what rows raise, where there is nothing that holds for other sizes."""
        assumptions = Assumptions()
        self._sources: list[Callable[[Sequence[Any]], int]] = []
        extents = self._extents(work, leaves, assumptions)
        known = interning.interned_count()
        try:
            metas = [node.meta.get("val") for node in work.inputs]
            inputs = [_symbolic_input(meta, leaf, extents) for meta, leaf in zip(metas, leaves, strict=True)]
            written = WrittenPartition(
                work, [Placeholder(each) if isinstance(each, Structure) else each for each in inputs], extents
            )
            targets = written.targets([each if isinstance(each, Structure) else None for each in inputs])
            if written.structure is None or any(is_symbolic(leaf.address) for _, leaf in written.leaves if leaf):
                raise Unrecorded
            with options.in_force():
                template = plan_template(written.structure, targets, assumptions)
        finally:
            interning.forget_symbolic(known)
        if template is None or assumptions.is_pinned:
            raise Unrecorded
        self._template: Template = template
        self.leaves = written.leaves
        self._outputs = written.outputs.outputs
        walks = [_walk(each) for each in inputs]
        moving = [any(True for _ in symbolic_in(walk)) for walk in walks]
        self._fixed = [(place, each, _Input(each)) for place, each in enumerate(inputs) if not moving[place]]
        self._moving = [(place, _Input(each)) for place, each in enumerate(inputs) if moving[place]]
        self._holds = holds(assumptions)
        self._walks = numbers_of(assumptions, tuple(walks[place] for place, _ in self._moving))
        self._layouts = numbers_of(
            assumptions,
            tuple(None if each.layout is None else (each.layout.shape, each.layout.strides) for each in self._outputs),
        )

    @property
    def is_current(self) -> bool:
        """Whether its plans are what would be planned now."""
        return self._template.is_current

    def _extents(self, work: PartitionWork, leaves: Sequence[Any], assumptions: Assumptions) -> Extents:
        """The sizes of the graph that the inputs tell, those from 2 on as symbolic ones."""
        known: dict[Any, int] = {}
        for place, (node, leaf) in enumerate(zip(work.inputs, leaves, strict=True)):
            meta = node.meta.get("val")
            sizes = meta.shape if isinstance(meta, torch.Tensor) else (meta,)
            for axis, size in enumerate(sizes):
                if not isinstance(size, torch.SymInt) or not size.node.expr.is_Symbol or size.node.expr in known:
                    continue
                value = leaf.structure.shape[axis] if isinstance(leaf, Leaf) else leaf
                if type(value) is not int or value < LEAST:
                    known[size.node.expr] = value
                    continue
                known[size.node.expr] = assumptions.size(value)
                self._sources.append(_shape_at(place, axis) if isinstance(leaf, Leaf) else _number_at(place))
        if not self._sources:
            raise Unrecorded
        return Extents(known)

    def bind(self, leaves: Sequence[Any], compiles: bool = True) -> ReboundPartition | None:
        """What the partition does for inputs that lie as these; None where they do not meet the conditions, and unless
        it `compiles` where a kernel is missing. Raises what compiling raises.
        """
        for place, own, mine in self._fixed:
            leaf = leaves[place]
            if type(leaf) is Leaf and leaf.structure is own:
                continue  # a parameter, as nearly always
            if not mine.alike(leaf) or _walk(leaf) != _walk(own):
                return None
        for place, mine in self._moving:
            if not mine.alike(leaves[place]):
                return None
        sizes = [source(leaves) for source in self._sources]
        if not self._holds(*sizes):
            return None
        for (place, _), walk in zip(self._moving, self._walks(*sizes), strict=True):
            if walk != _walk(leaves[place]):
                return None
        plan = self._template.plan(sizes, compiles)
        if plan is None:
            return None
        outputs = [
            each
            if each.layout is None or lies is None
            else _laid_out(each, Layout(lies[0], lies[1], each.layout.order))
            for each, lies in zip(self._outputs, self._layouts(*sizes), strict=True)
        ]
        return ReboundPartition(self, plan, Outputs(outputs))


class Unrecorded(Exception):  # noqa: N818 - nothing went wrong
    """What a partition does for some sizes holds for no others."""


def recorded(work: PartitionWork, leaves: Sequence[Any], options: CompileOptions) -> PartitionRecording | None:
    """The recording of a partition that has been bound for inputs that lie as these; None where nothing of it holds for
    other sizes.
    """
    try:
        return PartitionRecording(work, leaves, options)
    except (Unrecorded, Unsupported, UnknownSize):
        return None


def _walk(value: Any) -> tuple[Any, ...]:
    """The sizes of an input: extents and strides of a tensor, or of its structure; of a number itself."""
    structure = value.structure if isinstance(value, Leaf) else value
    return (structure.shape, structure.strides) if isinstance(structure, Structure) else (structure,)


def _laid_out(output: Computed | Given, layout: Layout) -> Computed | Given:
    if isinstance(output, Given):
        return Given(output.place, layout, output.target)
    return Computed(output.number, output.order, layout, output.target)


def _symbolic_input(meta: Any, leaf: Any, extents: Extents) -> Any:
    """An input with the sizes that the graph says; itself where it says none. Raises Unrecorded where it does not lie
    as the graph says.
    """
    if not isinstance(leaf, Leaf):
        return extents.of(meta) if isinstance(meta, torch.SymInt) else leaf
    structure = leaf.structure
    if not isinstance(meta, torch.Tensor) or not any(isinstance(size, torch.SymInt) for size in meta.shape):
        return structure
    shape, strides = tuple(map(extents.of, meta.shape)), tuple(map(extents.of, meta.stride()))
    made = interning.buffer(shape, strides, structure.dtype, structure.device or "cpu", structure.frozen)
    if [value_of(each) for each in (*made.shape, *made.strides)] != [*structure.shape, *structure.strides]:
        raise Unrecorded
    return made


def _shape_at(place: int, axis: int) -> Callable[[Sequence[Any]], int]:
    return lambda leaves: int(leaves[place].structure.shape[axis])


def _number_at(place: int) -> Callable[[Sequence[Any]], int]:
    return lambda leaves: int(leaves[place])
