"""Tensors out of data, and in other dtypes."""

from __future__ import annotations

from typing import cast as typed

from tessera import dtypes
from tessera.doors.nodes import node, on
from tessera.handle import Tensor
from tessera.lazy import sources
from tessera.lazy.devices import check_device
from tessera.lazy.node import leaf_node
from tessera.runtime.streams import Stream


def tensor(shape_or_data: object, dtype: object = None, device: object = None) -> Tensor:
    """A tensor. Of a tuple of ints or a `torch.Size`: that shape, filled with reproducible standard-normal values
    (fp32).

    All else is data: torch, numpy, DLPack, nested lists; borrowed where its dtype and device are the wanted ones.
    `device` is "cpu", "cuda", "cuda:1", ... or "interpreter" (CPU memory on which a GPU's kernels are interpreted);
    without one data stays where it is. Raises DeviceError (E_DEVICE) for a device that there is not.
    """
    place = None if device is None else check_device(device)
    made = _tensor(shape_or_data, dtype)
    return made if place is None else made.to(place)


def cast(x: object, dtype: object, *, stream: Stream | None = None) -> Tensor:
    """x in another dtype: floats to integers toward zero, to bool by comparison with 0."""
    return on(node(x).to(dtypes.dtype_of(dtype)), stream)


def _tensor(shape_or_data: object, dtype: object) -> Tensor:
    wanted = None if dtype is None else dtypes.dtype_of(dtype)
    if isinstance(shape_or_data, tuple) and {type(extent) for extent in shape_or_data} <= {int}:
        return typed(Tensor, leaf_node(sources.standard_normal(shape_or_data, wanted or dtypes.fp32)))
    if isinstance(shape_or_data, Tensor):
        return shape_or_data if wanted is None else shape_or_data.to(wanted)
    return typed(Tensor, leaf_node(sources.from_data(shape_or_data, wanted)))
