"""Functions of `op` as methods of tensors: `x.sin()` is `op.sin(x)`, with the same further arguments.

This is the one place that says which are. `tests/test_methods.py` makes of it what type checkers see,
`src/tessera/methods.pyi`. `ops/methods.py` has the methods whose arguments are not those of a function: shapes as
separate integers, and Python's syntax.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tessera.doors import indexing, normalizations, products, reductions, selection, spectral
from tessera.doors.calls.nodes import call, node
from tessera.doors.elementwise import activations, arithmetic, bits, comparisons, functions, trigonometry
from tessera.doors.tensors import conversion as tensors
from tessera.doors.tensors import parts, shapes
from tessera.doors.tensors.creation import tril, triu
from tessera.doors.tensors.shapes import tile
from tessera.handle import Tensor
from tessera.ops.algebra import filling
from tessera.ops.methods import Methods
from tessera.typing import ArrayLike

_BY_DOOR: Final = (
    (
        arithmetic,
        "add sub mul div pow maximum minimum clamp clip floor_divide remainder fmod copysign nextafter logaddexp",
    ),
    (bits, "bitwise_and bitwise_or bitwise_xor bitwise_not bitwise_left_shift bitwise_right_shift"),
    (comparisons, "eq ne lt le gt ge logical_and logical_or logical_xor logical_not"),
    (
        functions,
        "abs neg exp expm1 log log1p sqrt rsqrt sin cos tanh sigmoid erf erfinv floor ceil round trunc "
        "sign square reciprocal isnan isinf isfinite signbit nan_to_num",
    ),
    (activations, "relu"),
    (trigonometry, "tan asin acos atan atan2 sinh cosh asinh acosh atanh log2 log10 exp2 hypot"),
    (reductions, "sum mean max min prod argmax argmin logsumexp var std all any count_nonzero"),
    (normalizations, "softmax log_softmax"),
    (selection, "cumprod cummax cummin cumsum topk sort argsort histc"),
    (indexing, "gather take index_select index_copy scatter scatter_add scatter_reduce"),
    (
        shapes,
        "squeeze unsqueeze flatten swapaxes movedim flip roll diagonal trace diff repeat_interleave",
    ),
    (parts, "split chunk unbind"),
    (products, "matmul"),
    (spectral, "conj"),
    (tensors, "cpu cuda contiguous clone detach numel dim element_size type_as"),
)


_CASTS: Final = {
    "float": "fp32",
    "double": "fp64",
    "half": "fp16",
    "bfloat16": "bf16",
    "byte": "uint8",
    "char": "int8",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "bool": "bool",
}
"""Methods that cast, by torch's names."""


def repeat(x: ArrayLike, *repetitions: Any) -> Tensor:
    """The tensor as often along each dimension as the integers, or one sequence, say (as in torch)."""
    several = len(repetitions) == 1 and isinstance(repetitions[0], Sequence)
    return tile(x, repetitions[0] if several else repetitions)


def masked_fill(x: ArrayLike, mask: ArrayLike, value: Any) -> Tensor:
    """The tensor with a number in place of the elements where the mask holds; both broadcast."""
    tensor = node(x)
    number = value if not isinstance(value, bool | int | float) else filling(value, tensor.dtype)
    return call("where", mask, number, tensor)


def where(x: ArrayLike, condition: ArrayLike, other: ArrayLike) -> Tensor:
    """The tensor where the condition holds, else `other`; all three broadcast (the order of operands is torch's)."""
    return arithmetic.where(condition, x, other)


METHODS: Final[Mapping[str, Callable[..., Any]]] = {
    **{name: getattr(door, name) for door, names in _BY_DOOR for name in names.split()},
    **{name: tensors.caster(dtype) for name, dtype in _CASTS.items()},
    "tril": tril,
    "triu": triu,
    "repeat": repeat,
    "tile": repeat,
    "where": where,
    "masked_fill": masked_fill,
    "absolute": functions.abs,
    "negative": functions.neg,
    "subtract": arithmetic.sub,
    "multiply": arithmetic.mul,
    "divide": arithmetic.div,
    "true_divide": arithmetic.div,
    "amax": reductions.max,
    "amin": reductions.min,
    "arcsin": trigonometry.asin,
    "arccos": trigonometry.acos,
    "arctan": trigonometry.atan,
    "arctan2": trigonometry.atan2,
    "swapdims": shapes.swapaxes,
    "mm": products.matmul,
    "bmm": products.matmul,
    "mv": products.matmul,
    "dot": products.matmul,
}
"""The functions by the names of the methods; several names of torch and the array API mean one function."""

PROPERTIES: Final[Mapping[str, Callable[[Tensor], Tensor]]] = {"real": spectral.real, "imag": spectral.imag}
"""Functions that are attributes of tensors, without a call."""

for _name, _function in METHODS.items():
    assert not hasattr(Methods, _name), f"two methods {_name}"
    setattr(Tensor, _name, _function)
for _name, _function in PROPERTIES.items():
    setattr(Tensor, _name, property(_function))
