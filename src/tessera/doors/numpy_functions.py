"""NumPy's functions on tensors: those that are operators here give lazy tensors, all others get the values.

`np.sin(x)`, `np.add(array, x)`, `np.concatenate([x, y])` are `op.sin`, `op.add`, `op.concat`, with NumPy's arguments.
`np.percentile(x, 50)` computes x and gives what NumPy gives of its array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy

from tessera.doors import (
    arithmetic,
    bits,
    comparisons,
    creation,
    einsum,
    functions,
    products,
    reductions,
    selection,
    shapes,
    spectral,
    trigonometry,
)
from tessera.doors.nodes import node
from tessera.errors import InPlaceError
from tessera.handle import Tensor

_UFUNCS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(door, name)
        for door, names in (
            (arithmetic, "maximum minimum floor_divide remainder fmod copysign logaddexp"),
            (bits, "bitwise_and bitwise_or bitwise_xor"),
            (comparisons, "logical_and logical_or logical_xor logical_not"),
            (
                functions,
                "exp expm1 log log1p sqrt sin cos tanh floor ceil trunc square reciprocal isnan isinf isfinite signbit",
            ),
            (trigonometry, "tan sinh cosh log2 log10 exp2 hypot"),
        )
        for name in names.split()
    },
    "add": arithmetic.add,
    "subtract": arithmetic.sub,
    "multiply": arithmetic.mul,
    "divide": arithmetic.div,
    "power": arithmetic.pow,
    "negative": functions.neg,
    "absolute": functions.abs,
    "rint": functions.round,
    "invert": bits.bitwise_not,
    "left_shift": bits.bitwise_left_shift,
    "right_shift": bits.bitwise_right_shift,
    "equal": comparisons.eq,
    "not_equal": comparisons.ne,
    "less": comparisons.lt,
    "less_equal": comparisons.le,
    "greater": comparisons.gt,
    "greater_equal": comparisons.ge,
    "arcsin": trigonometry.asin,
    "arccos": trigonometry.acos,
    "arctan": trigonometry.atan,
    "arctan2": trigonometry.atan2,
    "arcsinh": trigonometry.asinh,
    "arccosh": trigonometry.acosh,
    "arctanh": trigonometry.atanh,
    "conjugate": spectral.conj,
    "matmul": products.matmul,
}
"""By the names of NumPy's universal functions. `sign` is not among them: NumPy's of NaN is NaN."""


def _concatenate(arrays: Sequence[object], axis: int | None = 0) -> Tensor:
    if axis is None:
        return shapes.concat([shapes.flatten(each) for each in arrays])
    return shapes.concat(arrays, axis)


def _variance(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def translated(a: object, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Tensor:
        return function(a, axis, ddof, keepdims)

    return translated


def _transpose(a: object, axes: Sequence[int] | None = None) -> Tensor:
    rank = len(node(a).shape)
    return shapes.permute(a, range(rank - 1, -1, -1) if axes is None else axes)


def _cumsum(a: object, axis: int | None = None) -> Tensor:
    return selection.cumsum(shapes.flatten(a), 0) if axis is None else selection.cumsum(a, axis)


def _sort(a: object, axis: int | None = -1) -> Tensor:
    return selection.sort(shapes.flatten(a) if axis is None else a, -1 if axis is None else axis)[0]


def _argsort(a: object, axis: int | None = -1) -> Tensor:
    return selection.argsort(shapes.flatten(a) if axis is None else a, -1 if axis is None else axis)


def _clip(a: object, a_min: object = None, a_max: object = None) -> Tensor:
    return arithmetic.clamp(a, a_min, a_max)


_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    numpy.sum: lambda a, axis=None, *, keepdims=False: reductions.sum(a, axis, keepdims),
    numpy.mean: lambda a, axis=None, *, keepdims=False: reductions.mean(a, axis, keepdims),
    numpy.prod: lambda a, axis=None, *, keepdims=False: reductions.prod(a, axis, keepdims),
    numpy.max: lambda a, axis=None, *, keepdims=False: reductions.max(a, axis, keepdims),
    numpy.min: lambda a, axis=None, *, keepdims=False: reductions.min(a, axis, keepdims),
    numpy.amax: lambda a, axis=None, *, keepdims=False: reductions.max(a, axis, keepdims),
    numpy.amin: lambda a, axis=None, *, keepdims=False: reductions.min(a, axis, keepdims),
    numpy.all: lambda a, axis=None, *, keepdims=False: reductions.all(a, axis, keepdims),
    numpy.any: lambda a, axis=None, *, keepdims=False: reductions.any(a, axis, keepdims),
    numpy.argmax: lambda a, axis=None, *, keepdims=False: reductions.argmax(a, axis, keepdims),
    numpy.argmin: lambda a, axis=None, *, keepdims=False: reductions.argmin(a, axis, keepdims),
    numpy.count_nonzero: lambda a, axis=None, *, keepdims=False: reductions.count_nonzero(a, axis, keepdims),
    numpy.var: _variance(reductions.var),
    numpy.std: _variance(reductions.std),
    numpy.concatenate: _concatenate,
    numpy.stack: lambda arrays, axis=0: shapes.stack(arrays, axis),
    numpy.reshape: lambda a, shape: shapes.reshape(a, (shape,) if isinstance(shape, int) else shape),
    numpy.ravel: shapes.flatten,
    numpy.transpose: _transpose,
    numpy.swapaxes: shapes.swapaxes,
    numpy.moveaxis: shapes.movedim,
    numpy.squeeze: lambda a, axis=None: shapes.squeeze(a, axis),
    numpy.expand_dims: shapes.unsqueeze,
    numpy.broadcast_to: shapes.broadcast_to,
    numpy.flip: lambda m, axis=None: shapes.flip(m, axis),
    numpy.roll: lambda a, shift, axis=None: shapes.roll(a, shift, axis),
    numpy.tile: lambda a, reps: shapes.tile(a, (reps,) if isinstance(reps, int) else reps),
    numpy.repeat: lambda a, repeats, axis=None: shapes.repeat_interleave(a, repeats, axis),
    numpy.tril: lambda m, k=0: creation.tril(m, k),
    numpy.triu: lambda m, k=0: creation.triu(m, k),
    numpy.where: arithmetic.where,
    numpy.clip: _clip,
    numpy.cumsum: _cumsum,
    numpy.sort: _sort,
    numpy.argsort: _argsort,
    numpy.diff: lambda a, n=1, axis=-1: shapes.diff(a, n, axis),
    numpy.einsum: einsum.einsum,
    numpy.zeros_like: lambda a, dtype=None: creation.zeros_like(a, dtype),
    numpy.ones_like: lambda a, dtype=None: creation.ones_like(a, dtype),
    numpy.full_like: lambda a, fill_value, dtype=None: creation.full_like(a, fill_value, dtype),
    numpy.shape: lambda a: node(a).shape,
    numpy.ndim: lambda a: len(node(a).shape),
}
"""NumPy's functions that are operators, by themselves, for the arguments that the operator has."""


