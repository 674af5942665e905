"""NumPy's functions on tensors: those that are operators here give lazy tensors, all others get the values.

`np.sin(x)`, `np.add(array, x)`, `np.concatenate([x, y])` are `op.sin`, `op.add`, `op.concat`, with NumPy's arguments.
`np.percentile(x, 50)` computes x and gives what NumPy gives of its array.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy

from tessera.doors import einsum, products, reductions, selection, spectral
from tessera.doors.calls.nodes import node
from tessera.doors.elementwise import arithmetic, bits, comparisons, functions, trigonometry
from tessera.doors.tensors import creation, parts, shapes
from tessera.errors import InPlaceError
from tessera.handle import Tensor
from tessera.typing import ArrayLike


def _reciprocal(x: ArrayLike) -> Any:
    """Of integers NumPy's, which is one."""
    return functions.reciprocal(x) if node(x).dtype.kind == "float" else NotImplemented


_UFUNCS: Final[Mapping[str, Callable[..., Any]]] = {
    **{
        name: getattr(door, name)
        for door, names in (
            (arithmetic, "maximum minimum floor_divide remainder fmod copysign nextafter logaddexp"),
            (bits, "bitwise_and bitwise_or bitwise_xor"),
            (comparisons, "logical_and logical_or logical_xor logical_not"),
            (
                functions,
                "exp expm1 log log1p sqrt sin cos tanh floor ceil trunc square isnan isinf isfinite signbit",
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
    "reciprocal": _reciprocal,
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


def _concatenate(arrays: Sequence[ArrayLike], axis: int | None = 0) -> Tensor:
    if axis is None:
        return parts.concat([shapes.flatten(each) for each in arrays])
    return parts.concat(arrays, axis)


def _variance(function: Callable[..., Tensor]) -> Callable[..., Any]:
    of_floats = _statistic(function)

    def translated(a: ArrayLike, axis: Any = None, *, ddof: float = 0, keepdims: bool = False) -> Any:
        return of_floats(a, axis, correction=ddof, keepdims=keepdims)

    return translated


def _transpose(a: ArrayLike, axes: Sequence[int] | None = None) -> Tensor:
    rank = len(node(a).shape)
    return shapes.permute(a, range(rank - 1, -1, -1) if axes is None else axes)


def _cumsum(a: ArrayLike, axis: int | None = None) -> Tensor:
    return selection.cumsum(shapes.flatten(a), 0) if axis is None else selection.cumsum(a, axis)


def _sort(a: ArrayLike, axis: int | None = -1) -> Tensor:
    return selection.sort(shapes.flatten(a) if axis is None else a, -1 if axis is None else axis)[0]


def _argsort(a: ArrayLike, axis: int | None = -1) -> Tensor:
    return selection.argsort(shapes.flatten(a) if axis is None else a, -1 if axis is None else axis)


def _clip(a: ArrayLike, a_min: ArrayLike | None = None, a_max: ArrayLike | None = None) -> Tensor:
    return node(a) if a_min is None and a_max is None else arithmetic.clamp(a, a_min, a_max)


def _statistic(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """Operators of floats alone; of integers NumPy's own values."""

    def translated(a: ArrayLike, axis: Any = None, *, keepdims: bool = False, **more: float) -> Any:
        value = node(a)
        if value.dtype.kind != "float":
            return NotImplemented
        return function(value, axis, **more, keepdims=keepdims)

    return translated


def _triangle(function: Callable[..., Tensor]) -> Callable[..., Any]:
    def translated(m: ArrayLike, k: int = 0) -> Any:
        return function(m, k) if len(node(m).shape) > 1 else NotImplemented

    return translated


def _squeeze(a: ArrayLike, axis: Any = None) -> Any:
    value = node(a)
    axes = () if axis is None else axis if isinstance(axis, tuple) else (axis,)
    # Where an extent is not 1, NumPy refuses what torch leaves as it is.
    return shapes.squeeze(value, axis) if all(value.shape[each] == 1 for each in axes) else NotImplemented


def _ravel(a: ArrayLike) -> Tensor:
    return shapes.flatten(a)


def _expand_dims(a: ArrayLike, axis: Any) -> Any:
    return shapes.unsqueeze(a, axis) if isinstance(axis, int) else NotImplemented


def _repeat(a: ArrayLike, repeats: Any, axis: int | None = None) -> Any:
    return shapes.repeat_interleave(a, repeats, axis) if isinstance(repeats, int) else NotImplemented


def _roll(a: ArrayLike, shift: Any, axis: Any = None) -> Any:
    if axis is None and not isinstance(shift, int):
        return NotImplemented
    return shapes.roll(a, shift, axis)


_FUNCTIONS: Final[Mapping[Callable[..., Any], Callable[..., Any]]] = {
    numpy.sum: lambda a, axis=None, *, keepdims=False: reductions.sum(a, axis, keepdims),
    numpy.mean: _statistic(reductions.mean),
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
    numpy.stack: lambda arrays, axis=0: parts.stack(arrays, axis),
    numpy.reshape: lambda a, shape: shapes.reshape(a, (shape,) if isinstance(shape, int) else shape),
    numpy.ravel: _ravel,
    numpy.transpose: _transpose,
    numpy.swapaxes: shapes.swapaxes,
    numpy.moveaxis: shapes.movedim,
    numpy.squeeze: _squeeze,
    numpy.expand_dims: _expand_dims,
    numpy.broadcast_to: shapes.broadcast_to,
    numpy.flip: lambda m, axis=None: shapes.flip(m, axis),
    numpy.roll: _roll,
    numpy.tile: lambda a, reps: shapes.tile(a, (reps,) if isinstance(reps, int) else reps),
    numpy.repeat: _repeat,
    numpy.tril: _triangle(creation.tril),
    numpy.triu: _triangle(creation.triu),
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
"""NumPy's functions that are operators, by themselves, for the arguments that the operator has.

NotImplemented, or no such argument: NumPy's of the values.
"""


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
    found = NotImplemented if function is None else function(*inputs)
    if found is not NotImplemented:
        return found
    return getattr(ufunc, method)(*map(_values, inputs), **{name: _values(each) for name, each in kwargs.items()})


def array_function(
    self: Tensor, function: Callable[..., Any], types: Sequence[type], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """NumPy's other functions. Raises InPlaceError (E_IN_PLACE) where a result is to be written into a tensor."""
    _refuse_writing(kwargs)
    ours = _FUNCTIONS.get(function)
    if ours is not None and _accepts(ours, args, kwargs):
        found = ours(*args, **kwargs)
        if found is not NotImplemented:
            return found
    return function(*map(_values, args), **{name: _values(each) for name, each in kwargs.items()})


def _refuse_writing(kwargs: Mapping[str, Any]) -> None:
    out = kwargs.get("out")
    if any(isinstance(each, Tensor) for each in (out if isinstance(out, tuple) else (out,))):
        raise InPlaceError("tensors are immutable", hints=["leave out= away"])


Tensor.__array_ufunc__ = array_ufunc
Tensor.__array_function__ = array_function
