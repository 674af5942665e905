"""Ranges for other tools: NVTX (Nsight Systems), rocTX (rocprofv3) and ITT (VTune) show regions and plans by name.

They are emitted where TESSERA_PROFILE_RANGES asks for them, and by itself where a tool is attached, which such tools
say by environment variables. It is decided once, when the first plan is made: a program without a tool pays nothing.
On GPUs the tools show Tessera's kernels by their names; on CPUs a range stands for a plan, and names its operators.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

from tessera import settings
from tessera.errors import ProfileError
from tessera.profiling.recording import facts

ATTACHED: Final = {
    "nvtx": ("NVTX_INJECTION64_PATH",),
    "roctx": ("ROCP_TOOL_LIBRARIES", "ROCTRACER_DOMAIN"),
    "itt": ("INTEL_LIBITTNOTIFY64",),
}
"""Variables that tools set in the processes that they look into, by the ranges that they understand."""

_LIBRARIES: Final = {
    # (libraries in order of preference, name of the function that pushes, of the one that pops)
    "nvtx": (("libnvToolsExt.so.1", "libnvToolsExt.so"), "nvtxRangePushA", "nvtxRangePop"),
    "roctx": (
        ("librocprofiler-sdk-roctx.so.1", "libroctx64.so.4", "libroctx64.so"),
        "roctxRangePushA",
        "roctxRangePop",
    ),
}
_MOST_NAMED: Final = 4


class RangeLibrary(Protocol):
    """A library of ranges. Ranges of one thread nest."""

    def push(self, name: str) -> None:
        """Begins a range of the calling thread."""

    def pop(self) -> None:
        """Ends the range of the calling thread that began last."""


class LibraryEmitter:
    """Ranges by C functions."""

    def __init__(self, kind: str) -> None:
        """Raises ProfileError where none of the libraries can be loaded."""
        names, push, pop = _LIBRARIES[kind]
        library = next(filter(None, map(_loaded, names)), None)
        if library is None:
            raise ProfileError(f"no library of {kind} ranges can be loaded", hints=[f"looked for {', '.join(names)}"])
        self._push, self._pop = library[push], library[pop]
        self._push.argtypes = [ctypes.c_char_p]

    def push(self, name: str) -> None:
        self._push(name.encode())

    def pop(self) -> None:
        self._pop()


class TorchEmitter:
    """Ranges by the functions that torch is built with."""

    def __init__(self, kind: str) -> None:
        """Raises ProfileError for a build of torch without them."""
        import torch

        itt: Any = torch.profiler.itt  # whose functions have no types
        available = torch.version.cuda is not None if kind == "nvtx" else itt.is_available()
        if not available:
            raise ProfileError(f"this build of torch has no {kind} ranges", hints=["leave TESSERA_PROFILE_RANGES out"])
        module = torch.cuda.nvtx if kind == "nvtx" else itt
        self.push: Callable[[str], None] = module.range_push
        self.pop: Callable[[], None] = module.range_pop


def _loaded(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


def wanted(asked: str, environment: Mapping[str, str]) -> str | None:
    """Which ranges to emit: those asked for, else ("auto") those of the tool that is attached, None where none is."""
    if asked != "auto":
        return None if asked == "off" else asked
    return next((kind for kind, names in ATTACHED.items() if any(environment.get(name) for name in names)), None)


def made(kind: str) -> RangeLibrary:
    """The emitter of one kind. Raises ProfileError where there is no library for it."""
    if kind == "itt":
        return TorchEmitter("itt")
    if kind == "roctx":
        return LibraryEmitter("roctx")
    try:
        return TorchEmitter("nvtx")
    except ProfileError:
        return LibraryEmitter("nvtx")


@functools.cache
def emitter() -> RangeLibrary | None:
    """The emitter of this process, None where nobody wants ranges.

    Raises ProfileError where ranges are asked for and cannot be had; a tool that is attached asks for nothing.
    """
    asked = settings.current().profile_ranges
    kind = wanted(asked, os.environ)
    if kind is None:
        return None
    try:
        return made(kind)
    except ProfileError:
        if asked == "auto":
            return None
        raise


def around(run: Callable[[int], None], plan_id: int) -> Callable[[int], None]:
    """What runs a plan, within a range that names its operators where ranges are wanted; else `run` itself."""
    found = emitter()
    if found is None:
        return run
    name = functools.cache(lambda: label([step.operator for step in facts.of_plan(plan_id)]))

    def within(frame: int) -> None:
        found.push(name())
        try:
            run(frame)
        finally:
            found.pop()

    return within


def label(operators: Sequence[str]) -> str:
    """The operators in order, those after the first few as a number."""
    shown = list(dict.fromkeys(operators))
    more = len(shown) - _MOST_NAMED
    return "tessera: " + ", ".join(shown[:_MOST_NAMED] + ([f"{more} more"] if more > 0 else []))
