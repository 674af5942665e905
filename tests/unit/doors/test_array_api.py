"""The array API standard: how much of it there is, and that it means what NumPy means by it, on drawn arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import array_api as xp
from tessera import op
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tests.array_api import DTYPES, FUNCTIONS, coverage, missing
from tests.imports import SOURCE

MISSING: frozenset[str] = frozenset()
MISSING_DTYPES = frozenset("uint16 uint32 uint64".split())


def test_what_is_there_and_what_is_not() -> None:
    assert set(missing(FUNCTIONS)) == MISSING
    assert set(missing(DTYPES)) == MISSING_DTYPES
    assert {*xp.__all__} - FUNCTIONS - DTYPES == {"e", "inf", "nan", "newaxis", "pi"}
    page = (SOURCE.parent / "docs" / "coming-from.md").read_text()
    assert f"{len(FUNCTIONS - MISSING)} of the {len(FUNCTIONS)} functions" in page
    assert coverage(FUNCTIONS) == f"{len(FUNCTIONS - MISSING)} of {len(FUNCTIONS)}"
    assert all(f"`{name}`" in page for name in MISSING | MISSING_DTYPES)


def test_a_tensor_names_the_namespace() -> None:
    x = op.tensor([1.0])
    assert x.__array_namespace__() is xp
    with pytest.raises(ArgumentError, match="version"):
        x.__array_namespace__(api_version="1999.01")


KINDS = {
    "float": ("float32", "float64"),
    "int": ("uint8", "int8", "int16", "int32", "int64"),
    "number": ("float32", "float64", "uint8", "int16", "int32", "int64"),
    "bool": ("bool",),
    "bits": ("uint8", "int16", "int32", "int64", "bool"),
    "any": ("float32", "int64", "bool"),
}

UNARY = {
    "float": "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal signbit sin sinh "
    "sqrt tan tanh",
    "number": "abs ceil floor isfinite isinf isnan negative positive round sign square trunc conj real",
    "bits": "bitwise_invert",
    "any": "logical_not tril triu matrix_transpose argsort nonzero unique_values",
}
BINARY = {
    "float": "atan2 copysign hypot logaddexp nextafter divide",
    "number": "add multiply subtract equal greater greater_equal less less_equal not_equal maximum minimum",
    "bits": "bitwise_and bitwise_or bitwise_xor",
    "any": "logical_and logical_or logical_xor",
}


def _along(name: str) -> Callable[[Any, Any, int], Any]:
    return lambda np, x, axis: getattr(np, name)(x, axis=axis)


ALONG: dict[str, tuple[str, Callable[[Any, Any, int], Any]]] = {
    **{
        name: (kind, _along(name))
        for kind, names in (
            ("number", "sum prod max min argmax argmin sort cumulative_sum cumulative_prod diff flip"),
            ("any", "all any count_nonzero argsort expand_dims unstack flip"),
            ("float", "mean std var"),
        )
        for name in names.split()
    },
    "roll": ("any", lambda np, x, axis: np.roll(x, 2, axis=axis)),
    "cumulative sum from 0": ("number", lambda np, x, axis: np.cumulative_sum(x, axis=axis, include_initial=True)),
    "cumulative product from 1": ("int", lambda np, x, axis: np.cumulative_prod(x, axis=axis, include_initial=True)),
    "unbiased": ("float", lambda np, x, axis: np.var(x, axis=axis, correction=1, keepdims=True)),
    "repeat": ("any", lambda np, x, axis: np.repeat(x, 2, axis=axis)),
    "stack": ("any", lambda np, x, axis: np.stack([x, x], axis=axis)),
    "concat": ("any", lambda np, x, axis: np.concat([x, x], axis=axis)),
    "in a row": ("any", lambda np, x, axis: np.concat([x, x], axis=None)),
    "take": ("any", lambda np, x, axis: np.take(x, np.asarray([0, 0]), axis=axis)),
    "take_along_axis": ("any", lambda np, x, axis: np.take_along_axis(x, np.argsort(x, axis=axis), axis=axis)),
    "vecdot": ("number", lambda np, x, axis: np.vecdot(x, x, axis=axis)),
    "moveaxis": ("any", lambda np, x, axis: np.moveaxis(x, axis, 0)),
    "tensordot": ("number", lambda np, x, axis: np.tensordot(x, x, axes=([axis], [axis]))),
}
CREATED: dict[str, Callable[[Any], Any]] = {
    "arange": lambda np: np.arange(2, 11, 3),
    "broken arange": lambda np: np.arange(0.0, 1.0, 0.25, dtype=np.float64),
    "eye": lambda np: np.eye(3, 4, k=1, dtype=np.float32),
    "linspace": lambda np: np.linspace(-1.0, 2.0, 7, dtype=np.float64),
    "open linspace": lambda np: np.linspace(0.0, 1.0, 4, endpoint=False, dtype=np.float64),
    "meshgrid": lambda np: np.meshgrid(np.arange(3), np.arange(2), indexing="xy")[0],
    "full": lambda np: np.full((2, 2), 7, dtype=np.int64),
    "zeros": lambda np: np.zeros(3, dtype=np.float32),
    "tile": lambda np: np.tile(np.arange(3), (2, 2)),
    "where": lambda np: np.where(np.arange(4) > 1, np.arange(4), np.asarray(-1)),
    "shift": lambda np: np.bitwise_left_shift(np.arange(5), np.asarray(2)),
    "divided": lambda np: np.floor_divide(np.arange(-5, 5), np.asarray(3)),
    "rest": lambda np: np.remainder(np.arange(-5, 5), np.asarray(-3)),
    "clip": lambda np: np.clip(np.arange(6), 1, 4),
    "power": lambda np: np.pow(np.arange(4), np.asarray(2)),
    "broadcast": lambda np: np.broadcast_arrays(np.arange(3), np.zeros((2, 1)))[0],
    "permuted": lambda np: np.permute_dims(np.reshape(np.arange(24), (2, 3, 4)), (2, 0, 1)),
    "squeezed": lambda np: np.squeeze(np.zeros((1, 3, 1), dtype=np.float32), axis=(0, 2)),
    "counts": lambda np: np.unique_counts(np.asarray([3, 1, 3, 2, 1])).counts,
    "places": lambda np: np.searchsorted(np.asarray([1, 3, 3, 7]), np.asarray([[3, 0], [8, 3]])),
    "places behind": lambda np: np.searchsorted(np.asarray([1.0, 3.0]), np.asarray([3.0, 0.0]), side="right"),
    "places by a sorter": lambda np: np.searchsorted(
        np.asarray([7, 1, 3]), np.asarray([2, 8]), sorter=np.asarray([1, 2, 0])
    ),
    "inverse": lambda np: np.unique_inverse(np.asarray([[3, 1], [3, 2]])).inverse_indices,
    "sum of a dtype": lambda np: np.sum(np.asarray([200, 100], dtype=np.uint8), dtype=np.uint8),
    "product of a dtype": lambda np: np.prod(np.asarray([200, 100], dtype=np.int32), dtype=np.int32),
    "running product of a dtype": lambda np: np.cumulative_prod(
        np.asarray([200, 100], dtype=np.uint8), dtype=np.int16, include_initial=True
    ),
    "first": lambda np: np.unique_all(np.asarray([3, 1, 3, 2, 1])).indices,
}


@st.composite
def arrays(draw: Any, kind: str, shape: tuple[int, ...] | None = None) -> Any:
    """An array of a dtype of a kind, with NaN and infinities among floats; at times walked with a step."""
    dtype = draw(st.sampled_from(KINDS[kind]))
    extents = shape or tuple(draw(st.lists(st.sampled_from((1, 2, 3, 7)), min_size=2, max_size=3)))
    source = numpy.random.default_rng(draw(st.integers(0, 1 << 16)))
    values = source.normal(size=(*extents[:-1], 2 * extents[-1])) * draw(st.sampled_from((1.0, 30.0)))
    if dtype.startswith("float"):
        values[source.random(values.shape) < 0.1] = draw(st.sampled_from((0.0, numpy.nan, numpy.inf, -numpy.inf)))
    made = (values > 0) if dtype == "bool" else values.astype(dtype)
    return made[..., ::2] if draw(st.booleans()) else numpy.ascontiguousarray(made[..., : extents[-1]])


def agree(ours: Any, theirs: Any) -> None:
    """Raises AssertionError where a result is another one than NumPy's."""
    if isinstance(theirs, tuple):
        assert len(ours) == len(theirs)
        for own, other in zip(ours, theirs, strict=True):
            agree(own, other)
        return
    assert isinstance(ours, Tensor)
    assert ours.shape == theirs.shape
    found = ours.numpy()
    assert (found.dtype.kind, theirs.dtype.kind) != ("f", "i")
    tolerance = 2e-6 if found.dtype == numpy.float32 else 1e-12
    magnitude = numpy.abs(theirs[numpy.isfinite(theirs)]).max(initial=1.0) if theirs.dtype.kind == "f" else 1.0
    numpy.testing.assert_allclose(found, theirs, rtol=20 * tolerance, atol=tolerance * magnitude)


