"""Errors against a float64 reference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

Unit = Literal["ulp", "ulp of x", "eps of the largest"]
"""What an error is counted in: the spacing of the result's dtype at the exact result, at the argument (of functions
that are the argument times a difference of almost equal numbers), or at the largest result of the whole tensor."""


@dataclass(frozen=True)
class ErrorRow:
    """One line of the table: the largest errors of Tessera and of torch on the same operands."""

    kernel: str
    dtype: str
    operands: str
    unit: Unit
    ours: float
    torch: float

    @property
    def verdict(self) -> str:
        """Who is nearer to float64; alike within a tenth, or where both are below what one rounding makes."""
        if max(self.ours, self.torch) <= 0.5 or self.ours == self.torch:
            return "alike"
        if self.ours > 1.1 * self.torch:
            return "torch"
        return "Tessera" if self.torch > 1.1 * self.ours else "alike"


def spacing(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance (float64) between neighbours of `dtype` around the float64 `values`; the least one from zero to the
    smallest normal number."""
    facts = torch.finfo(dtype)
    exponent = torch.frexp(values.abs().clamp_min(facts.tiny))[1].double() - 1.0
    return torch.exp2(exponent) * facts.eps


def ulp_error(result: torch.Tensor, exact: torch.Tensor, scale: torch.Tensor | None = None) -> float:
    """Largest error of `result` against `exact` (float64), in spacings of the result's dtype at `scale` or at `exact`.

    Where the exact result rounds to an infinity, or is NaN, the result has to be that, else the error is infinite.
    """
    dtype = result.dtype
    rounded, found = exact.to(dtype).double(), result.double()
    finite = rounded.isfinite()
    alike = (found == rounded) | (found.isnan() & rounded.isnan())
    if not bool((alike | finite).all()) or not bool((found.isfinite() | ~finite).all()):
        return float("inf")
    at = (exact if scale is None else scale)[finite]
    errors = (found - exact)[finite].abs() / spacing(at, dtype)
    return float(errors.max()) if errors.numel() else 0.0


def relative_error(result: torch.Tensor, exact: torch.Tensor) -> float:
    """Largest error as a share of the largest exact value, in units of the result's epsilon. Infinite for NaN."""
    largest = exact.abs().max().clamp_min(torch.finfo(result.dtype).tiny)
    error = (result.double() - exact).abs().max() / largest / torch.finfo(result.dtype).eps
    return float(torch.nan_to_num(error, nan=float("inf")))
