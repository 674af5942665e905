"""What the interpreter computes of tiles, beside `arith` and `math`: one function for each operation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import cast

import torch
from xdsl.dialects.builtin import NoneAttr, StridedLayoutAttr
from xdsl.ir import Operation

from tessera.ir.interpreter.arithmetic import Function, Maker, computed
from tessera.ir.interpreter.memory import allocate, torch_dtype
from tessera.ir.tile import operations as tile


def _alloc(op: tile.AllocOp) -> Function:
    kind = op.memory.type
    shape, dtype = kind.get_shape(), torch_dtype(kind.element_type)
    if not isinstance(kind.layout, StridedLayoutAttr):
        return lambda: allocate(shape, dtype)
    strides = [stride.data for stride in kind.layout.strides.data if not isinstance(stride, NoneAttr)]
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return lambda: allocate([size], dtype).as_strided(shape, strides)


def _dim(op: Operation) -> Function:
    return lambda buffer, dimension: buffer.shape[dimension]


def _mma(op: tile.MmaOp) -> Function:
    unsigned = op.unsigned_a is not None

    def multiply(a: torch.Tensor, b: torch.Tensor, acc: torch.Tensor) -> torch.Tensor:
        if unsigned:
            a = a.view(torch.uint8)
        if b.dim() == 3:  # groups of rows side by side
            b = b.mT.flatten(0, 1)
        return acc + a.to(acc.dtype) @ b.to(acc.dtype)

    return multiply


_REDUCTIONS: Mapping[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "add": lambda value, axis: value.sum(axis, keepdim=True, dtype=value.dtype),
    "mul": lambda value, axis: value.prod(axis, keepdim=True, dtype=value.dtype),
    "max": lambda value, axis: value.amax(axis, keepdim=True),
    "min": lambda value, axis: value.amin(axis, keepdim=True),
}


def _reduce(op: tile.ReduceOp) -> Function:
    function, axis = _REDUCTIONS[op.kind.data], op.axis.value.data
    return lambda value: function(computed(value), axis).to(value.dtype)


def _element(op: tile.ElementOp) -> Function:
    return lambda value: value.reshape(())


def _join(op: tile.JoinOp) -> Function:
    axis = op.axis.value.data
    return lambda *parts: torch.cat(parts, axis)


def _transpose(op: tile.TransposeOp) -> Function:
    return lambda value: value.mT.contiguous()


def _broadcast(op: tile.BroadcastOp) -> Function:
    shape = op.result.type.get_shape()
    return lambda value: torch.as_tensor(value).expand(shape).clone()


def _lanes(op: tile.MaskOp | tile.IotaOp) -> torch.Tensor:
    """Each element's position along `axis`, in the result's shape."""
    shape, axis = op.result.type.get_shape(), op.axis.value.data
    along = [size if dim == axis else 1 for dim, size in enumerate(shape)]
    return torch.arange(shape[axis]).reshape(along).expand(shape)


def _mask(op: tile.MaskOp) -> Function:
    lanes = _lanes(op)
    return lambda position, limit: lanes < limit - position


def _iota(op: tile.IotaOp) -> Function:
    lanes = _lanes(op)
    return lambda offset: offset + lanes


_COMPARISONS: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "eq": torch.eq,
    "ne": torch.ne,
    "lt": torch.lt,
    "le": torch.le,
    "gt": torch.gt,
    "ge": torch.ge,
}


def _compare(op: tile.CompareOp) -> Function:
    function = _COMPARISONS[op.predicate.data]
    return lambda a, b: function(computed(a), computed(b))


def _cast(op: tile.CastOp) -> Function:
    dtype = torch_dtype(op.result.type.element_type)
    return lambda value: value.to(dtype)


# Each function knows the class of the operation whose name it stands under.
TILES = cast(
    "Mapping[str, Maker]",
    {
        tile.AllocOp.name: _alloc,
        "memref.dim": _dim,
        tile.MmaOp.name: _mma,
        tile.ReduceOp.name: _reduce,
        tile.JoinOp.name: _join,
        tile.ElementOp.name: _element,
        tile.TransposeOp.name: _transpose,
        tile.BroadcastOp.name: _broadcast,
        tile.MaskOp.name: _mask,
        tile.IotaOp.name: _iota,
        tile.CompareOp.name: _compare,
        tile.SelectOp.name: lambda op: torch.where,
        tile.CastOp.name: _cast,
    },
)
"""What makes the function of an operation, by its name."""
