"""The native driver: runs all steps of a bound plan in one call, outside the GIL.

It is generated once as LLVM IR text (`backend/llvm/native/driver_ir.py`), and its object is kept on disk. All fields
are 8 bytes wide.

Frame, the argument of `tessera_run`:

| word | field | meaning |
| --- | --- | --- |
| 0 | table | address of the table of addresses and scalars that kernels read |
| 1 | steps | number of steps |
| 2 | first step | address of the first step |
| 3 | recorder cell | address of a word that holds the ring's address while a profile is on, else 0; 0: never |
| 4 | plan | the plan's number, as it stands in records |

Step, 8 words, one after the other from `first step`:

| word | field | meaning |
| --- | --- | --- |
| 0 | kernel | address of `void kernel(i64 *table, i64 *descriptors, i64 worker, i64 workers, i8 *workspace)` |
| 1 | descriptors | address of the kernel's descriptors |
| 2 | workers | number of shares; 0 once the rest of the frame is cancelled |
| 3 | workspace | address of worker 0's scratch memory, 64-byte aligned, or 0 |
| 4 | workspace pitch | bytes from one worker's scratch memory to the next one's |
| 5 | step | the step's number, as it stands in records |
| 6 | work | ns that all shares together take, 0 until known (`native/crowd_ir.py`) |
| 7 | | unused |

Ring, written by the driver and read by `profiling/ring/recorder.py`: word 0 counts records ever written, word 1 is the
capacity in records (a power of two), words 2 to 7 are unused, then follow the records as `profiling/ring/layout.py`
lays them out.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache

from tessera import settings
from tessera.backend.llvm.machine_code import openmp
from tessera.backend.llvm.machine_code.library import cached_library, compile_text
from tessera.backend.llvm.machine_code.loading import MachineCode, load_object
from tessera.backend.llvm.native import crowd_ir
from tessera.profiling.ring import recorder
from tessera.system import forks

FRAME_WORDS = 5
STEP_WORDS = 8
_WORKERS = 2
_WORD = 8


class PlanDriver:
    """The loaded driver. `run(frame_address)` runs a frame, without the GIL; `ticks()` reads the clock of the
    records.
    """

    __slots__ = ("_library", "_sequential", "run", "ticks", "uses_openmp")

    def __init__(self, library: MachineCode, uses_openmp: bool) -> None:
        self._library = library
        self.uses_openmp = uses_openmp
        # CFUNCTYPE releases the GIL around the call, which is wanted for run; for two instructions of clock it is not.
        self.run: Callable[[int], None] = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(library.address("tessera_run"))
        self.ticks: Callable[[], int] = ctypes.PYFUNCTYPE(ctypes.c_int64)(library.address("tessera_ticks"))
        self._sequential = ctypes.c_int32.from_address(library.address("tessera_sequential"))
        if uses_openmp:
            self.crowd()[crowd_ir.PROCESSORS] = os.cpu_count() or 0

    def look(self, now_ns: int) -> None:
        """Has the driver look who wants the cores, as it does itself when its time has come. KeyError as `crowd`."""
        ctypes.CFUNCTYPE(None, ctypes.c_int64)(self._library.address("tessera_crowd_look"))(now_ns)

    def crowd(self) -> ctypes.Array[ctypes.c_int64]:
        """What the driver knows of other programs that want the cores; words as in `native/crowd_ir.py`. KeyError
        where it starts no threads.
        """
        return (ctypes.c_int64 * crowd_ir.CROWD_WORDS).from_address(self._library.address("tessera_crowd"))

    @property
    def sequential(self) -> bool:
        """Whether shares run one after the other although OpenMP is there."""
        return bool(self._sequential.value)

    @sequential.setter
    def sequential(self, value: bool) -> None:
        self._sequential.value = int(value)


_driver_lock = forks.lock()
_given: list[tuple[bytes, bool]] = []
"""An object of the driver that came with machine code made elsewhere, and whether it starts threads by OpenMP."""


def driver_object() -> tuple[bytes, bool]:
    """The driver as an object, for processes that have no compiler, and whether it starts threads by OpenMP."""
    found = openmp.find().available
    return compile_text(_text(found)), found


def provide_driver(code: bytes, uses_openmp: bool) -> None:
    """Has this process take a driver that was made before, unless it has one or starts threads in another way."""
    with _driver_lock:
        _given[:] = [(code, uses_openmp)]


def build_driver(*, use_openmp: bool) -> PlanDriver:
    """A driver with or without OpenMP, from the object cache or compiled (about 20 ms)."""
    return PlanDriver(cached_library("driver", _text(use_openmp), settings.current().objects_dir), use_openmp)


def _text(use_openmp: bool) -> str:
    from tessera.backend.llvm.native.driver_ir import (
        driver_text,  # imports the generator of kernels, which some do without
    )

    return driver_text(openmp=use_openmp)


def cancel(table: int) -> None:
    """Has a frame that is running, given by the address of its table, run no share of its steps any more. The frame
    cannot be used again.
    """
    header = table - FRAME_WORDS * _WORD
    count, first = (ctypes.c_int64.from_address(header + word * _WORD).value for word in (1, 2))
    for step in range(count):
        ctypes.c_int64.from_address(first + (step * STEP_WORDS + _WORKERS) * _WORD).value = 0


@cache
def _shared_driver() -> PlanDriver:
    wanted = settings.current().openmp and openmp.find().available
    code = next((code for code, uses_openmp in _given if uses_openmp == wanted), None)
    made = build_driver(use_openmp=wanted) if code is None else PlanDriver(load_object(code), wanted)
    recorder.provide_clock(made.ticks)
    # libgomp's pool does not survive a fork: a child that asks for its threads waits for ever. It runs shares in turn
    # instead.
    os.register_at_fork(after_in_child=lambda: setattr(made, "sequential", True))
    return made


def driver() -> PlanDriver:
    """The process's driver, loaded at the first call."""
    with _driver_lock:
        return _shared_driver()


def threading_reason() -> str:
    """How steps with several workers run in this process, and why, in one sentence for people."""
    found = openmp.find()
    if not settings.current().openmp:
        return "shares run one after the other: TESSERA_OPENMP is off"
    if not found.available:
        return f"shares run one after the other: {found.reason}"
    if driver().sequential:
        return "shares run one after the other: this process is a fork, and OpenMP's threads stayed in its parent"
    return f"threads come from {found.reason}"
