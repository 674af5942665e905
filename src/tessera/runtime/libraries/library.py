"""Steps of plans that are no generated kernels, but calls of a library (torch's) on views of the plan's own memory.

To the native driver such a step is a kernel like any other: its address is that of a callback, which takes the GIL,
makes torch tensors over the addresses in the table, and calls the operator's function. So it runs in its place between
kernels, in one native call with them, and is timed and recorded as they are. Nothing is copied on the way; what the
library itself allocates is the library's, and not in `memory_stats()`.

What is small a routine of Tessera's own does, which has the callback's address and calls it where torch is needed.

An exception cannot cross native code. It is kept, the rest of the plan is cancelled, and `raising` raises it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache, partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import torch

from tessera import settings
from tessera.backend.llvm.machine_code.library import cached_library
from tessera.backend.llvm.machine_code.loading import MachineCode
from tessera.backend.llvm.native import calls_ir
from tessera.errors import LibraryError, MemoryLimitError, TesseraError
from tessera.lazy.devices import CPU, is_cpu_memory, torch_device
from tessera.lazy.structures.structure import Shape
from tessera.runtime.plans import native

if TYPE_CHECKING:
    from tessera.ops.native_calls import NativeRule  # whose package imports all records

LibraryFunction: TypeAlias = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor], Mapping[str, Any]], None]

_WORD: Final = 8
_POINTER = ctypes.c_void_p
_CALLBACK = ctypes.CFUNCTYPE(None, _POINTER, _POINTER, ctypes.c_int64, ctypes.c_int64, _POINTER)

_NO_MEMORY: Final = ("DefaultCPUAllocator", "bad_alloc", "MEMORY_ERROR")
"""What tells a lack of memory in plain RuntimeErrors: torch's allocator of CPU memory, C++, and MKL's transforms."""

_failures: dict[int, BaseException] = {}
"""What calls have raised, by the thread whose plan they belong to, until `raising` raises it there."""


class LibraryOperand(NamedTuple):
    """A tensor of a call: word `slot` of the address table plus `offset` bytes, strides in elements."""

    slot: int
    offset: int
    dtype: torch.dtype
    shape: Shape
    strides: Shape


class LibraryKernel:
    """A call of a library as a kernel of the driver; `address` is valid as long as the object lives, and `descriptors`
    are what the kernel reads there.
    """

    __slots__ = ("_callback", "address", "attributes", "descriptors", "function", "inputs", "name", "outputs")

    def __init__(
        self,
        name: str,
        function: LibraryFunction,
        inputs: Sequence[LibraryOperand],
        outputs: Sequence[LibraryOperand],
        attributes: Mapping[str, Any],
        native_rule: NativeRule | None = None,
    ) -> None:
        """`name` is what errors call it; where `native_rule` says so, a routine of Tessera's own makes the call."""
        self.name, self.function, self.attributes = name, function, attributes
        self.inputs, self.outputs = tuple(inputs), tuple(outputs)
        self._callback = _CALLBACK(partial(_serve, name, function, self.inputs, self.outputs, attributes))
        self.address: int = ctypes.cast(self._callback, _POINTER).value or 0
        self.descriptors: tuple[int, ...] = ()
        made = None if native_rule is None else native_rule(self.inputs, self.outputs, attributes)
        if made is not None:
            places = [word for operand in (*self.inputs, *self.outputs) for word in (operand.slot, operand.offset)]
            self.descriptors = (self.address, *places, *made.words)
            self.address = _routines().address(calls_ir.routine_name(made.routine))


@cache
def _routines() -> MachineCode:
    return cached_library("calls", calls_ir.calls_text(), settings.current().objects_dir)


