"""Makes the function behind `BoundPlan.run`.

A generic loop over slots and results costs more than the rest of the call, so a straight-line function is generated,
once per pattern of slots and outputs (plans of the same program share its code), the way `dataclasses` generates
`__init__`. For a plan that reads leaves 0 and 1 and has one small result, it reads:

    def run(leaves, pool, idle, allocator, pack, call, size0, class0, home0, structure0):
        try:
            frame = idle.pop()
        except IndexError:
            frame = pool.new()
        try:
            address0 = home0.pop()
        except IndexError:
            address0 = allocator.carve(class0)
        result0 = new(Buffer)
        result0.address = address0
        result0.nbytes = size0
        result0.home = home0
        pack(frame.memory, 40, leaves[0].address, leaves[1].address, address0)
        call(frame.address)
        idle.append(frame)
        leaf0 = new(Leaf)
        leaf0.structure = structure0
        leaf0.address = address0
        leaf0.owner = result0
        leaf0.version = 0
        leaf0.origin = 0
        return (leaf0,)

All parameters but `leaves` have the plan's own values as defaults: that makes a plan in less time, and of a dozen fewer
objects, than a closure. A large result is `result0 = allocator.allocate(size0)`. A frame that an exception keeps from
being put back is simply freed with it. Objects are made without their `__init__`, whose frame costs as much as they do.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, Final, Protocol, TypeAlias

from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures.structure import Structure
from tessera.runtime.memory.buffers import Allocator, Buffer
from tessera.runtime.memory.derived import ReadInstead

FRAME_TABLE_OFFSET: Final = 40
"""Byte offset of the address table within a frame: it follows the five words of the header (`native.py`)."""

_SLOT_VALUES: Final = {
    "leaf": "leaves[{0}].address",
    "result": "address{0}",
    "arena": "address{1}",
    "derived": "copy{0}.address",
}

_GLOBALS: Final[dict[str, Any]] = {"Leaf": Leaf, "Buffer": Buffer, "new": object.__new__}

Pattern: TypeAlias = tuple[tuple[str, int], ...]
Entry: TypeAlias = Callable[[Sequence[Leaf]], tuple[Leaf, ...]]


class Frames(Protocol):
    """The frames of a plan: those that no call uses, and a way to more."""

    idle: list[Any]

    def new(self) -> Any:
        """Makes a frame."""


def make_entry(
    *,
    slots: Pattern,
    results: tuple[int, ...],
    outputs: tuple[tuple[int, Structure | None], ...],
    arena_bytes: int,
    frames: Frames,
    allocator: Allocator,
    call: Callable[[int], None],
    derived: tuple[tuple[int, ReadInstead], ...] = (),
) -> Entry:
    """The run function of one plan. `slots` are (kind, index) as in `plan.Slot`; an output without a structure is a
    leaf. `derived` are (leaf, what is read instead of it).
    """
    values: list[Any] = [frames, frames.idle, allocator, _packer(len(slots)), call]
    small: list[bool] = []
    for nbytes in (*results, arena_bytes) if arena_bytes else results:
        found = allocator.small_class(nbytes)
        small.append(found is not None)
        values += (nbytes,) if found is None else (nbytes, found, found.free)
    pattern: list[tuple[int, bool]] = []
    for index, structure in outputs:
        pattern.append((index, structure is not None))
        values.append(structure)
    values += [derivation.of for _, derivation in derived]
    code = _code(slots, len(results), tuple(small), tuple(pattern), tuple([leaf for leaf, _ in derived]))
    return FunctionType(code, _GLOBALS, "run", tuple(values))


@lru_cache(maxsize=1024)
def _packer(words: int) -> Callable[..., None]:
    """Writes so many words into a buffer."""
    return struct.Struct(f"<{words}Q").pack_into


@lru_cache(maxsize=1024)
def _code(
    slots: Pattern,
    results: int,
    small: tuple[bool, ...],
    outputs: tuple[tuple[int, bool], ...],
    derived: tuple[int, ...],
) -> CodeType:
    namespace: dict[str, Any] = {}
    exec(compile(source(slots, results, small, outputs, derived), "<tessera plan entry>", "exec"), namespace)
    code: CodeType = namespace["run"].__code__
    return code


def source(
    slots: Pattern,
    results: int,
    small: tuple[bool, ...],
    outputs: tuple[tuple[int, bool], ...],
    derived: tuple[int, ...] = (),
) -> str:
    """The Python text of a run function.

    `small` says of each block of memory, the results and then the arena if there is one, whether a size class serves
    it; `derived` are the leaves of which copies are read (`copy0 = obtain0(leaves[1])`).
    """
    parameters = ["leaves", "pool", "idle", "allocator", "pack", "call"]
    for block, is_small in enumerate(small):
        parameters += [f"size{block}", f"class{block}", f"home{block}"] if is_small else [f"size{block}"]
    parameters += [f"structure{place}" for place in range(len(outputs))]
    parameters += [f"obtain{number}" for number in range(len(derived))]
    lines = [f"def run({', '.join(parameters)}):"]
    lines += [f"    copy{number} = obtain{number}(leaves[{leaf}])" for number, leaf in enumerate(derived)]
    lines += _either("frame = idle.pop()", "frame = pool.new()")
    for block, is_small in enumerate(small):
        lines += _block(block, is_small)
    # Temporaries without elements, of which no arena is made, lie nowhere.
    kinds = _SLOT_VALUES if len(small) > results else {**_SLOT_VALUES, "arena": "0"}
    values = [kinds[kind].format(index, results) for kind, index in slots]
    lines.append(f"    pack({', '.join(['frame.memory', str(FRAME_TABLE_OFFSET), *values])})")
    lines += ["    call(frame.address)", "    idle.append(frame)"]
    for place, (index, is_made) in enumerate(outputs):
        if is_made:
            fields = {"structure": f"structure{place}", "address": f"address{index}", "owner": f"result{index}"}
            lines += _object(f"leaf{place}", "Leaf", fields | {"version": "0", "origin": "0"})
    made = [f"leaf{place}, " if is_made else f"leaves[{index}], " for place, (index, is_made) in enumerate(outputs)]
    lines.append(f"    return ({''.join(made)})")
    return "\n".join(lines)


def _either(first: str, otherwise: str) -> list[str]:
    """A statement, and what replaces it where a list is empty."""
    return ["    try:", f"        {first}", "    except IndexError:", f"        {otherwise}"]


def _object(name: str, kind: str, fields: Mapping[str, str]) -> list[str]:
    """Makes an object without its `__init__`."""
    return [f"    {name} = new({kind})", *[f"    {name}.{field} = {value}" for field, value in fields.items()]]


def _block(number: int, is_small: bool) -> list[str]:
    """Takes a block of memory."""
    if not is_small:
        return [
            f"    result{number} = allocator.allocate(size{number})",
            f"    address{number} = result{number}.address",
        ]
    fields = {"address": f"address{number}", "nbytes": f"size{number}", "home": f"home{number}"}
    return [
        *_either(f"address{number} = home{number}.pop()", f"address{number} = allocator.carve(class{number})"),
        *_object(f"result{number}", "Buffer", fields),
    ]
