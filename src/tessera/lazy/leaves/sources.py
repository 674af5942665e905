"""Leaves of what users hand in: torch tensors, numpy arrays, DLPack producers, nested lists.

Memory is borrowed, never copied, except where kernels could not read it: numpy arrays in foreign byte order, with
negative strides or strides that are no multiple of the element, and torch views with pending negation.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Final

import numpy
import torch

from tessera import dtypes
from tessera.dtypes import DType, dtype_of
from tessera.errors import ArgumentError, DeviceError, DTypeError, GradDetachedError, MemoryLimitError
from tessera.lazy import promise
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Shape, Structure, contiguous_strides

_TENSOR, _PARAMETER = torch.Tensor, torch.nn.Parameter
_new = object.__new__

LAYOUT_LIMIT: Final = 1 << 14
"""Layouts of torch tensors that are remembered at one time."""

_layouts: dict[Any, Structure] = {}
"""Structures by (shape, strides, dtype) as torch spells them, for tensors that may be read as they are."""

_device_layouts: dict[Any, Structure] = {}
"""The same for tensors on CUDA devices, by (shape, strides, dtype, device)."""

interning.on_forgetting(_layouts.clear)
interning.on_forgetting(_device_layouts.clear)


def from_torch(tensor: torch.Tensor) -> Leaf:
    """The leaf that borrows a torch tensor's memory, on the CPU or a CUDA device; any strides.

    Raises GradDetachedError (E_GRAD_DETACHED) for one that requires grad while grad mode is on, DeviceError
    (E_DEVICE) for one on any other device, and DTypeError (E_DTYPE) for sparse and quantized tensors, tensor
    subclasses and dtypes that kernels do not compute with.
    """
    kind = type(tensor)
    return from_plain_torch(tensor) if kind is _TENSOR or kind is _PARAMETER else _examined(tensor)


def from_plain_torch(tensor: torch.Tensor) -> Leaf:
    """As `from_torch`, for callers who know that the type is exactly `torch.Tensor`. On the path of every call."""
    # Each attribute of a torch tensor costs 40 to 70 ns, so a layout seen before is recognized by three of them.
    try:
        structure = _layouts[tensor.shape, tensor.stride(), tensor.dtype]
    except (KeyError, RuntimeError):  # RuntimeError: sparse tensors have no strides
        return _examined(tensor) if tensor.is_cpu else _elsewhere(tensor)
    if not tensor.is_cpu:
        return _elsewhere(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise _grad_error(tensor)
    # Without `__init__`, whose frame costs as much as the object.
    leaf = _new(Leaf)
    leaf.structure = structure
    leaf.address = leaf.origin = tensor.data_ptr()
    leaf.owner = tensor
    try:
        leaf.version = tensor._version
    except RuntimeError:  # inference tensors have no version
        leaf.version = None
    return leaf


def _elsewhere(tensor: torch.Tensor) -> Leaf:
    """As `from_plain_torch`, for tensors that are not in CPU memory."""
    try:
        structure = _device_layouts[tensor.shape, tensor.stride(), tensor.dtype, tensor.device]
    except (KeyError, RuntimeError):
        return _examined(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise _grad_error(tensor)
    address = tensor.data_ptr()
    return Leaf(structure, address, tensor, None if tensor.is_inference() else tensor._version, address)


def _examined(tensor: torch.Tensor) -> Leaf:
    """As `from_torch`, with all that can be wrong looked at."""
    _refuse_unreadable(tensor)
    if tensor.requires_grad and torch.is_grad_enabled():
        raise _grad_error(tensor)
    dtype = _supported(dtype_of(tensor.dtype))
    if tensor.is_neg() or tensor.is_conj():
        tensor = tensor.detach().resolve_neg().resolve_conj()
    shape = tuple(tensor.shape)
    strides = _strides_of(shape, tensor.stride())
    on_cpu = tensor.device.type == "cpu"
    structure = interning.buffer(shape, strides, dtype, CPU if on_cpu else f"cuda:{tensor.device.index}")
    # Negation and conjugation are pending only in complex tensors and views of their memory, which step over the other
    # parts: such layouts are examined each time.
    if dtype.kind != "complex" and any(
        extent != 1 and stride == 1 for extent, stride in zip(shape, strides, strict=True)
    ):
        layouts = _layouts if on_cpu else _device_layouts
        if len(layouts) >= LAYOUT_LIMIT:
            layouts.clear()
        key = (tensor.shape, tensor.stride(), tensor.dtype)
        layouts[key if on_cpu else (*key, tensor.device)] = structure
    version = None if tensor.is_inference() else tensor._version
    address = tensor.data_ptr()
    return Leaf(structure, address, tensor, version, address)


def _strides_of(shape: Shape, strides: Sequence[int]) -> Shape:
    """The strides of a leaf; row-major ones where it has no elements, as a stride of 0 would promise one."""
    return contiguous_strides(shape) if 0 in shape else tuple(strides)


def _refuse_unreadable(tensor: torch.Tensor) -> None:
    kind = type(tensor)
    if kind is not torch.Tensor and not issubclass(kind, torch.nn.Parameter):
        raise DTypeError(
            f"a {kind.__module__}.{kind.__qualname__} is not read as a plain tensor",
            hints=["pass a torch.Tensor, for example tensor.as_subclass(torch.Tensor)"],
        )
    if tensor.device.type not in ("cpu", "cuda"):
        raise DeviceError(
            f"a tensor on {tensor.device}; kernels read the memory of CPUs and CUDA devices",
            hints=["pass tensor.cpu()"],
        )
    if tensor.layout != torch.strided:
        raise DTypeError(
            f"a tensor of layout {tensor.layout}; kernels read strided memory", hints=["pass tensor.to_dense()"]
        )
    if tensor.is_quantized:
        raise DTypeError(f"a quantized tensor ({tensor.dtype})", hints=["pass tensor.dequantize()"])


def _supported(dtype: DType) -> DType:
    if dtype not in dtypes.SUPPORTED:
        names = ", ".join(sorted(d.name for d in dtypes.SUPPORTED))
        raise DTypeError(f"tensors of {dtype} are not computed with", hints=[f"cast to one of {names}"])
    return dtype


def _grad_error(tensor: torch.Tensor) -> GradDetachedError:
    return GradDetachedError(
        f"a torch tensor of shape {tuple(tensor.shape)} requires grad, and its gradient would end here",
        hints=[
            "pass tensor.detach()",
            "or work under torch.no_grad()",
            "tessera.grad computes gradients of traced functions",
        ],
    )


def from_numpy(array: numpy.ndarray[Any, Any]) -> Leaf:
    """The leaf that borrows a numpy array's memory. Arrays have no version: writing to one before evaluation is seen
    or not.

    Raises DTypeError (E_DTYPE) for dtypes that kernels do not compute with.
    """
    dtype = _supported(dtype_of(array.dtype.newbyteorder("=")))
    itemsize = array.dtype.itemsize
    if not array.dtype.isnative or any(stride < 0 or stride % itemsize for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    strides = _strides_of(array.shape, [stride // itemsize for stride in array.strides])
    address: int = array.__array_interface__["data"][0]
    return Leaf(interning.buffer(array.shape, strides, dtype), address, array)


def from_data(data: object, dtype: DType | None = None) -> Leaf:
    """The leaf of any data: torch, numpy, DLPack, a number, or nested lists of numbers; cast where `dtype` says so.

    Raises ArgumentError (E_ARGUMENT) for ragged lists and for objects that hold no numbers, and what `from_torch`
    raises.
    """
    if isinstance(data, torch.Tensor):
        if dtype is not None and data.dtype != dtype.torch:
            _refuse_unreadable(data)
            if data.requires_grad and torch.is_grad_enabled():
                raise _grad_error(data)
            _wait_for_writes(data)
            data = data.detach().to(dtype.torch)
        return from_torch(data)
    if isinstance(data, (numpy.ndarray, numpy.generic)):
        leaf = from_numpy(numpy.asarray(data))
        if dtype in (None, leaf.dtype):
            return leaf
        promise.settle((leaf,))
        return from_torch(torch.tensor(leaf.owner, dtype=_torch(dtype), device="cpu"))
    if hasattr(data, "__dlpack__"):
        return from_data(torch.utils.dlpack.from_dlpack(data), dtype)
    return from_torch(_from_list(data, _torch(dtype)))


def _wait_for_writes(tensor: torch.Tensor) -> None:
    """Returns when no stream is going to write to a tensor that is about to be read here."""
    if promise.is_guarded() and any(tensor.dtype == dtype.torch for dtype in dtypes.SUPPORTED):
        promise.settle((from_torch(tensor.detach()),))


def _torch(dtype: DType | None) -> torch.dtype | None:
    return None if dtype is None else _supported(dtype).torch


def _from_list(data: object, dtype: torch.dtype | None) -> torch.Tensor:
    try:
        return torch.tensor(data, dtype=dtype)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise ArgumentError(f"no tensor can be made of a {type(data).__name__}: {error}") from error


SEED: Final = 0x7E55E4A
_created = itertools.count()


def standard_normal(shape: Sequence[int], dtype: DType) -> Leaf:
    """A leaf of reproducible standard-normal values, rounded for integers and compared with 0 for bool.

    The seed includes how many such leaves the process made before, so that two of them differ.
    """
    seed = SEED + next(_created)
    extents: Shape = tuple(int(extent) for extent in shape)
    if any(extent < 0 for extent in extents):
        raise ArgumentError(f"a shape of negative extents: {extents}")
    _supported(dtype)
    wide = dtype.torch if dtype.kind == "complex" else torch.float64 if dtype is dtypes.fp64 else torch.float32
    try:
        values = torch.randn(extents, generator=torch.Generator().manual_seed(seed), dtype=wide, device="cpu")
    except RuntimeError as error:  # torch's allocator, or a product of extents beyond 64 bits
        raise MemoryLimitError(f"a tensor of shape {extents} does not fit into memory") from error
    cast = values > 0 if dtype is dtypes.bool_ else values.round() if dtype.kind == "int" else values
    return from_torch(cast.detach().to(dtype.torch))