def raising(run: Callable[[int], None]) -> Callable[[int], None]:
    """A `Driver.run` for plans with calls of libraries: it raises what they raised.

    Raises MemoryLimitError (E_MEMORY_LIMIT) where the library got no memory, LibraryError (E_LIBRARY) for what else it
    refuses, and what the operator's function itself reports.
    """

    def checked(frame: int) -> None:
        failure = None
        try:
            run(frame)
        finally:  # whatever ended the run, its failure is not the next one's
            if _failures:
                failure = _failures.pop(threading.get_ident(), None)
        if failure is not None:
            raise failure

    return checked


def _serve(
    name: str,
    function: LibraryFunction,
    inputs: tuple[LibraryOperand, ...],
    outputs: tuple[LibraryOperand, ...],
    attributes: Mapping[str, Any],
    table: int,
    *_: object,
) -> None:
    """The callback: runs on the thread that called the driver."""
    # torch's threads stayed in the parent of a fork: a call that asked for them would wait for ever.
    threads = torch.get_num_threads() if native.driver().sequential else None
    try:
        if threads is not None:
            torch.set_num_threads(1)
        call(
            name,
            function,
            [tensor_at(_word(table, operand.slot), operand) for operand in inputs],
            [tensor_at(_word(table, operand.slot), operand) for operand in outputs],
            attributes,
        )
    except BaseException as error:  # noqa: BLE001 - whatever it is, it must not meet native code; `raising` raises it
        _failures[threading.get_ident()] = error
        native.cancel(table)
    finally:
        if threads is not None:
            torch.set_num_threads(threads)


def call(
    name: str,
    function: LibraryFunction,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
    attributes: Mapping[str, Any],
) -> None:
    """Calls a library, and reports in Tessera's errors what it raises."""
    try:
        function(inputs, outputs, attributes)  # tensors over memory, of which none requires a gradient
    except TesseraError:
        raise
    except (RuntimeError, MemoryError, IndexError, ValueError, TypeError) as error:
        raise _reported(name, inputs, error) from error


def _reported(name: str, inputs: Sequence[torch.Tensor], error: Exception) -> TesseraError:
    text = str(error).strip().partition("\n")[0]
    what = f"{name} of {' and '.join(f'{tuple(x.shape)} {x.dtype}'.replace('torch.', '') for x in inputs)}"
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or any(sign in str(error) for sign in _NO_MEMORY):
        return MemoryLimitError(f"{what}: torch got no memory for it: {text}")
    return LibraryError(f"{what}: torch refuses: {text}")


def _word(table: int, slot: int) -> int:
    return ctypes.c_int64.from_address(table + _WORD * slot).value


def tensor_at(word: int, operand: LibraryOperand, device: str = CPU) -> torch.Tensor:
    """The tensor of an operand, `word` being that of its slot, in the memory of a device. It keeps nothing alive."""
    bytes_type, view = _layout(operand.dtype, operand.shape, operand.strides)
    if bytes_type is None:
        return torch.empty(operand.shape, dtype=operand.dtype, device=torch_device(device))
    address = word + operand.offset
    if is_cpu_memory(device):
        flat = torch.frombuffer(bytes_type.from_address(address), dtype=operand.dtype)
    else:
        memory = _DeviceBytes(address, ctypes.sizeof(bytes_type))
        flat = torch.as_tensor(memory, device=torch_device(device)).view(operand.dtype)
    return flat if view is None else flat.as_strided(*view)


class _DeviceBytes:
    """Bytes of a CUDA device, as torch is told of them (the CUDA array interface, version 3)."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "version": 3,
        }


@lru_cache(maxsize=1024)
def _layout(dtype: torch.dtype, shape: Shape, strides: Shape) -> tuple[Any, tuple[Shape, Shape] | None]:
    """The ctypes array over the elements' bytes, None where there are none, and how to view them, None where they are
    one line.
    """
    if 0 in shape:
        return None, None
    elements = 1 + sum([(extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)])
    view = None if (shape, strides) == ((elements,), (1,)) else (shape, strides)
    return ctypes.c_char * (elements * dtype.itemsize), view
