"""`tessera run` of a kernel: runs it on operands from files or of given shapes."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy
import torch

from tessera.backend.contract import KernelObject, Parameter
from tessera.backend.registry import cpu_backend
from tessera.dtypes import DType, dtype_of
from tessera.errors import ArgumentError, MemoryLimitError
from tessera.runtime.plans.calling import Argument, call

_SHAPE = re.compile(r"\d+(x\d+)*")
_SHOWN = 3


def run_kernel(file: Path, texts: Sequence[str], outputs: Sequence[Path], seed: int, workers: int) -> None:
    """Runs the kernel of a file on arguments given as texts, prints what its outputs are, and writes them to files."""
    kernel = KernelObject.from_bytes(_read(file))
    if len(texts) != len(kernel.parameters):
        raise ArgumentError(
            f"kernel {kernel.entry} has {len(kernel.parameters)} parameters, --arg was given {len(texts)} times",
            hints=[_signature(kernel)],
        )
    if len(outputs) > len(kernel.outputs):
        raise ArgumentError(f"kernel {kernel.entry} has {len(kernel.outputs)} outputs, --output names {len(outputs)}")
    random = torch.Generator().manual_seed(seed)
    arguments = [
        _argument(parameter, text, index in kernel.outputs, random)
        for index, (parameter, text) in enumerate(zip(kernel.parameters, texts, strict=True))
    ]
    call(cpu_backend().load(kernel), arguments, workers)
    _report(kernel, arguments, outputs)


def _read(file: Path) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise ArgumentError(f"{file} cannot be read: {error}") from error


def _signature(kernel: KernelObject) -> str:
    def describe(index: int, parameter: Parameter) -> str:
        if parameter.extents is None:
            return parameter.dtype
        extents = "x".join("?" if extent is None else str(extent) for extent in parameter.extents)
        return f"{parameter.dtype}[{extents}]{' (output)' if index in kernel.outputs else ''}"

    return "parameters are " + ", ".join(describe(index, p) for index, p in enumerate(kernel.parameters))


def _argument(parameter: Parameter, text: str, is_output: bool, random: torch.Generator) -> Argument:
    if parameter.extents is None:
        try:
            return int(text) if parameter.dtype[0] == "i" else float(text)
        except ValueError as error:
            raise ArgumentError(f"{text!r} is no number, which a scalar {parameter.dtype} is") from error
    dtype = dtype_of(parameter.dtype)
    if text.endswith(".npy"):
        return _laid_out(_load(Path(text)).to(dtype.torch), parameter)
    if not _SHAPE.fullmatch(text):
        raise ArgumentError(f"{text!r} is neither a .npy file nor a shape such as 4x5")
    try:
        values = _drawn([int(extent) for extent in text.split("x")], dtype, is_output, random)
        return _laid_out(values, parameter)
    except RuntimeError as error:  # torch's allocator
        raise MemoryLimitError(f"an array of {text} {dtype} does not fit into memory") from error


def _drawn(shape: Sequence[int], dtype: DType, is_output: bool, random: torch.Generator) -> torch.Tensor:
    if is_output:
        return torch.zeros(shape, dtype=dtype.torch, device="cpu")
    if dtype.kind == "float":
        return torch.randn(shape, generator=random, dtype=torch.float64, device="cpu").to(dtype.torch)
    bound = 2 if dtype.kind == "bool" else 100
    return torch.randint(bound, shape, generator=random, device="cpu").to(dtype.torch)


def _load(file: Path) -> torch.Tensor:
    try:
        return torch.from_numpy(numpy.load(file, allow_pickle=False))
    except (OSError, ValueError, TypeError) as error:
        raise ArgumentError(f"{file} cannot be read as an array: {error}") from error


def _laid_out(values: torch.Tensor, parameter: Parameter) -> torch.Tensor:
    """The values with the strides that the kernel relies on; along a stride of 0 the first ones count."""
    if values.dim() != len(parameter.strides):
        raise ArgumentError(f"an array of rank {values.dim()} where the kernel takes rank {len(parameter.strides)}")
    strides = list(parameter.strides)
    for dimension in reversed(range(values.dim())):
        if strides[dimension] is None:
            known = [(n - 1) * s for n, s in zip(values.shape, strides, strict=True) if s is not None]
            strides[dimension] = 1 + sum(known)
    fixed = [stride if stride is not None else 1 for stride in strides]
    size = 1 + sum((n - 1) * s for n, s in zip(values.shape, fixed, strict=True)) if values.numel() else 0
    result = torch.empty(size, dtype=values.dtype, device="cpu").as_strided(values.shape, fixed)
    first = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in fixed)
    result[first].copy_(values[first])
    return result


def _report(kernel: KernelObject, arguments: Sequence[Argument], files: Sequence[Path]) -> None:
    for position, index in enumerate(kernel.outputs):
        value = arguments[index]
        assert isinstance(value, torch.Tensor)
        shape = "x".join(map(str, value.shape))
        shown = ", ".join(f"{number:.6g}" for number in value.flatten()[:_SHOWN].tolist())
        more = ", ..." if value.numel() > _SHOWN else ""
        line = f"output {position}: {kernel.parameters[index].dtype}[{shape}] = {shown}{more}"
        if position < len(files):
            _save(value, files[position])
            line += f" -> {files[position]}"
        print(line)


_NOT_IN_NUMPY = (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2)


def _save(value: torch.Tensor, file: Path) -> None:
    array = (value.float() if value.dtype in _NOT_IN_NUMPY else value).contiguous().numpy()
    try:
        with file.open("wb") as stream:
            numpy.save(stream, array)
    except OSError as error:
        raise ArgumentError(f"{file} cannot be written: {error}") from error
