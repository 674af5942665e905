"""Signatures: what decides whether a trace serves another call, and how two of them differ in words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

from tessera.compiler.trace.parameters import Fixed, Receiver
from tessera.dtypes import DType
from tessera.lazy.structures.structure import Kind, Structure


class Rough(NamedTuple):
    """An operand without its extents: kind, dtype, which extents are 1, and the strides that are 0 or 1."""

    kind: Kind
    dtype: DType
    ones: tuple[bool, ...]
    strides: tuple[int | None, ...]

    def __str__(self) -> str:
        if self.kind == "scalar":
            return f"{self.dtype} number"
        dims = "x".join("1" if one else "?" for one in self.ones)
        strides = ", ".join("?" if stride is None else str(stride) for stride in self.strides)
        return f"{self.dtype}[{dims}] strides [{strides}]"


Signature: TypeAlias = tuple[Rough | Fixed, ...]


def signature_of(key: Iterable[Structure | Fixed]) -> Signature:
    """What is left of a call's arguments without their extents, and without the object whose method it is."""
    return tuple(
        [_rough(part) if isinstance(part, Structure) else part for part in key if not isinstance(part, Receiver)]
    )


def _rough(structure: Structure) -> Rough:
    ones = tuple([extent == 1 for extent in structure.shape])
    strides = tuple([stride if stride in (0, 1) else None for stride in structure.strides])
    return Rough(structure.kind, structure.dtype, ones, strides)


def describe(signature: Signature) -> str:
    """The signature in words."""
    return ", ".join(map(str, signature)) or "no operands"


def compare(signature: Signature, known: Sequence[Signature]) -> str:
    """What is new about a signature, in words, beside the nearest of those that are known."""
    aspects = min((_aspects(signature, other) for other in known), key=len, default=[])
    return f"new {' and '.join(aspects) or 'arguments'}: {describe(signature)}"


def _aspects(signature: Signature, other: Signature) -> list[str]:
    if len(signature) != len(other):
        return ["number of operands"]
    found = {_aspect(part, before) for part, before in zip(signature, other, strict=True) if part != before}
    return sorted(found)


def _aspect(part: Rough | Fixed, before: Rough | Fixed) -> str:
    if not isinstance(part, Rough) or not isinstance(before, Rough):
        return "flags"
    if part.kind != before.kind:
        return "numbers among the operands"
    if part.dtype is not before.dtype:
        return "dtypes"
    if len(part.ones) != len(before.ones):
        return "ranks"
    return "strides" if part.ones == before.ones else "extents of 1"
