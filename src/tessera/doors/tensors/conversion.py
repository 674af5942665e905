"""Tensors out of data, and in other dtypes."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast as typed

from tessera import dtypes
from tessera.doors.calls.nodes import node, on
from tessera.handle import Tensor
from tessera.lazy.devices import check_device
from tessera.lazy.leaves import sources
from tessera.lazy.node import leaf_node
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike, DTypeLike


def tensor(shape_or_data: object, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """A tensor. Of a tuple of ints or a `torch.Size`: that shape, filled with reproducible standard-normal values
    (fp32).

    All else is data: torch, numpy, DLPack, nested lists; borrowed where its dtype and device are the wanted ones.
    `device` is "cpu", "cuda", "cuda:1", ... or "interpreter" (CPU memory on which a GPU's kernels are interpreted);
    without one data stays where it is. Raises DeviceError (E_DEVICE) for a device that there is not.

    Shapes: that of the data, or the one given.

    >>> op.tensor([[1, 2], [3, 4]]).shape
    (2, 2)
    >>> op.tensor([1.5], dtype="bf16").dtype
    bf16
    """
    place = None if device is None else check_device(device)
    made = _tensor(shape_or_data, dtype)
    return made if place is None else made.to(place)


def cast(x: ArrayLike, dtype: DTypeLike, *, stream: Stream | None = None) -> Tensor:
    """x in another dtype: floats to integers toward zero, to bool by comparison with 0.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.cast(op.tensor([1.9, -1.9]), "int32").tolist()
    [1, -1]
    """
    return on(node(x).to(dtypes.dtype_of(dtype)), stream)


def caster(dtype: str) -> Callable[[ArrayLike], Tensor]:
    """The function that casts to a dtype: the methods `x.float()`, `x.long()` and so on."""

    def cast_to(x: ArrayLike) -> Tensor:
        return node(x).to(dtypes.dtype_of(dtype))

    cast_to.__doc__ = f"The tensor in {dtype}."
    return cast_to


def cpu(x: ArrayLike) -> Tensor:
    """The tensor in the CPU's memory: itself, or evaluated and copied."""
    return node(x).to("cpu")


def cuda(x: ArrayLike, index: int | None = None) -> Tensor:
    """The tensor in the memory of a GPU: itself, or evaluated and copied. Raises DeviceError where there is none."""
    return node(x).to("cuda" if index is None else f"cuda:{index}")


def contiguous(x: ArrayLike) -> Tensor:
    """The tensor itself: how values lie is no concern of an expression's, and `torch()` tells what they came to."""
    return node(x)


def clone(x: ArrayLike) -> Tensor:
    """The tensor itself, as values never change; `x.torch().clone()` is memory that may be written to."""
    return node(x)


def detach(x: ArrayLike) -> Tensor:
    """The values, which gradients are not followed through. Evaluates them."""
    return typed(Tensor, leaf_node(sources.from_torch(node(x).torch().detach())))


def numel(x: ArrayLike) -> int:
    """The number of elements."""
    return node(x).size


def dim(x: ArrayLike) -> int:
    """The number of dimensions."""
    return len(node(x).shape)


def element_size(x: ArrayLike) -> int:
    """The bytes of an element."""
    return node(x).dtype.itemsize


def type_as(x: ArrayLike, other: ArrayLike) -> Tensor:
    """The tensor in the dtype of another."""
    return node(x).to(node(other).dtype)


def _tensor(shape_or_data: object, dtype: object) -> Tensor:
    wanted = None if dtype is None else dtypes.dtype_of(dtype)
    if isinstance(shape_or_data, tuple) and {type(extent) for extent in shape_or_data} <= {int}:
        return typed(Tensor, leaf_node(sources.standard_normal(shape_or_data, wanted or dtypes.fp32)))
    if isinstance(shape_or_data, Tensor):
        return shape_or_data if wanted is None else shape_or_data.to(wanted)
    return typed(Tensor, leaf_node(sources.from_data(shape_or_data, wanted)))
