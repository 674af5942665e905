"""Operands for property tests: values with everything that floats have, in every layout that memory has."""

from __future__ import annotations

import math
from typing import Any, Literal, TypeAlias, get_args

import torch
from hypothesis import strategies as st

from tessera.dtypes import DType

Shape: TypeAlias = tuple[int, ...]
Values: TypeAlias = Literal["ordinary", "special", "unbounded"]
Layout: TypeAlias = Literal["contiguous", "transposed", "stepped", "rows apart", "repeated"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

EXTENTS = (0, 1, 2, 3, 5, 7, 12, 13, 16, 17, 31, 32, 33, 48, 53, 65, 97, 129)
"""None, one, primes, multiples of vector widths and register tiles (12, 16, 32, 48), and their neighbours."""

LONG_EXTENTS = (257, 1031, 2049)
"""More than one block of a row kernel."""


def shapes(rank: int, long: bool = False) -> st.SearchStrategy[Shape]:
    """Shapes of a rank; with `long` the last extent may take more than one block."""
    last = EXTENTS + LONG_EXTENTS if long else EXTENTS
    # Few 0s and 1s: each place of a 1 is a program of its own, and an empty tensor tests little else.
    common = st.sampled_from([extent for extent in EXTENTS if extent > 1])
    any_extent = st.sampled_from(EXTENTS)
    lead = st.one_of(common, common, common, any_extent)
    return st.tuples(*[lead] * (rank - 1), st.sampled_from(last)) if rank else st.just(())


def filled(shape: Shape, dtype: DType, values: Values, seed: int) -> torch.Tensor:
    """A contiguous tensor of drawn values. "special" ones include NaN, infinities and -0.0; "unbounded" ones also the
    largest, the smallest and denormal numbers, and the limits of integers.
    """
    generator = torch.Generator().manual_seed(seed)
    if dtype.kind == "float":
        plain = torch.randn(shape, generator=generator, dtype=torch.float64) * 2
    else:
        plain = torch.randint(-9, 10, shape, generator=generator).double()
    if dtype.kind == "bool":
        return plain > 0
    tensor = (plain.to(torch.int64) if dtype.kind == "int" else plain).to(dtype.torch)  # bytes wrap around
    if values == "ordinary":
        return tensor
    extremes = _special(dtype) if values == "special" else _special(dtype) + _limits(dtype)
    if not extremes:
        return tensor
    pool = torch.tensor(extremes, dtype=dtype.torch)
    chosen = pool[torch.randint(0, len(pool), shape, generator=generator)]
    # Sparse enough that most rows and sums stay finite, dense enough that the smallest tensors have some.
    return torch.where(torch.rand(shape, generator=generator) < 0.1, chosen, tensor)


def _special(dtype: DType) -> list[Any]:
    return [math.nan, math.inf, -math.inf, -0.0, 0.0] if dtype.kind == "float" else []


def _limits(dtype: DType) -> list[Any]:
    if dtype.kind == "float":
        info = torch.finfo(dtype.torch)
        denormal = info.smallest_normal / 4
        return [info.max, info.min, info.smallest_normal, denormal, -denormal, 88.5, -88.5, 1.0, -1.0]
    limits = torch.iinfo(dtype.torch)
    return [limits.max, limits.min, 0, 1 if dtype.is_unsigned else -1]


def laid_out(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The values of a contiguous tensor in another layout; of "repeated" the first row, everywhere.

    What lies between the elements is poison (see `poison_value`), so that a kernel that reads it is found out.
    """
    if not tensor.ndim or layout == "contiguous":
        return tensor
    if layout == "transposed":
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "repeated":
        return tensor[:1].expand(tensor.shape)
    *lead, last = tensor.shape
    if layout == "stepped":
        memory = torch.full((*lead, 2 * last), poison_value(tensor.dtype), dtype=tensor.dtype)
        view = memory[..., ::2]
    else:
        memory = torch.full((*lead, last + 5), poison_value(tensor.dtype), dtype=tensor.dtype)
        view = memory[..., 3 : 3 + last]
    view.copy_(tensor)
    return view


def poison_value(dtype: torch.dtype) -> Any:
    """A value that spoils every result it gets into."""
    if dtype.is_floating_point:
        return math.nan
    return True if dtype is torch.bool else torch.iinfo(dtype).min // 3 or torch.iinfo(dtype).max // 3
