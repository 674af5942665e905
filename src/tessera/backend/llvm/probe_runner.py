"""Runs probes of the CPU (`native/probe_ir.py`) as plans run kernels, and says how long they took."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable

from tessera import settings
from tessera.backend.llvm.machine_code.library import cached_library
from tessera.backend.llvm.machine_code.loading import MachineCode
from tessera.backend.llvm.native.driver_ir import driver_text

SINK_BYTES = 8192
"""What a worker may write to a probe's sink."""


class LoadedProbes:
    """The probes of one module, loaded, and the driver that runs them on `several` threads or on one.

    Source, destination and sink are addresses; each worker has `nbytes` of the first two and `SINK_BYTES` of the sink.
    """

    def __init__(self, name: str, text: str, several: bool) -> None:
        directory = settings.current().objects_dir
        self._driver = cached_library("driver", driver_text(openmp=several), directory)
        self._probes: MachineCode = cached_library(name, text, directory)
        self._run: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._driver.address("tessera_run"))
        self._words = (ctypes.c_int64 * 32)()

    def seconds(
        self, function: str, repetitions: int, memory: tuple[int, int, int], nbytes: int = 0, workers: int = 1
    ) -> float:
        """Seconds that all workers take for so many repetitions over `memory`: source, destination and sink."""
        source, destination, sink = memory
        words = ctypes.addressof(self._words)
        table, descriptors, step = words + 5 * 8, words + 7 * 8, words + 16 * 8
        frame = (table, 1, step, 0, 0, source, destination, repetitions, nbytes)
        steps = (self._probes.address(function), descriptors, workers, sink, SINK_BYTES, 0, 0, 0)
        struct.pack_into(f"<{len(frame)}q", self._words, 0, *frame)
        struct.pack_into(f"<{len(steps)}q", self._words, 16 * 8, *steps)
        start = time.perf_counter()
        self._run(words)
        return time.perf_counter() - start
