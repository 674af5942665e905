"""Tensors that are made: those of the array API standard, beside which `device` stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from tessera import dtypes
from tessera.doors.calls.nodes import node
from tessera.doors.tensors import conversion as tensors
from tessera.doors.tensors import creation
from tessera.handle import Tensor
from tessera.typing import ArrayLike, DTypeLike


def on_device(x: Tensor, device: object) -> Tensor:
    """x on a device, where one is named."""
    return x if device is None else x.to(device=device)


def asarray(obj: object, /, *, dtype: DTypeLike | None = None, device: object = None, copy: object = None) -> Tensor:
    """A tensor of data. Values never change, so that a copy of a tensor may share them."""
    if isinstance(obj, Tensor) or not isinstance(obj, list | tuple):
        made = node(obj) if not isinstance(obj, complex) else tensors.tensor(torch.tensor(obj))
        made = made if dtype is None else made.to(dtypes.dtype_of(dtype))
        return on_device(tensors.tensor(made.torch().clone()) if copy and not isinstance(obj, Tensor) else made, device)
    return on_device(tensors.tensor(numpy.asarray(obj).tolist(), dtype), device)


def from_dlpack(x: ArrayLike, /, *, device: object = None, copy: object = None) -> Tensor:
    """A tensor over the memory of another library's."""
    return asarray(x, device=device, copy=copy)


def arange(
    start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """The numbers from `start` on, before `stop`."""
    return on_device(creation.arange(start, stop, step, dtype), device)


def zeros(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Zeros, float32 by default."""
    return on_device(creation.zeros(shape, dtype), device)


def ones(shape: int | Sequence[int], *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Ones, float32 by default."""
    return on_device(creation.ones(shape, dtype), device)


def full(
    shape: int | Sequence[int], fill_value: Any, *, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """One value."""
    return on_device(creation.full(shape, fill_value, dtype), device)


def zeros_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Zeros in the shape of x."""
    return on_device(creation.zeros_like(x, dtype), device)


def ones_like(x: ArrayLike, /, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """Ones in the shape of x."""
    return on_device(creation.ones_like(x, dtype), device)


def full_like(x: ArrayLike, /, fill_value: Any, *, dtype: DTypeLike | None = None, device: object = None) -> Tensor:
    """One value in the shape of x."""
    return on_device(creation.full_like(x, fill_value, dtype), device)


empty, empty_like = zeros, zeros_like
"""Values that nobody asked for are zeros: a tensor that cannot be written to has others only by accident."""


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DTypeLike | None = None, device: object = None
) -> Tensor:
    """Ones on a diagonal."""
    return on_device(creation.eye(n_rows, n_cols, k, dtype), device)


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: DTypeLike | None = None, device: object = None, endpoint: Any = True
) -> Tensor:
    """Numbers at equal distances."""
    return on_device(creation.linspace(start, stop, num, endpoint, dtype), device)
