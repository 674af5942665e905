"""A program as text, for readers and for keys of what is kept: Tile IR's names, in the generic form."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tessera.backend.cuda_tile.program.operations import VERSION
from tessera.backend.cuda_tile.program.program import (
    Operand,
    TileBlock,
    TileOperation,
    TileProgram,
    TileValue,
)


def text_of(program: TileProgram) -> str:
    """The program, an operation a line."""
    names: dict[TileValue, str] = {}
    arguments = _named(program.body, names, "arg")
    hints = f" hints {program.hints}" if program.hints else ""
    head = f"// CUDA Tile IR {'.'.join(map(str, VERSION))}\nentry @{program.name}({arguments}){hints} {{"
    return "\n".join([head, *_lines(program.body, names, 1), "}"]) + "\n"


def _named(block: TileBlock, names: dict[TileValue, str], stem: str) -> str:
    for argument in block.arguments:
        names[argument] = f"%{stem}{len(names)}"
    return ", ".join(f"{names[argument]}: {argument.type.name}" for argument in block.arguments)


def _lines(block: TileBlock, names: dict[TileValue, str], depth: int) -> Iterator[str]:
    indent = "  " * depth
    for operation in block.operations:
        head = _head(operation, names)
        for number, inner in enumerate(operation.blocks):
            yield f"{indent}{head if not number else '}'} {{ ({_named(inner, names, 'b')})"
            yield from _lines(inner, names, depth + 1)
        for result in operation.results:
            names[result] = f"%{len(names)}"
        made = ", ".join(names[result] for result in operation.results)
        types = ", ".join(result.type.name for result in operation.results)
        ending = f"{f'{made} : {types}' if made else ''}"
        if operation.blocks:
            yield f"{indent}}}{f' -> {ending}' if ending else ''}"
        else:
            yield f"{indent}{f'{made} = ' if made else ''}{head}{f' : {types}' if types else ''}"


def _head(operation: TileOperation, names: dict[TileValue, str]) -> str:
    operands = ", ".join(filter(None, (_operand(each, names) for each in operation.operands)))
    attributes = ", ".join(f"{name} = {_value(each)}" for name, each in operation.attributes.items())
    flags = f" flags {operation.flags}" if operation.flags else ""
    return f"{operation.name}{f' {operands}' if operands else ''}{f' {{{attributes}}}' if attributes else ''}{flags}"


def _operand(operand: Operand, names: dict[TileValue, str]) -> str:
    if operand is None:
        return ""
    if isinstance(operand, TileValue):
        return names[operand]
    return f"[{', '.join(names[each] for each in operand)}]"


def _value(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(getattr(value, "name", value))
