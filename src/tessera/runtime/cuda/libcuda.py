"""The CUDA driver library by ctypes: the calls that are used, each checked.

Prototypes are those of `cuda.h` (CUDA 12.8), with handles and pointers as `void *`. Where `cuda.h` gives a function a
newer form under its old name, the table has the name of the form that is meant (`cuGraphAddKernelNode_v2`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping
from ctypes import byref, c_char_p, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any, Final, NoReturn, TypeAlias

from tessera.errors import UnsupportedTargetError
from tessera.runtime.cuda.results import INVALID_VALUE, NAMES, SUCCESS, failure
from tessera.runtime.cuda.structures import POINTER_MEMORY_TYPE

Function: TypeAlias = Callable[..., int]
"""A function of the library; it gives back a result code."""

LIBRARY: Final = "libcuda.so.1"
OLDEST_DRIVER: Final = 12_000
"""CUDA 12.0: the first driver with launch attributes, tensor maps and the graph functions of this form together."""
OLDEST_TILE_DRIVER: Final = 13_000
"""CUDA 13.0, r580: the first that launches kernels of CUDA's tiles ("CUDA 13.1 Release Notes")."""

_pointer = c_void_p

PROTOTYPES: Final[Mapping[str, tuple[Any, ...]]] = {
    "cuInit": (c_uint,),
    "cuDriverGetVersion": (_pointer,),
    "cuGetErrorName": (c_int, _pointer),
    "cuGetErrorString": (c_int, _pointer),
    "cuDeviceGet": (_pointer, c_int),
    "cuDeviceGetAttribute": (_pointer, c_int, c_int),
    "cuDevicePrimaryCtxRetain": (_pointer, c_int),
    "cuCtxGetCurrent": (_pointer,),
    "cuCtxPushCurrent_v2": (_pointer,),
    "cuCtxPopCurrent_v2": (_pointer,),
    "cuModuleLoadData": (_pointer, _pointer),
    "cuModuleGetFunction": (_pointer, _pointer, _pointer),
    "cuFuncGetAttribute": (_pointer, c_int, _pointer),
    "cuFuncSetAttribute": (_pointer, c_int, c_int),
    "cuFuncSetCacheConfig": (_pointer, c_int),
    "cuLaunchKernelEx": (_pointer, _pointer, _pointer, _pointer),
    "cuStreamSynchronize": (_pointer,),
    "cuStreamWaitEvent": (_pointer, _pointer, c_uint),
    "cuEventCreate": (_pointer, c_uint),
    "cuEventRecord": (_pointer, _pointer),
    "cuEventQuery": (_pointer,),
    "cuEventSynchronize": (_pointer,),
    "cuEventElapsedTime": (_pointer, _pointer, _pointer),
    "cuEventDestroy_v2": (_pointer,),
    "cuMemcpyAsync": (c_uint64, c_uint64, c_size_t, _pointer),
    "cuMemsetD8Async": (c_uint64, ctypes.c_ubyte, c_size_t, _pointer),
    "cuPointerGetAttribute": (_pointer, c_int, c_uint64),
    "cuGraphCreate": (_pointer, c_uint),
    "cuGraphAddKernelNode_v2": (_pointer, _pointer, _pointer, c_size_t, _pointer),
    "cuGraphKernelNodeSetAttribute": (_pointer, c_int, _pointer),
    "cuGraphInstantiateWithFlags": (_pointer, _pointer, c_uint64),
    "cuGraphNodeSetEnabled": (_pointer, _pointer, c_uint),
    "cuGraphExecKernelNodeSetParams_v2": (_pointer, _pointer, _pointer),
    "cuGraphLaunch": (_pointer, _pointer),
    "cuGraphExecDestroy": (_pointer,),
    "cuGraphDestroy": (_pointer,),
    "cuTensorMapEncodeTiled": (
        *(_pointer, c_int, c_uint, c_uint64, _pointer, _pointer, _pointer, _pointer),
        *(c_int, c_int, c_int, c_int),
    ),
}
"""Symbol -> types of its arguments. Every function gives back a `CUresult`."""