def _quiet(function: Callable[[], Any]) -> Any:
    with numpy.errstate(all="ignore"):
        return function()


@given(data=st.data())
@settings(max_examples=40)
def test_functions_of_one(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(UNARY)))
    name = data.draw(st.sampled_from(UNARY[kind].split()))
    x = data.draw(arrays(kind))
    if name in ("argsort", "unique_values") and x.dtype.kind == "f":
        x = numpy.nan_to_num(x)  # NumPy's default sort is not stable, and it keeps one NaN
    theirs = {"argsort": lambda value: numpy.argsort(value, stable=True)}.get(name, getattr(numpy, name, None))
    assert theirs is not None
    agree(getattr(xp, name)(op.tensor(x)), _quiet(lambda: theirs(x)))


@given(data=st.data())
@settings(max_examples=30)
def test_functions_of_two(data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(sorted(BINARY)))
    name = data.draw(st.sampled_from(BINARY[kind].split()))
    a = data.draw(arrays(kind))
    b = data.draw(arrays(kind, a.shape)).astype(a.dtype)
    b = b[:1] if data.draw(st.booleans()) else b
    agree(getattr(xp, name)(op.tensor(a), op.tensor(b)), _quiet(lambda: getattr(numpy, name)(a, b)))


@given(data=st.data())
@settings(max_examples=40)
def test_functions_along_an_axis(data: st.DataObject) -> None:
    kind, function = ALONG[data.draw(st.sampled_from(sorted(ALONG)))]
    x = data.draw(arrays(kind))
    x = numpy.nan_to_num(x, posinf=5.0, neginf=-5.0) if x.dtype.kind == "f" else x % 5 if x.dtype.kind == "i" else x
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    agree(function(xp, op.tensor(x), axis), _quiet(lambda: function(_STABLE, x, axis)))


