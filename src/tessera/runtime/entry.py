"""Makes the function behind `BoundPlan.run`.

A generic loop over slots and results costs more than the rest of the call, so a straight-line function is generated,
once per pattern of slots and outputs (plans of the same program share it), the way `dataclasses` generates
`__init__`. For a plan that reads leaves 0 and 1 and has one small result, it reads:

    def run(leaves):
        try:
            frame = pop()
        except IndexError:
            frame = new_frame()
        try:
            address0 = take0()
        except IndexError:
            address0 = carve(class0)
        result0 = new(Buffer)
        result0.address = address0
        result0.nbytes = size0
        result0.home = home0
        pack(frame.memory, 40, leaves[0].address, leaves[1].address, address0)
        call(frame.address)
        push(frame)
        leaf0 = new(Leaf)
        leaf0.structure = structure0
        leaf0.address = address0
        leaf0.owner = result0
        leaf0.version = None
        return (leaf0,)

A large result is `result0 = allocate(size0)`. A frame that an exception keeps from being pushed back is simply freed
with it. Objects are made without their `__init__`, whose frame costs as much as they do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

from tessera.lazy.leaf import Leaf
from tessera.lazy.structure import Structure
from tessera.runtime.buffers import Allocator, Buffer

FRAME_TABLE_OFFSET: Final = 40
"""Byte offset of the address table within a frame: it follows the five words of the header (`runtime/native.py`)."""

_SLOT_VALUES: Final = {"leaf": "leaves[{0}].address", "result": "address{0}", "arena": "address{1}"}

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
    allocator: Allocator,
    call: Callable[[int], None],
) -> Entry:
    """The run function of one plan. `slots` are (kind, index) as in `plan.Slot`; an output without a structure is a
    leaf.
    """
    sizes = [*results, arena_bytes] if arena_bytes else list(results)
    classes = [allocator.small_class(nbytes) for nbytes in sizes]
    pattern = tuple([(index, structure is not None) for index, structure in outputs])
    factory = _factory(slots, len(results), tuple([found is not None for found in classes]), pattern)
    structures = [structure for _, structure in outputs]
    pack = _packer(len(slots))
    return factory(
        frames.pop,
        frames.append,
        new_frame,
        allocator.allocate,
        allocator.carve,
        pack,
        call,
        sizes,
        classes,
        structures,
    )


@lru_cache(maxsize=1024)
def _packer(words: int) -> Callable[..., None]:
    """Writes so many words into a buffer."""
    return struct.Struct(f"<{words}Q").pack_into


@lru_cache(maxsize=1024)
def _factory(
    slots: Pattern, results: int, small: tuple[bool, ...], outputs: tuple[tuple[int, bool], ...]
) -> Callable[..., Entry]:
    namespace: dict[str, Any] = {"Leaf": Leaf, "Buffer": Buffer, "new": object.__new__}
    exec(compile(source(slots, results, small, outputs), "<tessera plan entry>", "exec"), namespace)
    factory: Callable[..., Entry] = namespace["factory"]
    return factory


def source(slots: Pattern, results: int, small: tuple[bool, ...], outputs: tuple[tuple[int, bool], ...]) -> str:
    """The Python text of the factory that makes a run function.

    `small` says of each block of memory, the results and then the arena if there is one, whether a size class serves
    it.
    """
    made = [f"leaf{place}" if is_made else f"leaves[{index}]" for place, (index, is_made) in enumerate(outputs)]
    values = [_SLOT_VALUES[kind].format(index, results) for kind, index in slots]
    lines = ["def factory(pop, push, new_frame, allocate, carve, pack, call, sizes, classes, structures):"]
    for block, is_small in enumerate(small):
        lines.append(f"    size{block} = sizes[{block}]")
        if is_small:
            lines += [f"    class{block} = classes[{block}]", f"    home{block} = class{block}.free"]
            lines.append(f"    take{block} = home{block}.pop")
    lines += [f"    structure{place} = structures[{place}]" for place in range(len(outputs))]
    lines.append("    def run(leaves):")
    lines += _either("frame = pop()", "frame = new_frame()")
    for block, is_small in enumerate(small):
        lines += _block(block, is_small)
    lines.append(f"        pack({', '.join(['frame.memory', str(FRAME_TABLE_OFFSET), *values])})")
    lines += ["        call(frame.address)", "        push(frame)"]
    for place, (index, is_made) in enumerate(outputs):
        if is_made:
            fields = {"structure": f"structure{place}", "address": f"address{index}", "owner": f"result{index}"}
            lines += _object(f"leaf{place}", "Leaf", fields | {"version": "None"})
    lines += [f"        return ({''.join([f'{name}, ' for name in made])})", "    return run"]
    return "\n".join(lines)


def _either(first: str, otherwise: str) -> list[str]:
    """A statement, and what replaces it where a list is empty."""
    return ["        try:", f"            {first}", "        except IndexError:", f"            {otherwise}"]


def _object(name: str, kind: str, fields: Mapping[str, str]) -> list[str]:
    """Makes an object without its `__init__`."""
    return [f"        {name} = new({kind})", *[f"        {name}.{field} = {value}" for field, value in fields.items()]]


def _block(number: int, is_small: bool) -> list[str]:
    """Takes a block of memory."""
    if not is_small:
        return [
            f"        result{number} = allocate(size{number})",
            f"        address{number} = result{number}.address",
        ]
    fields = {"address": f"address{number}", "nbytes": f"size{number}", "home": f"home{number}"}
    return [
        *_either(f"address{number} = take{number}()", f"address{number} = carve(class{number})"),
        *_object(f"result{number}", "Buffer", fields),
    ]
