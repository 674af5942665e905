"""Where results of kernels lie, so that who reads them takes them as they are.

    attention [.., heads, rows, size] -> transpose -> reshape [.., rows, heads * size]: is written in the latter's order
    concat(f(x), g(y)): f and g write the two parts of one result

Only the order of the leading dimensions is changed: the last one stays contiguous, which is what kernels write fast.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple
from weakref import WeakKeyDictionary

from tessera.compiler.bind.arrays import Shape, Storage
from tessera.compiler.bind.memory_order import Readers
from tessera.compiler.graph.program import Item, KernelItem, LayoutItem, Program
from tessera.lazy.leaves.views import reshaped_strides
from tessera.lazy.structures.structure import contiguous_strides
from tessera.runtime.memory.derived import Derivation
from tessera.runtime.memory.liveness import NOTHING_PLACED, Lifetime, place
from tessera.runtime.plans.plan import Slot
from tessera.scheduling.binding.axes import Strides

_slot = lru_cache(maxsize=1 << 10)(Slot)
"""Makes a slot; plans share them."""

Chain = tuple[LayoutItem, ...]
"""Views one after the other, each of them all that reads the one before."""


class Part(NamedTuple):
    """A value that is, seen through `views`, one operand of a concatenation, or padded, and read by nothing else."""

    joined: LayoutItem
    place: int
    views: Chain


class Places(NamedTuple):
    """What is known of a program's values before extents are: the views that a result goes through until it has to be
    contiguous, the concatenations that results are parts of, and what reads them.
    """

    chains: Mapping[int, Chain]
    parts: Mapping[int, Part]
    readers: Readers


_known: WeakKeyDictionary[Program, Places] = WeakKeyDictionary()


def places_of(program: Program) -> Places:
    """The places of a program's results, found out once; what is a root of the program lies as roots do."""
    known = _known.get(program)
    if known is None:
        known = _known[program] = _found(program)
    return known


def _found(program: Program) -> Places:
    readers: dict[int, list[Item]] = {}
    for item in program.items:
        for value in item.inputs:
            readers.setdefault(value, []).append(item)
    chains: dict[int, Chain] = {}
    parts: dict[int, Part] = {}
    for item in program.items:
        for value in _written(item):
            if (part := _part(value, readers, program)) is not None:
                parts[value] = part
            if isinstance(item, KernelItem) and (chain := _chain(value, readers, program)):
                chains[value] = chain
    return Places(chains, parts, readers)


def _written(item: Item) -> Sequence[int]:
    """What an item writes where it is told to: a kernel's results, and what is joined or padded."""
    if isinstance(item, KernelItem):
        return item.outputs
    return (item.output,) if isinstance(item, LayoutItem) and _parts_of(item) else ()


def _part(value: int, readers: Readers, program: Program) -> Part | None:
    views: list[LayoutItem] = []
    while (reader := _only_reader(value, readers, program)) is not None:
        if value in _parts_of(reader):
            return Part(reader, reader.inputs.index(value), tuple(views))
        if reader.movement not in _VIEWS:
            return None
        views.append(reader)
        value = reader.output
    return None


def _parts_of(item: LayoutItem) -> Sequence[int]:
    """The operands whose elements an item's result is made of; padding has a number beside them."""
    return {"joined": item.inputs, "padded": item.inputs[:1]}.get(item.movement, ())


def _only_reader(value: int, readers: Readers, program: Program) -> LayoutItem | None:
    found = readers.get(value, ())
    if len(found) != 1 or value in program.roots:
        return None
    (reader,) = found
    return reader if isinstance(reader, LayoutItem) else None


def _chain(value: int, readers: Readers, program: Program) -> Chain:
    """The views up to the last reshape after a transpose, which would have to copy; none where there is no such."""
    chain: list[LayoutItem] = []
    turned = last = 0
    while (reader := _only_reader(value, readers, program)) is not None and reader.movement in _VIEWS:
        chain.append(reader)
        turned = turned or (len(chain) if reader.movement == "permuted" else 0)
        last = len(chain) if turned and reader.movement == "regrouped" else last
        value = reader.output
    return tuple(chain[:last])


