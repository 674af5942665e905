"""Making a failing program small: fewer results, fewer steps, plainer inputs, smaller extents, while it still fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.fuzz.oracle import dtypes_of
from tests.fuzz.program import Entry, Input, Loop, Memory, Number, Program, Shape, Step
from tests.fuzz.ways import nodes_of

Fails = Callable[[Program], bool]


def shrink(program: Program, fails: Fails, most: int = 400) -> Program:
    """The smallest program found that still `fails`, with at most so many tries."""
    tries = 0
    smaller = True
    while smaller and tries < most:
        smaller = False
        for candidate in _smaller(program):
            tries += 1
            if tries > most:
                break
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller(program: Program) -> Iterator[Program]:
    """Programs that are a little smaller, the boldest first."""
    steps = [place for place, entry in enumerate(program.entries) if isinstance(entry, Step)]
    if len(program.roots) > 1:
        for root in program.roots:
            yield pruned(program.with_roots([root]))
        for root in program.roots:
            yield pruned(program.with_roots([other for other in program.roots if other != root]))
    else:
        for place in steps:
            if place != program.roots[0]:
                yield pruned(program.with_roots([place]))
    shapes = [tuple(node.shape) for node in nodes_of(program)]
    dtypes = [dtype.name for dtype in dtypes_of(program)]
    for place in reversed(steps):
        if place not in program.roots:
            yield pruned(_cut(program, place, shapes[place], dtypes[place]))
    for place in reversed(steps):
        entry = program.entries[place]
        assert isinstance(entry, Step)
        for operand in entry.operands:
            if shapes[operand] == shapes[place] and dtypes[operand] == dtypes[place]:
                yield pruned(_bypassed(program, place, operand))
    for place, entry in enumerate(program.entries):
        if isinstance(entry, Input):
            plain = _cut(program, place, shapes[place], dtypes[place])
            memory = program.memories[entry.memory]
            if (
                entry.constant
                or memory.values != "ordinary"
                or entry.strides != _contiguous(entry.shape)
                or entry.offset
            ):
                kept = replace(plain.memories[-1], below=memory.below, seed=memory.seed)
                yield pruned(replace(plain, memories=(*plain.memories[:-1], kept)))


def _contiguous(shape: Shape) -> Shape:
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step if extent != 1 else 0)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def _cut(program: Program, place: int, shape: Shape, dtype: str) -> Program:
    """A plain new input in the place of an entry."""
    strides = _contiguous(shape)
    elements = 1
    for extent in shape:
        elements *= extent
    memory = Memory(dtype, elements, 0, shape, strides, seed=place)
    entry = Input(len(program.memories), 0, shape, strides)
    return replace(
        program,
        memories=(*program.memories, memory),
        entries=(*program.entries[:place], entry, *program.entries[place + 1 :]),
    )


def _bypassed(program: Program, place: int, operand: int) -> Program:
    """The operand of a step wherever the step was used."""

    def instead(index: int) -> int:
        return operand if index == place else index

    entries = [
        replace(entry, operands=tuple(map(instead, entry.operands))) if isinstance(entry, Step) else entry
        for entry in program.entries
    ]
    return replace(program, entries=tuple(entries), roots=tuple(dict.fromkeys(map(instead, program.roots))))


def pruned(program: Program) -> Program:
    """Without entries and memories that no result needs."""
    needed = set(program.roots)
    for place in reversed(range(len(program.entries))):
        entry = program.entries[place]
        if place in needed and isinstance(entry, Step):
            needed.update(entry.operands)
    order = sorted(needed)
    places = {old: new for new, old in enumerate(order)}
    memories: dict[int, int] = {}
    entries: list[Entry] = []
    for old in order:
        entry = program.entries[old]
        if isinstance(entry, Input):
            entry = replace(entry, memory=memories.setdefault(entry.memory, len(memories)))
        elif isinstance(entry, Step):
            entry = replace(entry, operands=tuple(places[operand] for operand in entry.operands))
        entries.append(entry)
    kept = tuple(program.memories[old] for old in memories)
    return Program(kept, tuple(entries), tuple(places[root] for root in program.roots))


# -- printing ---------------------------------------------------------------------------------------------------------


def snippet(program: Program) -> str:
    """A Python program that computes the results and prints them beside those of the references in float64."""
    lines = [
        "from tessera import op",
        "from tessera.lazy.leaves.conversion import as_node",
        "from tessera.ops import oracle",
        "from tessera.ops.algebra import call, literal",
        "from tests.fuzz.contents import placed, viewed",
        "from tests.fuzz.program import Input, Loop, Memory, Number, Program, Step, number",
        "",
    ]
    lines += [f"m{place} = placed({memory!r}, at_end=True)" for place, memory in enumerate(program.memories)]
    names = dtype_names(program)
    if names:
        lines.insert(0, f"from tessera.dtypes import {', '.join(names)}")
    for place, entry in enumerate(program.entries):
        lines.append(f"v{place} = {_expression(entry)}")
    for root in program.roots:
        lines.append(f"expected = oracle.reference(v{root})")
        lines.append(f"print(v{root}.torch(), expected, sep='\\n')")
    return "\n".join(lines)


def dtype_names(program: Program) -> list[str]:
    """Names of the dtypes that attributes of steps name."""
    attributes = [each for entry in program.entries if isinstance(entry, Step) for each in entry.attributes]
    nested = [dtype_names(body) for loop in program.loops for body in loop.bodies]
    return sorted({each.name for each in attributes if hasattr(each, "itemsize")}.union(*nested))


def _told(value: object) -> str:
    return f"{value!r}.control()" if isinstance(value, Loop) else repr(value)


def _expression(entry: Entry) -> str:
    if isinstance(entry, Input):
        mark = "op.constant" if entry.constant else "as_node"
        return f"{mark}(viewed(m{entry.memory}, {entry!r}))"
    if isinstance(entry, Number):
        return f"number({entry!r})"
    from tessera.ops import OPERATORS

    names = OPERATORS[entry.operator].attributes
    given = [
        f"{name}={_told(value)}" for name, value in zip(names, entry.attributes, strict=True) if names[name] != value
    ]
    return f"call({', '.join([repr(entry.operator), *[f'v{operand}' for operand in entry.operands], *given])})"
