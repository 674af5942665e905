"""Dtypes: what names them, and that they combine as torch's do."""

from __future__ import annotations

import copy
import itertools
import pickle

import numpy
import pytest
import torch

from tessera import dtypes
from tessera.dtypes import (
    ALL,
    SUPPORTED,
    DType,
    accumulator,
    dtype_of,
    holds,
    promote,
    promote_product,
    promote_scalar,
    promote_weak,
    wrapped,
)
from tessera.errors import DTypeError

STORED = [dtype for dtype in ALL if dtype is not dtypes.tf32]


@pytest.mark.parametrize("dtype", ALL, ids=repr)
def test_sizes_are_those_of_torch(dtype: DType) -> None:
    assert dtype.itemsize == dtype.torch.itemsize
    assert dtype.bits == 8 * dtype.torch.itemsize
    assert (dtype.kind == "float") == dtype.torch.is_floating_point


@pytest.mark.parametrize("dtype", ALL, ids=repr)
def test_there_is_one_object_for_each(dtype: DType) -> None:
    assert dtype_of(dtype.name) is dtype
    assert dtype_of(dtype) is dtype
    assert pickle.loads(pickle.dumps(dtype)) is dtype
    assert copy.deepcopy(dtype) is dtype


@pytest.mark.parametrize("dtype", STORED, ids=repr)
def test_torch_and_mlir_name_the_same_dtype(dtype: DType) -> None:
    assert dtype_of(dtype.torch) is dtype
    assert dtype_of(str(dtype.torch)) is dtype
    assert dtype_of(dtype.mlir) is dtype


def test_tf32_is_stored_as_fp32_and_never_found_for_data() -> None:
    assert dtypes.tf32.torch is torch.float32
    assert dtype_of(torch.float32) is dtypes.fp32
    assert dtype_of("f32") is dtypes.fp32
    assert dtypes.tf32 not in SUPPORTED


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (numpy.dtype("float32"), dtypes.fp32),
        (numpy.float64, dtypes.fp64),
        (numpy.dtype("bool"), dtypes.bool_),
        (numpy.int64, dtypes.int64),
        (bool, dtypes.bool_),
        (int, dtypes.int64),
        (float, dtypes.fp64),
        ("float", dtypes.fp32),
        ("double", dtypes.fp64),
        ("half", dtypes.fp16),
        ("int", dtypes.int32),
        ("long", dtypes.int64),
        ("short", dtypes.int16),
        (numpy.uint8, dtypes.uint8),
        ("bool", dtypes.bool_),
    ],
)
def test_other_names_mean_what_they_mean_to_torch_and_numpy(given: object, expected: DType) -> None:
    assert dtype_of(given) is expected


@pytest.mark.parametrize(
    "given",
    ["fp7", "", None, 3, torch.complex32, numpy.dtype("complex256"), numpy.dtype(">f4"), numpy.dtype("U3"), str, []],
)
def test_what_names_no_dtype_is_refused_with_a_list_of_those_there_are(given: object) -> None:
    with pytest.raises(DTypeError, match=r"(?s)E_DTYPE.*hint: .*fp32"):
        dtype_of(given)


@pytest.mark.parametrize(("a", "b"), list(itertools.product(STORED, STORED)), ids=repr)
def test_promotion_is_that_of_torch(a: DType, b: DType) -> None:
    try:
        expected = torch.promote_types(a.torch, b.torch)
    except RuntimeError:
        with pytest.raises(DTypeError, match="no common dtype"):
            promote(a, b)
    else:
        assert promote(a, b).torch is expected


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ("fp8_e4m3", "fp8_e4m3", "fp8_e4m3"),
        ("fp8_e4m3", "fp8_e5m2", "fp32"),
        ("fp8_e4m3", "bf16", "bf16"),
        ("fp8_e5m2", "fp16", "fp16"),
        ("fp8_e5m2", "fp32", "fp32"),
        ("fp8_e4m3", "fp64", "fp64"),
        ("bf16", "fp16", "fp32"),
        ("int32", "bf16", "bf16"),
    ],
)
def test_a_product_has_the_wider_dtype(a: str, b: str, expected: str) -> None:
    for first, second in ((a, b), (b, a)):
        assert promote_product(dtype_of(first), dtype_of(second)) is dtype_of(expected)


