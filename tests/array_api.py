"""How much of the array API standard there is: `python -m tests.array_api` prints the count, and what is missing."""

from __future__ import annotations

from tessera import array_api as xp

FUNCTIONS = frozenset(
    "arange asarray empty empty_like eye from_dlpack full full_like linspace meshgrid ones ones_like tril triu zeros "
    "zeros_like astype can_cast finfo iinfo isdtype result_type abs acos acosh add asin asinh atan atan2 atanh "
    "bitwise_and bitwise_left_shift bitwise_invert bitwise_or bitwise_right_shift bitwise_xor ceil clip conj copysign "
    "cos cosh divide equal exp expm1 floor floor_divide greater greater_equal hypot imag isfinite isinf isnan less "
    "less_equal log log1p log2 log10 logaddexp logical_and logical_not logical_or logical_xor maximum minimum multiply "
    "negative nextafter not_equal positive pow real reciprocal remainder round sign signbit sin sinh square sqrt "
    "subtract tan tanh trunc take take_along_axis matmul matrix_transpose tensordot vecdot broadcast_arrays "
    "broadcast_to concat expand_dims flip moveaxis permute_dims repeat reshape roll squeeze stack tile unstack argmax "
    "argmin count_nonzero nonzero searchsorted where unique_all unique_counts unique_inverse unique_values argsort "
    "sort cumulative_prod cumulative_sum max mean min prod std sum var all any diff __array_namespace_info__".split()
)
"""The functions of version 2024.12, without the extensions `linalg` and `fft`."""

DTYPES = frozenset(
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 complex64 complex128".split()
)


def missing(names: frozenset[str]) -> list[str]:
    """Those names that `tessera.array_api` lacks, in order."""
    return sorted(name for name in names if not hasattr(xp, name))


def coverage(names: frozenset[str]) -> str:
    """How many of these names there are: "131 of 134"."""
    return f"{len(names) - len(missing(names))} of {len(names)}"


def main() -> None:
    """Prints both counts, and what is missing."""
    print(f"array API {xp.__array_api_version__}")
    for what, names in (("functions", FUNCTIONS), ("dtypes", DTYPES)):
        print(f"{coverage(names)} {what}; missing: {', '.join(missing(names)) or 'none'}")


if __name__ == "__main__":
    main()