class _Stable:
    """NumPy with the standard's defaults where its own are others."""

    def __getattr__(self, name: str) -> Any:
        if name in ("argsort", "sort"):
            return lambda x, axis=-1: getattr(numpy, name)(x, axis=axis, stable=True)
        return getattr(numpy, name)


_STABLE = _Stable()


@pytest.mark.parametrize("name", sorted(CREATED))
def test_created(name: str) -> None:
    ours, theirs = CREATED[name](xp), CREATED[name](numpy)
    agree(ours, theirs)
    assert ours.dtype == theirs.dtype


def test_dtypes() -> None:
    assert xp.result_type(xp.int32, xp.float32) == xp.float32
    assert xp.result_type(op.tensor([1.0]), 3) == xp.float32
    assert xp.result_type(xp.int8, 1.5) == xp.float32
    assert xp.can_cast(xp.int8, xp.int32)
    assert not xp.can_cast(xp.float64, xp.float32)
    assert xp.isdtype(xp.int8, ("bool", "integral"))
    assert not xp.isdtype(xp.bool, "numeric")
    assert xp.finfo(xp.complex64).bits == 32
    assert xp.iinfo(xp.int8).max == 127
    assert {*xp.__array_namespace_info__().dtypes(kind="integral")} == {"uint8", "int8", "int16", "int32", "int64"}
    assert {*xp.__array_namespace_info__().dtypes(kind="unsigned integer")} == {"uint8"}
    assert xp.result_type(xp.uint8, xp.int8) == xp.int16
    assert not xp.can_cast(xp.int16, xp.uint8)
    with pytest.raises(ArgumentError, match="numbers alone"):
        xp.result_type(1, 2.0)


def test_bounds_and_ends_may_be_left_away() -> None:
    x = op.tensor([1, 4, 9])
    assert xp.clip(x).tolist() == [1, 4, 9]
    assert xp.clip(x, max=3).tolist() == [1, 3, 3]
    assert xp.diff(x, prepend=op.tensor([0]), append=op.tensor([9, 8])).tolist() == [1, 3, 5, 0, -1]
    assert xp.diff(x, append=op.tensor([16]), n=2).tolist() == [2, 2]
