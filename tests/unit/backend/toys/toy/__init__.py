"""A backend in one file: its machine code is the text of Tile IR, which the interpreter of Tile IR runs."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from xdsl.dialects.builtin import MemRefType, ModuleOp
from xdsl.ir import Attribute

from tessera.backend.contract import CpuBackend, KernelObject, Kind, LoadedKernel, Parameter
from tessera.errors import CompileError
from tessera.ir.interpreter.interpreter import run_kernel
from tessera.ir.parsing import parse, print_module
from tessera.ir.tile.operations import find_kernel, integers
from tessera.target import Target

_WORD = 8
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


class ToyBackend:
    """Tile IR that stays what it is."""

    device = "toy"

    def version(self) -> str:
        """There is one."""
        return "1"

    def preload(self, compiles: bool = True) -> None:
        """Nothing is imported late."""

    def emit(self, module: ModuleOp, target: Target, kind: Kind) -> str | bytes:
        """The text of the module, or its object. Raises CompileError for assembly."""
        if kind == "asm":
            raise CompileError("Tile IR has no assembly")
        return print_module(module) if kind == "source" else self.compile(module, target).to_bytes()

    def compile(self, module: ModuleOp, target: Target, keep: bool = True) -> KernelObject:
        """The kernel, whose code is the text of the module."""
        kernel = find_kernel(module)
        return KernelObject(
            code=print_module(module).encode(),
            entry=kernel.sym_name.data,
            workspace_bytes=0,
            parameters=tuple([_parameter(argument.type) for argument in kernel.body.block.args]),
            outputs=integers(kernel.outputs),
            arch=target.arch,
            features=(),
        )

    def compile_all(
        self, modules: Sequence[ModuleOp], target: Target, keep: bool = True
    ) -> list[KernelObject | CompileError]:
        """The same of each module."""
        return [self.compile(module, target, keep) for module in modules]

    def stored(self, key: str, make: Callable[[], ModuleOp], target: Target) -> KernelObject:
        """The kernel of the module that `make` gives: none are kept."""
        return self.compile(make(), target)

    def core_facts(self, target: Target) -> None:
        """Nothing: an interpreter's speed says nothing of the machine."""

    def load(self, kernel: KernelObject) -> LoadedKernel:
        """The kernel behind an address that can be called."""
        return _Interpreted(kernel)


class _Interpreted:
    """The interpreter of Tile IR behind the kernel ABI; the first worker does it all."""

    def __init__(self, kernel: KernelObject) -> None:
        self.kernel = kernel
        self._module = parse(kernel.code.decode())
        self._function = _CALL(self._run)

    @property
    def address(self) -> int:
        """Where the ABI's function lies."""
        return ctypes.cast(self._function, ctypes.c_void_p).value or 0

    def _run(self, table: int, descriptors: int, worker: int, workers: int, workspace: int | None) -> None:
        if worker == 0:
            words = _words(descriptors)
            run_kernel(self._module, [_argument(each, table, words) for each in self.kernel.parameters])


def _words(address: int) -> Iterator[int]:
    while True:
        yield ctypes.c_int64.from_address(address).value
        address += _WORD


def _argument(parameter: Parameter, table: int, words: Iterator[int]) -> torch.Tensor | int | float:
    entry = table + _WORD * next(words)
    value = ctypes.c_int64.from_address(entry).value
    if parameter.extents is None:
        is_float = parameter.dtype == "f32"
        return float(struct.unpack("<f", struct.pack("<q", value)[:4])[0]) if is_float else value
    rank = len(parameter.extents)
    start, extents, strides = next(words), [next(words) for _ in range(rank)], [next(words) for _ in range(rank)]
    dtype = {"f32": torch.float32, "f64": torch.float64, "i64": torch.int64, "i1": torch.bool}[parameter.dtype]
    if 0 in extents:
        return torch.empty(extents, dtype=dtype)
    size = 1 + sum((extent - 1) * stride for extent, stride in zip(extents, strides, strict=True))
    memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(value + start)
    return torch.frombuffer(memory, dtype=dtype).as_strided(extents, strides)


def _parameter(kind: Attribute) -> Parameter:
    if not isinstance(kind, MemRefType):
        return Parameter(str(kind))
    extents = tuple([None if extent < 0 else extent for extent in kind.get_shape()])
    return Parameter(str(kind.element_type), extents, tuple(kind.get_strides() or ()))


BACKEND: Final[CpuBackend] = ToyBackend()
