"""Histograms, by torch's library: `histc`."""

from __future__ import annotations

import random
import struct
import sys
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType
from tessera.lazy.structures.structure import Shape
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand
from tessera.ops.library import define
from tessera.ops.native_calls import MOST_BYTES, NativeCall, TensorInMemory, are_contiguous
from tessera.ops.record import Named, Typed, dtype_error, elements

N: TypeAlias = Any


def _exact(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    (x,) = operands
    if x.dtype.kind != "float" or x.dtype.itemsize < 4:
        raise dtype_error(name, operands, "defined on fp32 and fp64, which hold counts", ["cast to fp32"])
    return [x.dtype]


def _counts(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return (attributes["bins"],), cast[0]


def _each_placed(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    return 2 * elements(operands[0].shape)


def _reference(x: torch.Tensor, *, bins: int, least: float, most: float) -> torch.Tensor:
    return torch.histc(x, bins, least, most)


def _none(g: N, operands: tuple[N], out: N, **attributes: Any) -> tuple[None]:
    return (None,)


def _histc(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    torch.histc(inputs[0], attributes["bins"], attributes["least"], attributes["most"], out=outputs[0])


_LARGEST = torch.finfo(torch.float32).max / 2


def _natively(
    inputs: Sequence[TensorInMemory], outputs: Sequence[TensorInMemory], attributes: Named
) -> NativeCall | None:
    """Of fp32, between bounds that are given: elsewhere the least and the greatest number are. Where a place among the
    bins overflows, torch says which bin that is.
    """
    (x,), bins, least, most = inputs, *(attributes[name] for name in ("bins", "least", "most"))
    count = elements(x.shape)
    if x.dtype != torch.float32 or not are_contiguous((*inputs, *outputs)) or max(count, bins) * 4 > MOST_BYTES:
        return None
    if not least < most or max(-least, most, (most - least) * bins) > _LARGEST:
        return None
    bounds = [struct.pack("f", each) for each in (least, most)]
    if bounds[0] == bounds[1]:
        return None
    return NativeCall("counted", (count, bins, *(int.from_bytes(each, sys.byteorder) for each in bounds)))


def _of_whole_numbers(chance: random.Random, x: AbstractValue) -> Application | None:
    """Whole numbers in bins of whole widths, so that no rounding decides where an element belongs."""
    if x.dtype.kind != "float" or x.dtype.itemsize < 4:
        return None
    bounds = chance.choice(({"least": 0.0, "most": 8.0}, {"least": 2.0, "most": 6.0}))
    return Application((WantedOperand(x.shape, x.dtype, below=9),), {"bins": chance.choice((2, 4)), **bounds})


define(
    "histc",
    _histc,
    {"bins": 1, "least": 0.0, "most": 0.0},
    operand_dtypes=_exact,
    result=_counts,
    flops=_each_placed,
    native=_natively,
    reference=_reference,
    gradient=_none,
    application=_of_whole_numbers,
)