@pytest.mark.parametrize("other", ["bool", "int32", "int64", "bf16", "fp32", "fp8_e5m2"])
def test_what_fp8_does_not_meet_is_refused_with_what_to_do(other: str) -> None:
    with pytest.raises(DTypeError, match=r"(?s)no common dtype.*hint: cast"):
        promote(dtypes.fp8_e4m3, dtype_of(other))
    if dtype_of(other).kind != "float":
        with pytest.raises(DTypeError, match="no common dtype"):
            promote_product(dtype_of(other), dtypes.fp8_e4m3)


@pytest.mark.parametrize("value", [True, 2, 2.5])
@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=repr), ids=repr)
def test_a_python_number_is_weak_as_in_torch(dtype: DType, value: bool | int | float) -> None:
    assert promote_scalar(dtype, value).torch is torch.result_type(torch.zeros(2, dtype=dtype.torch), value)


@pytest.mark.parametrize("weak", sorted(SUPPORTED, key=repr), ids=repr)
@pytest.mark.parametrize("dtype", sorted(SUPPORTED, key=repr), ids=repr)
def test_a_tensor_without_dimensions_is_weak_as_in_torch(dtype: DType, weak: DType) -> None:
    try:
        expected = torch.result_type(torch.zeros(2, dtype=dtype.torch), torch.zeros((), dtype=weak.torch))
    except RuntimeError:
        with pytest.raises(DTypeError, match="no common dtype"):
            promote_weak(dtype, weak)
    else:
        # Of pairs of 16-bit floats, which torch has for fp16, there are no tensors here.
        wanted = torch.complex64 if expected is torch.complex32 else expected
        assert promote_weak(dtype, weak).torch is wanted


def test_a_float_follows_torchs_default_dtype() -> None:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert promote_scalar(dtypes.int32, 1.5) is dtypes.fp64
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("value", [1j, "1", None])
def test_what_is_no_real_number_is_refused(value: object) -> None:
    with pytest.raises(DTypeError, match="no real number"):
        promote_scalar(dtypes.fp32, value)  # type: ignore[arg-type]


@pytest.mark.parametrize("narrow", [dtype for dtype in STORED if dtype.kind == "int"], ids=repr)
@pytest.mark.parametrize("wide", [dtype for dtype in STORED if dtype.kind == "int"], ids=repr)
def test_an_integer_dtype_holds_those_whose_limits_it_has(wide: DType, narrow: DType) -> None:
    limits = torch.tensor([torch.iinfo(narrow.torch).min, torch.iinfo(narrow.torch).max])
    assert holds(wide, narrow) is torch.equal(limits.to(wide.torch).long(), limits)


@pytest.mark.parametrize("value", [0, -1, 44, 127, 128, 255, 256, 300, -129, 1 << 15, (1 << 40) - 3, -(1 << 63)])
@pytest.mark.parametrize("dtype", [dtypes.uint8, dtypes.int8, dtypes.int16, dtypes.int32, dtypes.int64], ids=repr)
def test_whole_numbers_wrap_around_as_torchs_do(dtype: DType, value: int) -> None:
    assert wrapped(value, dtype) == torch.tensor(value).to(dtype.torch).item()
    assert dtype.is_unsigned is (dtype is dtypes.uint8)


def test_sums_of_narrow_dtypes_are_formed_in_wider_ones() -> None:
    assert {dtype.name: accumulator(dtype).name for dtype in ALL} == {
        "bool": "bool",
        "uint8": "int32",
        "int8": "int32",
        "int16": "int32",
        "int32": "int32",
        "int64": "int64",
        "fp8_e4m3": "fp32",
        "fp8_e5m2": "fp32",
        "fp16": "fp32",
        "bf16": "fp32",
        "tf32": "fp32",
        "fp32": "fp32",
        "fp64": "fp64",
        "complex64": "complex64",
        "complex128": "complex128",
    }
