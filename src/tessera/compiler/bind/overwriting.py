"""Which results of a plan may be written to the memory of one of its inputs, which the caller needs no more.

y = f(x), written over x: nothing may read x once y is written. In one step, each element is read where it is written
and before it is: a map whose operand lies as its result does, or a call that works in place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.launches import AnyLaunch, Launch, LibraryLaunch, Memory, views_of
from tessera.lazy.structures.structure import Structure
from tessera.runtime.plans.plan import PlanOutput, Slot, layout_of
from tessera.scheduling.families.registry import kernel_family

Target: TypeAlias = tuple[int, Structure]
"""Memory that an output may be written to: the number of a leaf of the call, one past the structure's own where nothing
reads it, and how it lies.
"""


def overwriting(launches: Sequence[AnyLaunch], memory: Memory, targets: Mapping[int, Target]) -> Memory:
    """The memory of a plan that writes outputs to `targets`, by the number of the output, where that may be: they lie
    alike, no other output has part in the buffer, and nothing reads the target afterwards.
    """
    taken: dict[int, int] = {}
    for number, (leaf, structure) in targets.items():
        output = memory.outputs[number]
        alone = sum([other.number == output.number for other in memory.outputs]) == 1
        if (
            alone
            and output.structure is not None
            and layout_of(output.structure) == layout_of(structure)
            and leaf not in taken.values()
            and _may_share(launches, memory, output.number, leaf)
        ):
            taken[output.number] = leaf
    kept = [number for number in range(len(memory.results)) if number not in taken]
    places = {number: place for place, number in enumerate(kept)}
    slots = [_moved(slot, taken, places) for slot in memory.slots]
    outputs = [
        output
        if output.structure is None
        else PlanOutput(taken[output.number], None)
        if output.number in taken
        else PlanOutput(places[output.number], output.structure)
        for output in memory.outputs
    ]
    return memory._replace(slots=slots, results=[memory.results[number] for number in kept], outputs=outputs)


def _moved(slot: Slot, taken: Mapping[int, int], places: Mapping[int, int]) -> Slot:
    if slot.kind != "result":
        return slot
    return Slot("leaf", taken[slot.number]) if slot.number in taken else Slot("result", places[slot.number])


def _may_share(launches: Sequence[AnyLaunch], memory: Memory, result: int, leaf: int) -> bool:
    written, read = Slot("result", result), Slot("leaf", leaf)
    slots = [{memory.slots[view.storage.slot] for view in views_of(launch)} for launch in launches]
    first = next((step for step, found in enumerate(slots) if written in found), len(slots))
    last = max([step for step, found in enumerate(slots) if read in found], default=-1)
    return last < first or (last == first and _is_in_place(launches[first], memory.slots, written, read))


def _is_in_place(launch: AnyLaunch, slots: Sequence[Slot], written: Slot, read: Slot) -> bool:
    """Whether one launch may write a result over an operand."""

    def lies(view: View, slot: Slot) -> bool:
        return slots[view.storage.slot] == slot

    if isinstance(launch, LibraryLaunch):
        source, target = launch.inputs[0], launch.outputs[0]
        others = (*launch.inputs[1:], *launch.outputs[1:])
        return (
            launch.operator.in_place
            and lies(source, read)
            and lies(target, written)
            and not any(lies(view, read) or lies(view, written) for view in others)
            and _place(source) == _place(target)
        )
    views = [view for view, _ in launch.call.arguments]
    targets = [number for number, view in enumerate(views) if lies(view, written)]
    sources = [number for number, view in enumerate(views) if lies(view, read)]
    if len(targets) != 1:
        return False
    (place,), spec = targets, launch.subject.spec
    is_read_before = kernel_family(spec).reads_before
    return all(_walk(launch, each) == _walk(launch, place) for each in sources) and is_read_before(
        spec, set(sources), place
    )


def _place(view: View) -> object:
    # Strides say nothing along extents of 1.
    strides = [stride for extent, stride in zip(view.shape, view.strides, strict=True) if extent != 1]
    return view.dtype, view.shape, strides, view.storage.offset + view.offset_bytes


def _walk(launch: Launch, argument: int) -> object:
    """Where an argument's elements are, over the domain."""
    view, shaped = launch.call.arguments[argument][0], launch.call.shaped
    offset = view.storage.offset + view.offset_bytes
    return view.dtype, offset, view.is_counted, shaped.axes[argument], shaped.strides[argument]
