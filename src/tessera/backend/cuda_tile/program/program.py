"""A program of CUDA Tile IR: one entry, whose operations a builder appends."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from tessera.backend.cuda_tile.program.types import ElementType, TileType, Type


@dataclass(frozen=True, eq=False)
class TileValue:
    """The result of an operation, or an argument of a block."""

    type: Type

    @property
    def tile(self) -> TileType:
        """Its type, where it is a tile."""
        assert isinstance(self.type, TileType)
        return self.type

    @property
    def number(self) -> ElementType:
        """The type of its elements, which are numbers."""
        return self.tile.number


Operand: TypeAlias = "TileValue | tuple[TileValue, ...] | None"
"""A value, values whose number is written before them, or an optional one that is not there."""


@dataclass(frozen=True, eq=False)
class TileOperation:
    """One operation. `flags` is the word of what is there and what is set of its optional parts."""

    name: str
    operands: tuple[Operand, ...]
    results: tuple[TileValue, ...]
    attributes: dict[str, Any] = field(default_factory=dict)
    flags: int = 0
    blocks: tuple[TileBlock, ...] = ()


@dataclass(eq=False)
class TileBlock:
    """Operations in order, the last one of which ends the block."""

    arguments: tuple[TileValue, ...]
    operations: list[TileOperation] = field(default_factory=list)


@dataclass(frozen=True)
class Hints:
    """What the compiler is told of an entry for one architecture; None leaves it to choose."""

    arch: str
    occupancy: int | None = None
    ctas: int | None = None


@dataclass(eq=False)
class TileProgram:
    """A module with one entry of a name."""

    name: str
    body: TileBlock
    hints: Hints | None = None


class Builder:
    """The cursor of a program."""

    def __init__(self, name: str, parameters: Sequence[Type]) -> None:
        self.program = TileProgram(name, TileBlock(tuple(map(TileValue, parameters))))
        self._blocks = [self.program.body]

    @property
    def parameters(self) -> tuple[TileValue, ...]:
        """The entry's."""
        return self.program.body.arguments

    def many(
        self,
        name: str,
        operands: Sequence[Operand],
        results: Sequence[Type],
        *,
        flags: int = 0,
        blocks: Sequence[TileBlock] = (),
        **attributes: Any,
    ) -> tuple[TileValue, ...]:
        """Appends an operation; its results."""
        made = tuple(map(TileValue, results))
        self._blocks[-1].operations.append(TileOperation(name, tuple(operands), made, attributes, flags, tuple(blocks)))
        return made

    def one(
        self, name: str, operands: Sequence[Operand], result: Type, *, flags: int = 0, **attributes: Any
    ) -> TileValue:
        """Appends an operation with one result."""
        (made,) = self.many(name, operands, [result], flags=flags, **attributes)
        return made

    def end(self, name: str, values: Sequence[TileValue] = ()) -> None:
        """Ends the block that is open."""
        self.many(name, [tuple(values)], [])

    @contextmanager
    def block(self, arguments: Sequence[Type] = ()) -> Iterator[TileBlock]:
        """A block, to which operations inside the `with` go."""
        made = TileBlock(tuple(map(TileValue, arguments)))
        self._blocks.append(made)
        yield made
        self._blocks.pop()
