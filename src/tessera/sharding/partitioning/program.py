"""Local programs: what each device computes of its shards, and what devices move between them in the meantime.

Values are numbered in the order in which they are made. A program is the same on every device; extents of shards, which
may differ, are worked out where it runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tessera.dtypes import DType
from tessera.lazy.layouts import Coordinates, Layout, MeshShape, Shape
from tessera.lazy.structures.structure import Structure
from tessera.ops.collective.parts import MeshPart
from tessera.ops.record import Operator
from tessera.sharding.partitioning.redistribution import MeshStep

Home: TypeAlias = tuple[MeshPart, ...]
"""The part of the mesh on which a value lies, and the part of that, and so on; nothing for the whole mesh."""


def coordinates_at(home: Home, coordinates: Coordinates) -> Coordinates | None:
    """The coordinates at home of the device at some of the whole mesh; None for one that is not there."""
    at: Coordinates | None = coordinates
    for part in home:
        at = None if at is None else part.coordinates(at)
    return at


@dataclass(frozen=True)
class ShardedValue:
    """A tensor of a global shape, and how it lies on its home."""

    shape: Shape
    dtype: DType
    layout: Layout
    home: Home = ()

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)} {self.layout}"


@dataclass(frozen=True)
class Read:
    """The shard of a leaf, or a number."""

    leaf: int


@dataclass(frozen=True)
class Literal:
    """A literal of the expression."""

    structure: Structure


@dataclass(frozen=True)
class Compute:
    """An operator on shards. `rule` names how it came to compute where its operands lie."""

    operator: Operator
    attributes: tuple[Any, ...]
    operands: tuple[int, ...]
    rule: str


@dataclass(frozen=True)
class ShardMove:
    """One step of a redistribution, and why it is taken; `implicit` where the program does not ask for it, `is_piece`
    where it moves a part of what was one value, so that other parts are computed meanwhile.
    """

    step: MeshStep
    operand: int
    reason: str
    implicit: bool
    is_piece: bool = False


@dataclass(frozen=True)
class Regard:
    """What each device has, as a tensor of its own or as the shard of another. Nothing is computed."""

    operand: int


@dataclass(frozen=True)
class Chunk:
    """One of `count` equal parts along a dimension of what each device has."""

    operand: int
    dim: int
    index: int
    count: int


@dataclass(frozen=True)
class Joined:
    """Pieces of what each device has, one behind the other along a dimension: in each of its equal `blocks` anew."""

    operands: tuple[int, ...]
    dim: int
    blocks: int


@dataclass(frozen=True)
class FromParts:
    """What each device has of the operand of its part of the mesh; zeros on parts that have none."""

    operands: tuple[int, ...]
    parts: tuple[MeshPart, ...]


Instruction = Read | Literal | Compute | ShardMove | Regard | Chunk | Joined | FromParts


def operands_of(instruction: Instruction) -> tuple[int, ...]:
    """The values that an instruction reads, by number."""
    match instruction:
        case Compute() | Joined() | FromParts():
            return instruction.operands
        case ShardMove() | Regard() | Chunk():
            return (instruction.operand,)
    return ()


def is_exchange(instruction: Instruction) -> bool:
    """Whether devices send each other something."""
    return isinstance(instruction, ShardMove) and not instruction.step.is_local


@dataclass
class LocalProgram:
    """What an expression over tensors of one mesh becomes. `roots` are the values that are asked for."""

    mesh: MeshShape
    instructions: list[Instruction] = field(default_factory=list)
    values: list[ShardedValue] = field(default_factory=list)
    roots: tuple[int, ...] = ()

    def add(self, instruction: Instruction, value: ShardedValue) -> int:
        """Appends an instruction, and gives the number of its value."""
        self.instructions.append(instruction)
        self.values.append(value)
        return len(self.values) - 1

    @property
    def moves(self) -> list[ShardMove]:
        """All steps between devices, and the cuts among them."""
        return [each for each in self.instructions if isinstance(each, ShardMove)]

    @property
    def nbytes(self) -> int:
        """The bytes that a device receives."""
        return sum(move.step.nbytes for move in self.moves)

    def lines(self) -> Iterator[str]:
        """The program as text, a line for each value."""
        for number, (instruction, value) in enumerate(zip(self.instructions, self.values, strict=True)):
            local = list(value.layout.largest_shape(value.shape))
            where = "".join(f" on {part}" for part in value.home)
            text = f"{_text(instruction)} : {value.dtype}{local} of {list(value.shape)} ({value.layout})"
            yield f"%{number} = {text}{where}"
        yield f"return {', '.join(f'%{root}' for root in self.roots)}"

    def __str__(self) -> str:
        return "\n".join([f"mesh {self.mesh}", *self.lines()])


def _text(instruction: Instruction) -> str:
    match instruction:
        case Read(leaf):
            return f"leaf {leaf}"
        case Literal(structure):
            return f"literal {structure.value!r}"
        case Compute(operator, attributes, operands, rule):
            named = zip(operator.attribute_names, attributes, strict=True)
            shown = [f"{name}={value}" for name, value in named if value not in (None, ())]
            return f"{operator.name}({', '.join([*(f'%{place}' for place in operands), *shown])}) by {rule}"
        case ShardMove(step, operand):
            moved = f", {step.nbytes:,} bytes" if step.nbytes else ""
            return f"{step} %{operand}{moved}: {instruction.reason}"
        case Regard(operand):
            return f"%{operand} as it lies"
        case Chunk(operand, dim, index, count):
            return f"piece {index} of {count} of %{operand} along {dim}"
        case Joined(operands, dim):
            return f"{', '.join(f'%{place}' for place in operands)}, joined along {dim}"
        case FromParts(operands, parts):
            return ", ".join(f"%{place} of {part}" for place, part in zip(operands, parts, strict=True))


def shard_bytes(value: ShardedValue) -> int:
    """The bytes of the largest shard."""
    return math.prod(value.layout.largest_shape(value.shape)) * value.dtype.itemsize