def _values(given: Any) -> Any:
    """What was given, with arrays in place of tensors, in lists and tuples too."""
    if isinstance(given, Tensor):
        return given.numpy()
    if type(given) in (list, tuple):
        return type(given)(_values(each) for each in given)
    return given


def _accepts(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operator's function takes these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def array_ufunc(self: Tensor, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
    """NumPy's universal functions. Raises InPlaceError (E_IN_PLACE) where a result is to be written into a tensor."""
    _refuse_writing(kwargs)
    function = _UFUNCS.get(ufunc.__name__) if method == "__call__" and not kwargs else None
    if function is not None:
        return function(*inputs)
    return getattr(ufunc, method)(*map(_values, inputs), **{name: _values(each) for name, each in kwargs.items()})


def array_function(
    self: Tensor, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """NumPy's other functions. Raises InPlaceError (E_IN_PLACE) where a result is to be written into a tensor."""
    _refuse_writing(kwargs)
    ours = _FUNCTIONS.get(function)
    if ours is not None and _accepts(ours, args, kwargs):
        return ours(*args, **kwargs)
    return function(*map(_values, args), **{name: _values(each) for name, each in kwargs.items()})


def _refuse_writing(kwargs: Mapping[str, Any]) -> None:
    out = kwargs.get("out")
    if any(isinstance(each, Tensor) for each in (out if isinstance(out, tuple) else (out,))):
        raise InPlaceError("tensors are immutable", hints=["leave out= away"])


Tensor.__array_ufunc__ = array_ufunc
Tensor.__array_function__ = array_function
