"""Operators that generate what they give: `iota`, the numbers of elements, and `philox`, random bits by number.

Numbers of elements are never read from memory: kernels know where they are. So masks, encodings of positions and random
choices are algebra over `iota`, which fuses like all else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import torch

from tessera.dtypes import DType, int64
from tessera.ir.anchors import rules as anchor_rules
from tessera.lazy.structures.structure import Shape
from tessera.ops.applications import layouts, places
from tessera.ops.emitter import Emitter, V
from tessera.ops.record import Named, Operator, Typed, dtype_error, elements, register, shape_error

N: TypeAlias = Any


# -- iota -------------------------------------------------------------------------------------------------------------


def _nothing(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return []


def _int64(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> DType:
    return int64


def _without_shape(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {"shape": None}


def _iota_reference(*, shape: Shape) -> torch.Tensor:
    return torch.arange(elements(shape)).reshape(shape)


def _no_cotangents(g: N, operands: tuple[N, ...], out: N, **attributes: Any) -> tuple[None, ...]:
    return (None,) * len(operands)


def _iota_body(e: Emitter[V], *, shape: Shape) -> V:
    return e.position()


IOTA = register(
    Operator(
        name="iota",
        family="layout",
        arity=(0, 0),
        operand_dtypes=_nothing,
        element=_int64,
        reference=_iota_reference,
        gradient=_no_cotangents,
        body=_iota_body,
        attributes={"shape": ()},
        symbolic=_without_shape,
        anchor=anchor_rules.numbering,
        movement="counted",
        application=layouts.of_numbering,
    )
)
"""The row-major numbers of the elements of a shape: along one axis of extent n, where all others are 1, 0 to n - 1."""


# -- philox -----------------------------------------------------------------------------------------------------------

ROUNDS: Final = 10
MULTIPLIERS: Final = (0xD2511F53, 0xCD9E8D57)
WEYL: Final = (0x9E3779B9, 0xBB67AE85)
"""Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 4: Philox-4x32-10,
which passes TestU01's BigCrush; the constants are those of their Random123 library.
"""
LOW: Final = 0xFFFFFFFF


def _integers(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    if any(operand.dtype.kind != "int" for operand in operands):
        raise dtype_error(name, operands, "counters and seeds are integers", ["cast to int64"])
    return [int64, int64]


def _philox_result(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    counter, seed = operands
    if seed.shape:
        raise shape_error(name, operands, "the seed is one number")
    return counter.shape, int64


def _philox_reference(counter: torch.Tensor, seed: torch.Tensor) -> torch.Tensor:
    words = [counter & LOW, (counter >> 32) & LOW, torch.zeros_like(counter), torch.zeros_like(counter)]
    keys = [seed & LOW, (seed >> 32) & LOW]
    for _ in range(ROUNDS):
        # 64-bit products wrap around, and keep all their bits.
        first, second = (word * factor for word, factor in zip(words[::2], MULTIPLIERS, strict=True))
        words = [
            ((second >> 32) & LOW) ^ words[1] ^ keys[0],
            second & LOW,
            ((first >> 32) & LOW) ^ words[3] ^ keys[1],
            first & LOW,
        ]
        keys = [(key + step) & LOW for key, step in zip(keys, WEYL, strict=True)]
    return words[0]


def _philox_body(e: Emitter[V], counter: V, seed: V) -> V:
    low, half = e.constant(LOW, counter), e.constant(32, counter)
    multipliers = [e.constant(factor, counter) for factor in MULTIPLIERS]

    def upper(x: V) -> V:
        return e.bitwise_and(e.shift_right(x, half), low)

    zero = e.constant(0, counter)
    words = [e.bitwise_and(counter, low), upper(counter), zero, zero]
    keys = [e.bitwise_and(seed, low), upper(seed)]
    for _ in range(ROUNDS):
        first, second = e.mul(words[0], multipliers[0]), e.mul(words[2], multipliers[1])
        words = [
            e.bitwise_xor(e.bitwise_xor(upper(second), words[1]), keys[0]),
            e.bitwise_and(second, low),
            e.bitwise_xor(e.bitwise_xor(upper(first), words[3]), keys[1]),
            e.bitwise_and(first, low),
        ]
        keys = [e.bitwise_and(e.add(key, e.constant(step, key)), low) for key, step in zip(keys, WEYL, strict=True)]
    return words[0]


PHILOX = register(
    Operator(
        name="philox",
        family="elementwise",
        arity=(2, 2),
        operand_dtypes=_integers,
        result=_philox_result,
        reference=_philox_reference,
        gradient=_no_cotangents,
        body=_philox_body,
        attributes={},
        application=places.of_counters,
    )
)
"""32 random bits, in int64: the first word of Philox-4x32-10 of the counter (n, 0), n of 64 bits, under a key of 64."""
