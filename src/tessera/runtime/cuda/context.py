"""A device's primary context, the one that torch uses as well: current while a call runs, and no longer.

CUDA keeps a current context for each thread. Other code may have made another device's current, which stays so.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_void_p
from typing import Any

from tessera.runtime.cuda.libcuda import Function, Libcuda
from tessera.runtime.cuda.results import SUCCESS


class Context:
    """The primary context of device number `ordinal`, retained for good, as torch retains it."""

    def __init__(self, library: Libcuda, ordinal: int) -> None:
        device = library.number("cuDeviceGet", ordinal)
        self.library = library
        self.device = c_int(device)
        self.handle = library.handle("cuDevicePrimaryCtxRetain", self.device)
        self._current = library.function("cuCtxGetCurrent")

    def run(self, function: Function, *arguments: Any) -> int:
        """The result of one driver function called under this context."""
        if self._is_current():
            return function(*arguments)
        with self.entered():
            return function(*arguments)

    @contextmanager
    def entered(self) -> Iterator[None]:
        """This context is current in the calling thread inside the `with` block."""
        if self._is_current():
            yield
            return
        self.library.call("cuCtxPushCurrent_v2", self.handle)
        try:
            yield
        finally:
            self.library.call("cuCtxPopCurrent_v2", byref(c_void_p()))

    def _is_current(self) -> bool:
        current = c_void_p()
        return self._current(byref(current)) == SUCCESS and current.value == self.handle
