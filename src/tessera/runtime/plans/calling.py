"""Calling one kernel on torch tensors and numbers, outside of any plan: for `tessera run`, tools and tests."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Sequence
from typing import TypeAlias

import numpy
import torch
from numpy.typing import NDArray

from tessera.backend import tile_times
from tessera.backend.contract import KernelObject, LoadedKernel, Parameter
from tessera.dtypes import dtype_of
from tessera.errors import ArgumentError

Argument: TypeAlias = "torch.Tensor | int | float"
Words: TypeAlias = "ctypes.Array[ctypes.c_int64]"

_ALIGNMENT = 64
_SIGNATURE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


def call(loaded: LoadedKernel, arguments: Sequence[Argument], workers: int = 1) -> NDArray[numpy.int64] | None:
    """Runs all shares of a kernel, one after the other, writing its outputs in place. Gives what a timed kernel wrote
    of its tiles, a row for each worker, and None for others.

    Raises ArgumentError for arguments that do not fit the kernel's parameters.
    """
    table, descriptors = words_of(loaded.kernel, arguments)
    times = tile_times.memory(workers) if loaded.kernel.timed else None
    if times is not None:
        descriptors = _words([*descriptors, times.ctypes.data])
    memory = ctypes.create_string_buffer(loaded.kernel.workspace_bytes + _ALIGNMENT)
    workspace = -(-ctypes.addressof(memory) // _ALIGNMENT) * _ALIGNMENT
    function = _SIGNATURE(loaded.address)
    for worker in range(workers):
        function(ctypes.addressof(table), ctypes.addressof(descriptors), worker, workers, workspace)
    return times


def last_durations(times: NDArray[numpy.int64]) -> NDArray[numpy.int64]:
    """What the last tiles of each worker took, in ticks, of what `call` gave; zero where there were fewer."""
    return times[:, tile_times.HEADER_WORDS :]


def words_of(kernel: KernelObject, arguments: Sequence[Argument]) -> tuple[Words, Words]:
    """(address table, descriptors) of a call, as the kernel ABI lays them out; argument i is in slot i.

    Raises ArgumentError for arguments that do not fit the kernel's parameters.
    """
    if len(arguments) != len(kernel.parameters):
        raise ArgumentError(f"kernel {kernel.entry} takes {len(kernel.parameters)} arguments, not {len(arguments)}")
    table: list[int] = []
    descriptors: list[int] = []
    for slot, (parameter, argument) in enumerate(zip(kernel.parameters, arguments, strict=True)):
        descriptors.append(slot)
        if isinstance(argument, torch.Tensor):
            _check(slot, parameter, argument)
            table.append(argument.data_ptr())
            descriptors += [0, *argument.shape, *argument.stride()]
        elif parameter.is_scalar:
            table.append(scalar_bits(parameter.dtype, argument))
        else:
            raise ArgumentError(f"argument {slot} of kernel {kernel.entry} is a number where a tensor is meant")
    return _words(table), _words(descriptors)


def _words(values: Sequence[int]) -> Words:
    return (ctypes.c_int64 * max(1, len(values)))(*values)


def scalar_bits(dtype: str, value: int | float) -> int:
    """A number of the MLIR type `dtype` as the word that kernels read it from."""
    if dtype == "index" or dtype_of(dtype).kind != "float":
        return int(value)
    number = torch.tensor(float(value), dtype=dtype_of(dtype).torch, device="cpu")
    width = {2: torch.int16, 4: torch.int32, 8: torch.int64}[number.element_size()]
    return int.from_bytes(struct.pack("<q", int(number.view(width))), "little", signed=True)


def _check(slot: int, parameter: Parameter, tensor: torch.Tensor) -> None:
    described = f"argument {slot}, {tensor.dtype} of shape {tuple(tensor.shape)} and strides {tensor.stride()},"
    if parameter.extents is None:
        raise ArgumentError(f"{described} is a tensor where a number is meant")
    if tensor.dtype != dtype_of(parameter.dtype).torch or tensor.dim() != len(parameter.extents):
        raise ArgumentError(f"{described} should be {parameter.dtype} of rank {len(parameter.extents)}")
    promises = zip(parameter.extents, parameter.strides, tensor.shape, tensor.stride(), strict=True)
    for dimension, (extent, stride, size, step) in enumerate(promises):
        # The stride of a dimension of one element is never used.
        if extent not in (None, size) or (stride not in (None, step) and size > 1):
            raise ArgumentError(f"{described} breaks what the kernel relies on: {_promise(dimension, extent, stride)}")


def _promise(dimension: int, extent: int | None, stride: int | None) -> str:
    sizes = [] if extent is None else [f"{extent} elements"]
    steps = [] if stride is None else [f"stride {stride}"]
    return f"{' and '.join(sizes + steps)} along dimension {dimension}"
