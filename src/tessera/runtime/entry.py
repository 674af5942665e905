"""Makes the function behind `BoundPlan.run`.

A generic loop over slots and results costs more than the rest of the call, so a straight-line function is generated,
once per pattern of slots and outputs (plans of the same program share it), the way `dataclasses` generates
`__init__`. For a plan that reads leaves 0 and 1 and has one result, it reads:

    def run(leaves):
        try:
            frame = pop()
        except IndexError:
            frame = new_frame()
        result0 = allocate(size0)
        pack(frame.memory, 40, leaves[0].address, leaves[1].address, result0.address)
        call(frame.address)
        push(frame)
        return (Leaf(structure0, result0.address, result0),)

A frame that an exception keeps from being pushed back is simply freed with it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

from tessera.lazy.leaf import Leaf
from tessera.lazy.structure import Structure

FRAME_TABLE_OFFSET: Final = 40
"""Byte offset of the address table within a frame: it follows the five words of the header (`runtime/native.py`)."""

_SLOT_VALUES: Final = {"leaf": "leaves[{0}].address", "result": "result{0}.address", "arena": "arena.address"}

Pattern = tuple[tuple[str, int], ...]
Entry = Callable[[Sequence[Leaf]], tuple[Leaf, ...]]


def make_entry(
    *,
    slots: Pattern,
    results: tuple[int, ...],
    outputs: tuple[tuple[int, Structure | None], ...],
    arena_bytes: int,
    frames: list[Any],
    new_frame: Callable[[], Any],
    allocate: Callable[[int], Any],
    call: Callable[[int], None],
) -> Entry:
    """The run function of one plan. `slots` are (kind, index) as in `plan.Slot`; an output without a structure is a
    leaf.
    """
    pattern = tuple([(index, structure is not None) for index, structure in outputs])
    factory = _factory(slots, len(results), pattern, bool(arena_bytes))
    structures = [structure for _, structure in outputs]
    pack = _packer(len(slots))
    return factory(frames.pop, frames.append, new_frame, allocate, pack, call, results, structures, arena_bytes)


@lru_cache(maxsize=1024)
def _packer(words: int) -> Callable[..., None]:
    """Writes so many words into a buffer."""
    return struct.Struct(f"<{words}Q").pack_into


@lru_cache(maxsize=1024)
def _factory(
    slots: Pattern, results: int, outputs: tuple[tuple[int, bool], ...], has_arena: bool
) -> Callable[..., Entry]:
    namespace: dict[str, Any] = {"Leaf": Leaf}
    exec(compile(source(slots, results, outputs, has_arena), "<tessera plan entry>", "exec"), namespace)
    factory: Callable[..., Entry] = namespace["factory"]
    return factory


def source(slots: Pattern, results: int, outputs: tuple[tuple[int, bool], ...], has_arena: bool) -> str:
    """The Python text of the factory that makes a run function."""
    lines = ["def factory(pop, push, new_frame, allocate, pack, call, sizes, structures, arena_size):"]
    lines += [f"    size{index} = sizes[{index}]" for index in range(results)]
    lines += [f"    structure{position} = structures[{position}]" for position in range(len(outputs))]
    lines += [
        "    def run(leaves):",
        "        try:",
        "            frame = pop()",
        "        except IndexError:",
        "            frame = new_frame()",
    ]
    lines += [f"        result{index} = allocate(size{index})" for index in range(results)]
    if has_arena:
        lines.append("        arena = allocate(arena_size)")
    values = "".join(f", {_SLOT_VALUES[kind].format(index)}" for kind, index in slots)
    returned = "".join(
        f"Leaf(structure{position}, result{index}.address, result{index}), " if made else f"leaves[{index}], "
        for position, (index, made) in enumerate(outputs)
    )
    lines += [
        f"        pack(frame.memory, {FRAME_TABLE_OFFSET}{values})",
        "        call(frame.address)",
        "        push(frame)",
        f"        return ({returned})",
        "    return run",
    ]
    return "\n".join(lines)
