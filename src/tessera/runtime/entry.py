"""Makes the function behind `BoundPlan.run`.

A generic loop over slots and results costs more than the rest of the call, so a straight-line function is generated,
once per pattern of slots and outputs (plans of the same program share it), the way `dataclasses` generates
`__init__`. For a plan that reads leaves 0 and 1, a float scalar, and has one result, it reads:

    def run(leaves):
        try:
            frame = pop()
        except IndexError:
            frame = new_frame()
        result0 = allocate(size0)
        pack(frame.memory, 40, leaves[0].address, leaves[1].address, single(leaves[2].value), result0.address)
        call(frame.address)
        push(frame)
        return (make0(result0),)

A frame that an exception keeps from being pushed back is simply freed with it.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

FRAME_TABLE_OFFSET: Final = 40
"""Byte offset of the address table within a frame: it follows the five words of the header (`runtime/native.py`)."""

_FORMATS: Final = {"address": "q", "result": "q", "arena": "q", "i64": "q", "f64": "d", "f32": "f4x"}

Pattern = tuple[tuple[str, int], ...]
Entry = Callable[[Any], tuple[Any, ...]]


def single(value: float) -> float:
    """`value` rounded to single precision, infinite when it is beyond its range (struct would refuse it)."""
    return ctypes.c_float(value).value


def make_entry(
    *,
    slots: Pattern,
    results: tuple[int, ...],
    outputs: tuple[tuple[int, Callable[[Any], Any] | None], ...],
    arena_bytes: int,
    frames: list[Any],
    new_frame: Callable[[], Any],
    allocate: Callable[[int], Any],
    call: Callable[[int], None],
) -> Entry:
    """The run function of one plan. `slots` are (kind, index) as in `plan.Slot`; an output without a function is a
    leaf.
    """
    pattern = tuple((index, make is not None) for index, make in outputs)
    factory, table = _factory(slots, len(results), pattern, bool(arena_bytes))
    makers = tuple(make for _, make in outputs)
    entry: Entry = factory(
        frames.pop, frames.append, new_frame, allocate, table.pack_into, call, results, makers, arena_bytes
    )
    return entry


@lru_cache(maxsize=1024)
def _factory(
    slots: Pattern, results: int, outputs: tuple[tuple[int, bool], ...], has_arena: bool
) -> tuple[Callable[..., Entry], struct.Struct]:
    namespace: dict[str, Any] = {"single": single}
    exec(compile(source(slots, results, outputs, has_arena), "<tessera plan entry>", "exec"), namespace)
    factory: Callable[..., Entry] = namespace["factory"]
    return factory, struct.Struct("<" + "".join(_FORMATS[kind] for kind, _ in slots))


def source(slots: Pattern, results: int, outputs: tuple[tuple[int, bool], ...], has_arena: bool) -> str:
    """The Python text of the factory that makes a run function."""
    lines = ["def factory(pop, push, new_frame, allocate, pack, call, sizes, makers, arena_size):"]
    lines += [f"    size{index} = sizes[{index}]" for index in range(results)]
    lines += [f"    make{position} = makers[{position}]" for position, (_, made) in enumerate(outputs) if made]
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
    values = "".join(f", {_value(kind, index)}" for kind, index in slots)
    returned = "".join(
        f"make{position}(result{index}), " if made else f"leaves[{index}], "
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


def _value(kind: str, index: int) -> str:
    match kind:
        case "address":
            return f"leaves[{index}].address"
        case "result":
            return f"result{index}.address"
        case "arena":
            return "arena.address"
        case "f32":
            return f"single(leaves[{index}].value)"
        case "f64" | "i64":
            return f"leaves[{index}].value"
    raise ValueError(f"no such kind of slot: {kind}")
