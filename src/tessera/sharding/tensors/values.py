"""Values of tensors by the global numbers of their elements, so that every layout of one seed holds the same.

Random bits are Philox's, of the number of an element under a seed. Normal values are made of them by Wichura,
"Algorithm AS 241: the percentage points of the normal distribution" (Applied Statistics 37, 1988), routine PPND7, in
fp64 and in operations that IEEE 754 rounds exactly: whichever device makes an element, and in which loop, gets the same
bits.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Literal, TypeAlias, get_args

import torch

from tessera import dtypes
from tessera.dtypes import DType
from tessera.errors import ArgumentError
from tessera.lazy.layouts import Range, Shape
from tessera.lazy.leaves.sources import SEED
from tessera.ops.layout.generation import PHILOX

Init: TypeAlias = Literal["normal", "uniform", "zeros", "ones"]
"""Standard-normal values, values of [0, 1), and constants."""

INITS: Final[tuple[Init, ...]] = get_args(Init)

_BLOCK: Final = 1 << 20
"""Elements that are made at a time: intermediate results in fp64 then take some tens of megabytes."""

_created = itertools.count()


def next_seed() -> int:
    """A seed of its own for each tensor that the process makes; the same on all ranks that make the same tensors."""
    return SEED + next(_created)


def region_of(shape: Shape, region: Sequence[Range], dtype: DType, init: Init, seed: int) -> torch.Tensor:
    """The elements of a region of a tensor of this shape. Raises ArgumentError (E_ARGUMENT) for another `init`."""
    if init not in INITS:
        raise ArgumentError(f"init={init!r}", hints=[f"one of {', '.join(INITS)}"])
    extents = [end - first for first, end in region]
    made = torch.empty(extents, dtype=dtype.torch, device="cpu")
    flat = made.view(-1)
    make = _MAKERS[init]
    for start in range(0, flat.numel(), _BLOCK):
        local = torch.arange(start, min(start + _BLOCK, flat.numel()), device="cpu")
        flat[start : start + _BLOCK] = _in_dtype(make(_global_numbers(local, shape, region), seed), dtype)
    return made


def _global_numbers(local: torch.Tensor, shape: Shape, region: Sequence[Range]) -> torch.Tensor:
    """The row-major numbers in the whole tensor of elements of a region, by their numbers in the region."""
    number, step = torch.zeros_like(local), 1
    for extent, (first, end) in zip(reversed(shape), reversed(region), strict=True):
        count = max(end - first, 1)
        number += (local % count + first) * step
        local = local // count
        step *= max(extent, 1)
    return number


def _in_dtype(values: torch.Tensor, dtype: DType) -> torch.Tensor:
    if dtype is dtypes.bool_:
        return values > 0
    return (values.round() if dtype.kind == "int" else values).to(dtype.torch)


def _uniform(numbers: torch.Tensor, seed: int) -> torch.Tensor:
    """Values of (0, 1): the middle of one of 2^32 equal parts."""
    bits = PHILOX.reference(numbers, torch.tensor(seed, device="cpu"))
    return (bits.to(torch.float64) + 0.5) / 4294967296.0


def _normal(numbers: torch.Tensor, seed: int) -> torch.Tensor:
    q = _uniform(numbers, seed) - 0.5
    central = 0.180625 - q * q
    inner = q * _ratio(central, _CENTRAL)
    tail = torch.where(q < 0, 0.5 + q, 0.5 - q)
    r = torch.sqrt(-_logarithm(tail))
    outer = torch.where(r <= 5.0, _ratio(r - 1.6, _NEAR), _ratio(r - 5.0, _FAR))
    return torch.where(q.abs() <= 0.425, inner, torch.where(q < 0, -outer, outer))


def _ratio(x: torch.Tensor, polynomials: tuple[Sequence[float], Sequence[float]]) -> torch.Tensor:
    above, below = (_polynomial(x, coefficients) for coefficients in polynomials)
    return above / below


def _polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """By Horner's rule, a product and a sum at a time."""
    total = torch.full_like(x, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        total = total * x
        total = total + coefficient
    return total


def _logarithm(x: torch.Tensor) -> torch.Tensor:
    """The natural logarithm of positive numbers: that of the exponent, and 2 artanh((m - 1) / (m + 1)) as a series."""
    mantissa, exponent = torch.frexp(x)
    z = (mantissa - 1.0) / (mantissa + 1.0)
    square = z * z
    series = _polynomial(square, [2.0 / (2 * power + 1) for power in range(20)])
    return exponent.to(torch.float64) * math.log(2.0) + z * series


_CENTRAL: Final = (
    (3.3871327179, 50.434271938, 159.29113202, 59.109374720),
    (1.0, 17.895169469, 78.757757664, 67.187563600),
)
_NEAR: Final = ((1.4234372777, 2.7568153900, 1.3067284816, 0.17023821103), (1.0, 0.73700164250, 0.12021132975))
_FAR: Final = ((6.6579051150, 3.0812263860, 0.42868294337, 0.017337203997), (1.0, 0.24197894225, 0.012258202635))
"""The coefficients of PPND7, of about seven digits."""

_MAKERS: Final[Mapping[Init, Callable[[torch.Tensor, int], torch.Tensor]]] = {
    "normal": _normal,
    "uniform": _uniform,
    "zeros": lambda numbers, seed: torch.zeros(numbers.shape, dtype=torch.float64, device="cpu"),
    "ones": lambda numbers, seed: torch.ones(numbers.shape, dtype=torch.float64, device="cpu"),
}
