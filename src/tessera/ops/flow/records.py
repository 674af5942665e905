"""Control flow as operators: `flow_fp32` and its like are the results of one dtype of a `Control`, packed in a row.

A call of a loop or a branch gives several results of any dtypes. The operators of all dtypes are one call (`joint`),
each of which gives its results one behind the other; `pack` and `unpack` say where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, TypeAlias

import torch

from tessera.dtypes import ALL, COMPLEX, FLOAT8, SUPPORTED, DType
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications.rule import Application
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, elements

N: TypeAlias = Any

Kind: TypeAlias = tuple[Shape, DType]
"""Shape and dtype of a result."""


class Control(Protocol):
    """What is run: compared by identity, so that one is made once for all calls that mean the same."""

    name: str
    """Unique in the process: programs are told apart by it."""

    def kinds(self, length: int) -> Sequence[Kind]:
        """The results' shapes and dtypes; `length` is the number of steps where it is known."""

    def run(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor], length: int) -> None:
        """Computes the results into memory that is given."""

    def reference(self, operands: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
        """The results by the references of the operators in it."""

    def pull_back(self, operands: Sequence[N], cotangents: Sequence[N | None], length: int) -> list[N | None]:
        """The cotangents of the operands, for those of the results, as nodes."""

    def flops(self, length: int) -> int:
        """Operations, as far as the number of steps is known."""


DTYPES: Final = tuple(dtype for dtype in ALL[::-1] if dtype in SUPPORTED - COMPLEX - FLOAT8)
"""What results may be of: all that kernels compute with but 8-bit floats and complex numbers."""

NAMES: Final = tuple(f"flow_{dtype}" for dtype in DTYPES)


def unpack(control: Control, packs: dict[DType, N], length: int) -> list[N]:
    """The results as nodes, out of the packed ones."""
    starts = dict.fromkeys(DTYPES, 0)
    made = []
    for shape, dtype in control.kinds(length):
        count = elements(shape)
        part = call("slice", packs[dtype], starts=(starts[dtype],), sizes=(count,), steps=(1,))
        made.append(call("reshape", part, shape=shape))
        starts[dtype] += count
    return made


def _views(kinds: Sequence[Kind], packs: dict[DType, torch.Tensor]) -> list[torch.Tensor]:
    """The memory of each result among the packed ones."""
    starts = dict.fromkeys(DTYPES, 0)
    made = []
    for shape, dtype in kinds:
        count = elements(shape)
        made.append(packs[dtype][starts[dtype] : starts[dtype] + count].view(shape))
        starts[dtype] += count
    return made


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _dtype(name: str) -> DType:
    return DTYPES[NAMES.index(name)]


def _packed(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    own = _dtype(name)
    kinds = attributes["control"].kinds(attributes["length"])
    return (sum(elements(shape) for shape, dtype in kinds if dtype is own),), own


def _run(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    control, length = attributes["control"], attributes["length"]
    packs = dict(zip(DTYPES, outputs, strict=True))
    control.run(inputs, _views(control.kinds(length), packs), length)


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    count: int = attributes["control"].flops(attributes["length"])
    return count


def _by_name(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    """One program serves all lengths."""
    return {"control": attributes["control"].name, "length": None}


def _reference_of(dtype: DType) -> Any:
    def reference(*operands: torch.Tensor, control: Control, length: int) -> torch.Tensor:
        kinds = control.kinds(length)
        results = control.reference(operands, length)
        own = [value.flatten() for value, (_, kind) in zip(results, kinds, strict=True) if kind is dtype]
        return torch.cat(own) if own else torch.empty(0, dtype=dtype.torch)

    return reference


def _gradient_of(dtype: DType) -> Any:
    """Of one dtype's results: those of the others have no cotangents here, and theirs are added."""

    def gradient(g: N, operands: tuple[N, ...], out: N, *, control: Control, length: int) -> Sequence[N | None]:
        if dtype.kind != "float":
            return (None,) * len(operands)
        cotangents: list[N | None] = []
        start = 0
        for shape, kind in control.kinds(length):
            if kind is not dtype:
                cotangents.append(None)
                continue
            count = elements(shape)
            part = call("slice", g, starts=(start,), sizes=(count,), steps=(1,))
            cotangents.append(call("reshape", part, shape=shape))
            start += count
        return control.pull_back(operands, cotangents, length)

    return gradient


def _of_none(chance: object, value: object) -> Application | None:
    """A body is a user's: programs with loops are drawn by tests of their own."""
    return None


for _name, _own in zip(NAMES, DTYPES, strict=True):
    define(
        _name,
        _run,
        {"control": None, "length": 0},
        arity=(1, 1 << 16),
        operand_dtypes=_as_given,
        result=_packed,
        flops=_flops,
        reference=_reference_of(_own),
        gradient=_gradient_of(_own),
        application=_of_none,
        symbolic=_by_name,
        joint=NAMES,
    )
