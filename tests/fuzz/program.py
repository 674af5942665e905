"""Programs as plain data: memory, inputs over it, and steps. They are drawn, computed, made smaller and printed."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

from tessera.doors.flow.bodies import Body, traced
from tessera.doors.flow.controls import Cond, Scan, While, one_for_all
from tessera.dtypes import DType, dtype_of
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.leaf import Leaf, Placeholder, scalar_leaf
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Structure
from tessera.ops import OPERATORS
from tessera.ops.algebra import literal

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True)
class Memory:
    """So many elements of a dtype, poison but for those of one view, which hold drawn values (`contents.py`).

    `values` says which: "ordinary", "special", "unbounded"; whole numbers `below` a limit where there is one.
    """

    dtype: str
    elements: int
    offset: int
    shape: Shape
    strides: Shape
    values: str = "ordinary"
    below: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Input:
    """A view of a memory, in elements; of a `constant`, kernels may keep copies."""

    memory: int
    offset: int
    shape: Shape
    strides: Shape
    constant: bool = False


@dataclass(frozen=True)
class Number:
    """A Python number, an argument of the program; a `literal` is part of it."""

    value: bool | int | float
    dtype: str
    literal: bool = False


@dataclass(frozen=True)
class Step:
    """An operator applied to earlier entries, with all its attributes in the order of its record."""

    operator: str
    attributes: tuple[Any, ...]
    operands: tuple[int, ...]


Entry: TypeAlias = Input | Number | Step


@dataclass(frozen=True)
class Program:
    """Entries in an order in which they can be computed, and those that are results."""

    memories: tuple[Memory, ...]
    entries: tuple[Entry, ...]
    roots: tuple[int, ...]

    @property
    def steps(self) -> int:
        """How many operators are applied."""
        return sum(isinstance(entry, Step) for entry in self.entries)

    @property
    def operators(self) -> set[str]:
        """The names of the operators, those of loops' bodies among them."""
        found = {entry.operator for entry in self.entries if isinstance(entry, Step)}
        return found.union(*[body.operators for loop in self.loops for body in loop.bodies])

    @property
    def loops(self) -> list[Loop]:
        """What the loops and branches among the steps do."""
        attributes = [each for entry in self.entries if isinstance(entry, Step) for each in entry.attributes]
        return [each for each in attributes if isinstance(each, Loop)]

    def with_roots(self, roots: Iterable[int]) -> Program:
        """The same entries with other results."""
        return replace(self, roots=tuple(roots))

    def to_json(self) -> str:
        """The program as one line of text."""
        return json.dumps(_plain(self))

    @staticmethod
    def from_json(text: str) -> Program:
        """The program of such a line."""
        made = _made(json.loads(text))
        assert isinstance(made, Program)
        return made


@dataclass(frozen=True)
class Loop:
    """A loop or a branch: the attribute `control` of its steps, as plain data.

    A body is a program each of whose memories is one operand. `kind`: "Scan" (one body, over `carries` values that go
    from step to step and `slices` operands of which each step gets one), "While" (condition and body), "Cond" (two).
    """

    kind: str
    bodies: tuple[Program, ...]
    carries: int = 0
    slices: int = 0
    reverse: bool = False

    @staticmethod
    def of(control: Any) -> Loop:
        """The loop that a control runs."""
        if isinstance(control, Scan):
            return Loop("Scan", (_program_of(control.body),), control.carries, control.slices, control.reverse)
        if isinstance(control, While):
            return Loop("While", (_program_of(control.condition), _program_of(control.body)), control.carries)
        assert isinstance(control, Cond)
        return Loop("Cond", (_program_of(control.if_true), _program_of(control.if_false)))

    def control(self) -> Any:
        """A control that runs the loop."""
        bodies = [_body_of(body) for body in self.bodies]
        if self.kind == "Scan":
            return one_for_all(Scan, *bodies, self.carries, self.slices, self.reverse)
        return one_for_all(While, *bodies, self.carries) if self.kind == "While" else one_for_all(Cond, *bodies)


CONSTANT = "constant"
"""What `Memory.values` says of a body's operand that stays as it is."""


def _program_of(body: Body) -> Program:
    memories = [
        Memory(
            layout.dtype.name,
            1 + sum(max(extent - 1, 0) * stride for extent, stride in zip(layout.shape, layout.strides, strict=True)),
            *(0, layout.shape, layout.strides),
            CONSTANT if layout.frozen else "ordinary",
        )
        for layout in body.structures
    ]
    holders: list[Leaf] = [Placeholder(layout) for layout in body.structures]

    def entry(leaf: Leaf) -> Entry:
        if leaf.structure.kind == "scalar":
            return Number(leaf.owner, leaf.dtype.name)
        return Input(holders.index(leaf), 0, leaf.shape, leaf.structure.strides)

    return Program(tuple(memories), *_entries(joined(body.nodes(holders)), entry))