_VIEWS = ("permuted", "regrouped")


def strides_before(chain: Chain, shape_of: Callable[[int], Shape]) -> Strides | None:
    """The strides of what enters a chain, so that its last reshape finds a contiguous tensor; None where there are
    none whose last dimension is contiguous.
    """
    *views, last = chain
    strides = strides_through(views, contiguous_strides(shape_of(last.inputs[0])), shape_of)
    shape = shape_of(chain[0].inputs[0])
    return strides if strides and 0 not in shape else None


def strides_through(views: Sequence[LayoutItem], seen: Strides, shape_of: Callable[[int], Shape]) -> Strides | None:
    """The strides of what, through these views, is seen to have strides `seen`; None where there are none whose last
    dimension is contiguous.
    """
    strides: Strides | None = seen
    for view in reversed(views):
        assert strides is not None
        if view.movement == "permuted":
            strides = tuple([strides[view.permutation.index(d)] for d in range(len(strides))])
        else:
            strides = reshaped_strides(shape_of(view.output), strides, shape_of(view.inputs[0]))
        if strides is None:
            return None
    if not views:
        return strides
    shape = shape_of(views[0].inputs[0])
    return strides if strides and (strides[-1] == 1 or shape[-1] == 1) else None


def part_offset(part: Part, shape_of: Callable[[int], Shape]) -> int:
    """The position of a part along the axis of its concatenation."""
    return sum([shape_of(value)[part.joined.axis] for value in part.joined.inputs[: part.place]])


def slots_of(
    storages: Sequence[Storage], results: Sequence[Storage], temporaries: Sequence[Storage], offsets: Sequence[int]
) -> tuple[list[Slot], list[tuple[int, Derivation]]]:
    """The slots of the address table, which storages are given with their offsets, and (leaf, what is made of it) of
    the derived ones.
    """
    slots: list[Slot] = []
    derived: list[tuple[int, Derivation]] = []
    of_leaf: dict[tuple[int, Derivation | None], int] = {}
    for storage in storages:
        if storage.leaf is None:
            continue
        key = storage.leaf, storage.derivation
        if key not in of_leaf:
            of_leaf[key] = len(slots)
            if storage.derivation is None:
                slots.append(_slot("leaf", storage.leaf))
            else:
                slots.append(_slot("derived", len(derived)))
                derived.append((storage.leaf, storage.derivation))
        storage.slot = of_leaf[key]
    for index, storage in enumerate(results):
        storage.slot = len(slots)
        slots.append(_slot("result", index))
        for guest in storage.guests:
            guest.slot = storage.slot
    if temporaries:
        for storage, offset in zip(temporaries, offsets, strict=True):
            storage.slot, storage.offset = len(slots), offset
        slots.append(_slot("arena"))
    return slots, derived


def placed_in_results(temporaries: Sequence[Storage], results: Sequence[Storage]) -> list[Storage]:
    """Lets temporaries that are read for the last time before a result is written lie in its memory; gives the others.

    So a chain of operators takes two buffers, as in eager execution, and not two and its result.
    """
    # The latest first: each of a chain lies where the one before the last lay.
    rest = sorted(temporaries, key=lambda storage: (-storage.last, -storage.nbytes))
    for result in results:
        others: list[Storage] = []
        layout = NOTHING_PLACED
        for storage in rest:
            if storage.last < result.first and storage.nbytes <= result.nbytes:
                wider = place([Lifetime(s.nbytes, s.first, s.last) for s in (*result.guests, storage)])
                if wider.nbytes <= result.nbytes:
                    result.guests, layout = (*result.guests, storage), wider
                    continue
            others.append(storage)
        for guest, offset in zip(result.guests, layout.offsets, strict=True):
            guest.offset = offset
        rest = others
    return rest
