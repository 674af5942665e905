"""Which dtypes each operator takes, and of which dtype its results are: found by calling it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from tessera import op
from tessera.dtypes import SUPPORTED, DType
from tessera.errors import DTypeError

CLASSES: Final[Mapping[str, Callable[[DType], bool]]] = {
    "floats": lambda dtype: dtype.kind == "float" and dtype.itemsize > 1,
    "8-bit floats": lambda dtype: dtype.kind == "float" and dtype.itemsize == 1,
    "integers": lambda dtype: dtype.kind == "int",
    "bools": lambda dtype: dtype.kind == "bool",
    "complex": lambda dtype: dtype.kind == "complex",
}
"""Dtypes that operators mostly treat alike."""

Call = Callable[[Any], Any]


def _image(x: Any) -> Any:
    return op.reshape(x, (1, 1, *x.shape))


def _bias(x: Any) -> Any:
    return x[0]


CALLS: Final[Mapping[str, Call | None]] = {
    **dict.fromkeys(
        "add sub mul div floor_divide remainder fmod pow maximum minimum copysign logaddexp atan2 hypot bitwise_and "
        "bitwise_or bitwise_xor bitwise_left_shift bitwise_right_shift eq ne lt le gt ge logical_and logical_or "
        "logical_xor matmul gemm complex nextafter".split(),
    ),
    "where": lambda x: op.where(op.ones((2, 2), "bool"), x, x),
    "clamp": lambda x: op.clamp(x, x, x),
    "clip": lambda x: op.clip(x, x, x),
    "cast": lambda x: op.cast(x, x.dtype),
    "einsum": lambda x: op.einsum("ij,jk->ik", x, x),
    "moe": lambda x: op.moe(x, x, op.stack([x, x])),
    "flash_attention": lambda x: op.flash_attention(x, x, x),
    "scaled_attention": lambda x: op.scaled_attention(x, x, x, dtype=x.dtype),
    "paged_attention": lambda x: op.paged_attention(
        op.reshape(x, (2, 1, 2)), _image(x), _image(x), op.zeros((2, 1), "int32"), op.ones(2, "int32")
    ),
    "conv2d": lambda x: op.conv2d(_image(x), _image(x)),
    "spectral_conv": lambda x: op.spectral_conv(_image(x), _image(x)),
    "depthwise_conv2d": lambda x: op.depthwise_conv2d(_image(x), _image(x)),
    "max_pool2d": lambda x: op.max_pool2d(_image(x), 2),
    "avg_pool2d": lambda x: op.avg_pool2d(_image(x), 2),
    "batch_norm": lambda x: op.batch_norm(_image(x), _bias(x)[:1], _bias(x)[:1]),
    "int8_linear": lambda x: op.int8_linear(x, op.ones((2, 2), "int8"), 1.0),
    "dropout": lambda x: op.dropout(x, 0.5, 0),
    "cross_entropy": lambda x: op.cross_entropy(x, op.zeros(2, "int64")),
    "embedding": lambda x: op.embedding(x, op.zeros(2, "int64")),
    "one_hot": lambda x: op.one_hot(x, 2),
    "index_select": lambda x: op.index_select(x, 0, op.zeros(2, "int64")),
    "searchsorted": lambda x: op.searchsorted(_bias(x), x),
    "take": lambda x: op.take(x, op.zeros(2, "int64")),
    "gather": lambda x: op.gather(x, 0, op.zeros((2, 2), "int64")),
    "index_copy": lambda x: op.index_copy(x, 0, op.zeros(2, "int64"), x),
    "scatter": lambda x: op.scatter(x, 0, op.zeros((2, 2), "int64"), x),
    "scatter_reduce": lambda x: op.scatter_reduce(x, 0, op.zeros((2, 2), "int64"), x),
    "grouped_matmul": lambda x: op.grouped_matmul(x, op.unsqueeze(x, 0), op.ones(1, "int64")),
    "scatter_add": lambda x: op.scatter_add(x, 0, op.zeros((2, 2), "int64"), x),
    "topk": lambda x: op.topk(x, 1),
    "reshape": lambda x: op.reshape(x, (4,)),
    "broadcast_to": lambda x: op.broadcast_to(x, (2, 2, 2)),
    "permute": lambda x: op.permute(x, (1, 0)),
    "movedim": lambda x: op.movedim(x, 0, 1),
    "swapaxes": lambda x: op.swapaxes(x, 0, 1),
    "concat": lambda x: op.concat([x, x]),
    "stack": lambda x: op.stack([x, x]),
    "unsqueeze": lambda x: op.unsqueeze(x, 0),
    "roll": lambda x: op.roll(x, 1),
    "tile": lambda x: op.tile(x, (2, 2)),
    "repeat_interleave": lambda x: op.repeat_interleave(x, 2),
    "split": lambda x: op.split(x, 1),
    "chunk": lambda x: op.chunk(x, 2),
    "pad": lambda x: op.pad(x, (1, 1)),
    "full_like": lambda x: op.full_like(x, 1),
    "meshgrid": lambda x: op.meshgrid(_bias(x), _bias(x)),
}
"""How operators are called with matrices of one dtype where it is not with one of them; None: with two."""

UNTYPED: Final = frozenset(
    "kernel autotune tensor constant zeros ones full arange eye linspace rand randn randint all_reduce scan map cond "
    "while_loop".split()
)
"""Functions whose docstrings say which dtypes there are, or that take all."""


def taken(name: str, dtype: DType) -> str | None:
    """The dtype of the operator's result, the first of several, over matrices of a dtype; None where it takes none."""
    function = getattr(op, name)
    x = op.ones((2, 2), dtype)
    call = CALLS.get(name, function)
    try:
        made = function(x, x) if call is None else call(x)
    except DTypeError:
        return None
    return str((made[0] if isinstance(made, tuple) else made).dtype)


def line(name: str) -> str:
    """What an operator takes, in a line: "floats, complex; integers and bools give int64; not 8-bit floats"."""
    same: list[str] = []
    given: dict[str, list[str]] = {}
    refused: list[str] = []
    for label, members in CLASSES.items():
        found = {str(dtype): taken(name, dtype) for dtype in _ordered() if members(dtype)}
        if all(dtype == result for dtype, result in found.items()):
            same.append(label)
            continue
        alike = len(set(found.values())) == 1
        for dtype, result in [(label, next(iter(found.values())))] if alike else found.items():
            (refused if result is None else given.setdefault(result, [])).append(dtype)
    if "bools" in same and "bool" in given:
        same.remove("bools")
        given["bool"].append("bools")
    if len(same) == len(CLASSES):
        return "all"
    if all(labels == [result] for result, labels in given.items()):  # each gives itself
        same += given
        given = {}
    parts = [_listed(same)] if same else []
    parts += [f"{_listed(labels)} {_give(labels)} {result}" for result, labels in given.items()]
    parts += [f"not {_listed(refused)} (E_DTYPE)"] if refused else []
    return "; ".join(parts)


def _give(labels: Sequence[str]) -> str:
    several = len(labels) > 1 or labels[0] in CLASSES
    return "give" if several else "gives"


def _listed(labels: Sequence[str]) -> str:
    *most, last = labels
    return f"{', '.join(most)} and {last}" if most else last


def _ordered() -> list[DType]:
    return sorted(SUPPORTED, key=lambda dtype: (dtype.kind, dtype.itemsize, dtype.name))
