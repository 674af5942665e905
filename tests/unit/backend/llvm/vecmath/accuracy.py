"""Errors in units in the last place, and arguments that leave nothing out."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SPECIAL = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0)


def every_exponent(step: int = 4999) -> npt.NDArray[np.float32]:
    """fp32 numbers a constant step of the bit pattern apart, both signs, denormals included, and the special ones."""
    patterns = np.arange(0, 2**32, step, dtype=np.uint64).astype(np.uint32)
    return np.concatenate([patterns.view(np.float32), np.array(SPECIAL, np.float32)])


def neighbourhood(values: list[float], width: int = 2000) -> npt.NDArray[np.float32]:
    """The fp32 numbers on both sides of each value."""
    centres = np.array(values, np.float32).view(np.int32)
    return (centres[:, None] + np.arange(-width, width, dtype=np.int32)).ravel().astype(np.int32).view(np.float32)


def agree_outside_range(got: Array, reference: Array) -> bool:
    """Whether NaN and infinities stand where they stand in the reference rounded to the type of `got`."""
    with np.errstate(over="ignore"):
        expected = reference.astype(got.dtype)
    unusual = ~np.isfinite(expected) | ~np.isfinite(got)
    return bool(np.array_equal(got[unusual], expected[unusual], equal_nan=True))


def largest_error_ulp(got: Array, reference: Array) -> float:
    """The largest error over finite results, in units of the spacing of numbers at the (float64) reference."""
    with np.errstate(over="ignore"):
        expected = reference.astype(got.dtype)
    finite = np.isfinite(expected) & np.isfinite(got)
    spacing = np.abs(np.spacing(expected[finite])).astype(np.float64)
    return float(np.max(np.abs(got[finite].astype(np.float64) - reference[finite]) / spacing))
