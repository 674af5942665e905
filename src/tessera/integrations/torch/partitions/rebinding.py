"""What a partition does for sizes that it has not seen, of what was recorded when it was bound for others.

The partition is bound once more with symbolic sizes (`lazy/symbols`), those that the graph has as symbols: rows,
structures, layouts and binding itself are what they always are. What comes of it holds for all sizes that meet the
conditions, and binding for those takes a few comparisons and numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
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
from tessera.lazy.symbols.functions import numbers_where
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

    place: int
    own: Any

    def alike(self, other: Any) -> bool:
        """Whether another input is the same but for sizes."""
        own = self.own
        if not isinstance(own, Structure):
            return is_symbolic(own) or (type(other) is type(own) and bool(other == own))
        return own is other or (
            isinstance(other, Structure)
            and own.dtype is other.dtype
            and own.kind == other.kind
            and own.device == other.device
            and own.frozen == other.frozen
            and len(own.shape) == len(other.shape)
        )


class _Source(NamedTuple):
    """Where a size of the graph is found: an input that is it, or an axis of one."""

    place: int
    axis: int | None

    def size(self, key: Sequence[Any]) -> int:
        """The size, of the structures of inputs and the numbers among these."""
        found = key[self.place]
        return int(found if self.axis is None else found.shape[self.axis])


class PartitionRecording:
    """What a partition does for all sizes that meet some conditions."""

    def __init__(self, work: PartitionWork, leaves: Sequence[Any], options: CompileOptions) -> None:
        """Raises Unrecorded, and what rows raise, where there is nothing that holds for other sizes."""
        assumptions = Assumptions()
        self._sources: list[_Source] = []
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
        moves = [any(True for _ in symbolic_in(walk)) for walk in walks]
        self._moving = [_Input(place, each) for place, each in enumerate(inputs) if moves[place]]
        self._fixed = [_Input(place, each) for place, each in enumerate(inputs) if not moves[place]]
        self._same: tuple[itemgetter[Any], Any] | None = None
        """Takes the inputs of fixed sizes, and what it takes of those that were recorded: structures, as nearly always,
        are the same objects then.
        """
        if self._fixed and all(isinstance(each.own, Structure) for each in self._fixed):
            take = itemgetter(*[each.place for each in self._fixed])
            self._same = take, take(inputs)
        self._numbers = numbers_where(
            assumptions,
            (
                tuple([walks[each.place] for each in self._moving]),
                tuple(
                    [
                        None if each.layout is None else (each.layout.shape, each.layout.strides)
                        for each in self._outputs
                    ]
                ),
                template.numbers,
            ),
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
                self._sources.append(_Source(place, axis if isinstance(leaf, Leaf) else None))
        if not self._sources:
            raise Unrecorded
        return Extents(known)

    def bind(self, key: Sequence[Any], compiles: bool = True) -> ReboundPartition | None:
        """What the partition does for inputs of these structures, and the numbers among them; None where they do not
        meet the conditions, and unless it `compiles` where a kernel is missing. Raises what compiling raises.
        """
        if not self._has_fixed(key):
            return None
        for each in self._moving:
            if not each.alike(key[each.place]):
                return None
        sizes = [source.size(key) for source in self._sources]
        found = self._numbers(*sizes)
        if found is None:
            return None
        walks, layouts, numbers = found
        for each, walk in zip(self._moving, walks, strict=True):
            if walk != _walk(key[each.place]):
                return None
        plan = self._template.plan(sizes, numbers, compiles)
        if plan is None:
            return None
        outputs = [
            each
            if each.layout is None or lies is None
            else _laid_out(each, Layout(lies[0], lies[1], each.layout.order))
            for each, lies in zip(self._outputs, layouts, strict=True)
        ]
        return ReboundPartition(self, plan, Outputs(outputs))

    def _has_fixed(self, key: Sequence[Any]) -> bool:
        """Whether the inputs that have no symbolic size are what they were."""
        same = self._same
        if same is not None and same[0](key) == same[1]:
            return True
        for each in self._fixed:
            other = key[each.place]
            if not each.alike(other) or _walk(other) != _walk(each.own):
                return False
        return True


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
    """The sizes of an input: extents and strides of a tensor's structure; of a number itself."""
    return (value.shape, value.strides) if isinstance(value, Structure) else (value,)


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
