"""A program of CUDA Tile IR: one entry, whose operations a builder appends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tessera.backend.cuda_tile.program.types import Element, Tile, Type


@dataclass(frozen=True, eq=False)
class Value:
    """The result of an operation, or an argument of a block."""

    type: Type

    @property
    def tile(self) -> Tile:
        """Its type, where it is a tile."""
        assert isinstance(self.type, Tile)
        return self.type

    @property
    def number(self) -> Element:
        """The type of its elements, which are numbers."""
        return self.tile.number


Operand: TypeAlias = "Value | tuple[Value, ...] | None"
"""A value, values whose number is written before them, or an optional one that is not there."""


@dataclass(frozen=True, eq=False)
class Operation:
    """One operation. `flags` is the word of what is there and what is set of its optional parts."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[Value, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    flags: int = 0
    blocks: tuple[Block, ...] = ()


@dataclass(eq=False)
class Block:
    """Operations in order, the last one of which ends the block."""

    arguments: tuple[Value, ...]
    operations: list[Operation] = field(default_factory=list)


@dataclass(frozen=True)
class Hints:
    """What the compiler is told of an entry for one architecture; None leaves it to choose."""

    arch: str
    occupancy: int | None = None
    ctas: int | None = None


@dataclass(eq=False)
class Program:
    """A module with one entry of a name."""

    name: str
    body: Block
    hints: Hints | None = None


class Builder:
    """The cursor of a program."""

    def __init__(self, name: str, parameters: Sequence[Type]) -> None:
        self.program = Program(name, Block(tuple(map(Value, parameters))))
        self._blocks = [self.program.body]

    @property
    def parameters(self) -> tuple[Value, ...]:
        """The entry's."""
        return self.program.body.arguments

    def many(
        self,
        name: str,
        operands: Sequence[Operand],
        results: Sequence[Type],
        *,
        flags: int = 0,
        blocks: Sequence[Block] = (),
        **attributes: Any,
    ) -> tuple[Value, ...]:
        """Appends an operation; its results."""
        made = tuple(map(Value, results))
        self._blocks[-1].operations.append(Operation(name, tuple(operands), made, attributes, flags, tuple(blocks)))
        return made

    def one(self, name: str, operands: Sequence[Operand], result: Type, *, flags: int = 0, **attributes: Any) -> Value:
        """Appends an operation with one result."""
        (made,) = self.many(name, operands, [result], flags=flags, **attributes)
        return made

    def end(self, name: str, values: Sequence[Value] = ()) -> None:
        """Ends the block that is open."""
        self.many(name, [tuple(values)], [])

    @contextmanager
    def block(self, arguments: Sequence[Type] = ()) -> Iterator[Block]:
        """A block, to which operations inside the `with` go."""
        made = Block(tuple(map(Value, arguments)))
        self._blocks.append(made)
        yield made
        self._blocks.pop()