class Libcuda:
    """The driver's functions. `resolve` gives the function of a symbol with its argument types (`PROTOTYPES`), or
    raises AttributeError where the driver has none.
    """

    def __init__(self, resolve: Callable[[str, tuple[Any, ...]], Function]) -> None:
        self._resolve = resolve
        self._functions: dict[str, Function] = {}

    @classmethod
    def open(cls) -> Libcuda:
        """This machine's driver, initialized.

        Raises UnsupportedTargetError where there is none, or one older than `OLDEST_DRIVER`; DeviceError where it finds
        no device.
        """
        try:
            library = ctypes.CDLL(LIBRARY)
        except OSError as error:
            raise UnsupportedTargetError(
                f"no NVIDIA driver: {LIBRARY} cannot be loaded ({error})",
                hints=["install NVIDIA's driver", 'device="interpreter" checks kernels without a GPU'],
            ) from error

        def resolve(symbol: str, arguments: tuple[Any, ...]) -> Function:
            function = library[symbol]
            function.argtypes, function.restype = arguments, c_int
            return function

        found = cls(resolve)
        found.initialize()
        return found

    def initialize(self) -> None:
        """Initializes the driver. Raises what `open` raises of a driver that is there."""
        version = self.driver_version()
        if version < OLDEST_DRIVER:
            raise UnsupportedTargetError(
                f"the NVIDIA driver is too old: it offers CUDA {_dotted(version)}, and {_dotted(OLDEST_DRIVER)} is "
                "needed",
                hints=["update NVIDIA's driver"],
            )
        self.call("cuInit", 0)

    def function(self, symbol: str) -> Function:
        """A function by its symbol. Raises UnsupportedTargetError where the driver lacks it."""
        known = self._functions.get(symbol)
        if known is None:
            try:
                known = self._resolve(symbol, PROTOTYPES[symbol])
            except AttributeError as error:
                raise UnsupportedTargetError(
                    f"the NVIDIA driver is too old: it has no {symbol}", hints=["update NVIDIA's driver"]
                ) from error
            self._functions[symbol] = known
        return known

    def call(self, symbol: str, *arguments: Any) -> None:
        """Calls a function; raises what its result means (`results.failure`)."""
        code = self.function(symbol)(*arguments)
        if code != SUCCESS:
            self.fail(code, symbol)

    def fail(self, code: int, what: str) -> NoReturn:
        """Raises the error for a result other than success."""
        name = "" if code in NAMES else self._text("cuGetErrorName", code)
        raise failure(code, what, name, self._text("cuGetErrorString", code))

    def handle(self, symbol: str, *arguments: Any) -> int:
        """Calls a function that writes a handle or address through its first argument; that handle."""
        made = c_void_p()
        self.call(symbol, byref(made), *arguments)
        return made.value or 0

    def number(self, symbol: str, *arguments: Any) -> int:
        """Calls a function that writes an `int` through its first argument; that number."""
        value = c_int()
        self.call(symbol, byref(value), *arguments)
        return value.value

    def driver_version(self) -> int:
        """The CUDA version that the driver offers: 1000 times the major plus 10 times the minor number."""
        return self.number("cuDriverGetVersion")

    def elapsed_s(self, start: int, end: int) -> float:
        """Seconds between two events that were recorded and have passed; CUDA resolves about half a microsecond."""
        milliseconds = c_float()
        self.call("cuEventElapsedTime", byref(milliseconds), start, end)
        return milliseconds.value / 1e3

    def memory_type(self, address: int) -> int:
        """`CU_MEMORYTYPE_*` of the memory at an address; 0 where CUDA does not know it."""
        kind = c_int()
        code = self.function("cuPointerGetAttribute")(byref(kind), POINTER_MEMORY_TYPE, address)
        if code not in (SUCCESS, INVALID_VALUE):
            self.fail(code, "cuPointerGetAttribute")
        return kind.value if code == SUCCESS else 0

    def _text(self, symbol: str, code: int) -> str:
        text = c_char_p()
        self.function(symbol)(code, byref(text))  # leaves a null pointer for a code that it does not know
        return text.value.decode(errors="replace") if text.value else ""


def _dotted(version: int) -> str:
    return f"{version // 1000}.{version % 1000 // 10}"