def _body_of(program: Program) -> Body:
    layouts = [
        interning.buffer(each.shape, each.strides, dtype_of(each.dtype), CPU, each.values == CONSTANT)
        for each in program.memories
    ]

    def function(*operands: Any) -> tuple[Any, ...]:
        nodes: list[Any] = []
        for entry in program.entries:
            if isinstance(entry, Input):
                nodes.append(operands[entry.memory])
            else:
                nodes.append(number(entry) if isinstance(entry, Number) else stepped(entry, nodes))
        return tuple(nodes[root] for root in program.roots)

    return traced(function, layouts, [])[0]


_CONTROLS = (Scan, While, Cond)
_CLASSES = {known.__name__: known for known in (Memory, Input, Number, Step, Program, Loop)}


def _plain(value: Any) -> Any:
    if isinstance(value, DType):
        return {"dtype": value.name}
    if type(value).__name__ in _CLASSES:
        return {type(value).__name__: [_plain(getattr(value, each.name)) for each in fields(value)]}
    if isinstance(value, (tuple, list)):
        return [_plain(each) for each in value]
    if isinstance(value, dict):
        return {"items": [[name, _plain(each)] for name, each in value.items()]}
    return value


def _made(plain: Any) -> Any:
    if isinstance(plain, list):
        return tuple(_made(each) for each in plain)
    if not isinstance(plain, dict):
        return plain
    ((name, parts),) = plain.items()
    if name == "dtype":
        return dtype_of(parts)
    if name == "items":
        return {key: _made(each) for key, each in parts}
    return _CLASSES[name](*[_made(part) for part in parts])


# -- from structures --------------------------------------------------------------------------------------------------


def harvested(state: tuple[Structure, tuple[Leaf, ...]], places: Sequence[tuple[int, Memory]]) -> Program:
    """The program of expressions that were `lazy.node.joined`; `places` are the addresses of memories, and those."""
    entries, roots = _entries(state, lambda leaf: _entry(leaf, places))
    return Program(tuple(memory for _, memory in places), entries, tuple(dict.fromkeys(roots)))


def _entries(
    state: tuple[Structure, tuple[Leaf, ...]], entry: Callable[[Leaf], Entry]
) -> tuple[tuple[Entry, ...], Shape]:
    """The entries of expressions, and which of them are the results; `entry` says what a leaf is."""
    structure, leaves = state
    *order, last = structure.post_order()
    entries: list[Entry] = []
    for occurrence in order:
        made = occurrence.structure
        if occurrence.leaf is not None:
            entries.append(entry(leaves[occurrence.leaf]))
        elif made.operator is None:
            assert made.value is not None
            entries.append(Number(made.value, made.dtype.name, literal=True))
        else:
            attributes = tuple(Loop.of(each) if isinstance(each, _CONTROLS) else each for each in made.attributes)
            entries.append(Step(made.operator.name, attributes, occurrence.operands))
    return tuple(entries), tuple(last.operands)


def _entry(leaf: Leaf, places: Sequence[tuple[int, Memory]]) -> Entry:
    if leaf.structure.kind == "scalar":
        return Number(leaf.owner, leaf.dtype.name)
    for index, (address, memory) in enumerate(places):
        if 0 in leaf.shape and memory.dtype == leaf.dtype.name:
            return Input(index, 0, leaf.shape, leaf.strides, leaf.structure.frozen)
        offset, rest = divmod(leaf.address - address, dtype_of(memory.dtype).itemsize)
        if memory.dtype == leaf.dtype.name and 0 <= offset <= memory.elements and not rest:
            return Input(index, offset, leaf.shape, leaf.strides, leaf.structure.frozen)
    raise AssertionError(f"{leaf} lies in no memory that the program was drawn with")


# -- to nodes ---------------------------------------------------------------------------------------------------------


def number(entry: Number) -> Node:
    """The node of a number."""
    dtype = dtype_of(entry.dtype)
    node: Node = literal(entry.value, dtype) if entry.literal else leaf_node(scalar_leaf(entry.value, dtype))
    return node


def stepped(entry: Step, nodes: Sequence[Any]) -> Any:
    """The node of a step over the nodes of the entries before it."""
    attributes = tuple(each.control() if isinstance(each, Loop) else each for each in entry.attributes)
    return apply(OPERATORS[entry.operator], attributes, [nodes[index] for index in entry.operands])
