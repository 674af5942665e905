"""Expressions as text, for `repr` and error messages."""

from __future__ import annotations

from typing import Final

from tessera.lazy.structures.structure import Occurrence, Structure

MOST_NODES: Final = 12
"""Operators that are written out; a larger expression shows how many there are."""

MOST_CHARACTERS: Final = 200


def expression(structure: Structure) -> str:
    """The algebra of a pending tensor: `add(matmul(a, b), c)` with leaves named in their order; shared parts are
    repeated.

    Large expressions are shortened to the root and the number of operators below it.
    """
    name = structure.operator.name if structure.operator else structure.kind
    if structure.size > MOST_NODES:
        return f"{name}(... {structure.size} operators over {structure.leaf_count} leaves)"
    texts: list[str] = []
    for occurrence in structure.post_order():
        texts.append(_text(occurrence, texts))
        if len(texts[-1]) > MOST_CHARACTERS:
            return f"{name}(... {structure.size} operators over {structure.leaf_count} leaves)"
    return texts[-1]


def _text(occurrence: Occurrence, texts: list[str]) -> str:
    structure = occurrence.structure
    if occurrence.leaf is not None:
        return leaf_name(occurrence.leaf)
    if structure.operator is None and structure.kind == "constant":
        return repr(structure.value)
    name = structure.operator.name if structure.operator else structure.kind
    arguments = [texts[index] for index in occurrence.operands]
    arguments += [f"{key}={value}" for key, value in structure.named_attributes.items() if value is not None]
    return f"{name}({', '.join(arguments)})"


def leaf_name(number: int) -> str:
    """a, b, ..., z, a1, b1, ..."""
    letter = chr(ord("a") + number % 26)
    return letter if number < 26 else f"{letter}{number // 26}"
