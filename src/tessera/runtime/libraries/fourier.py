"""Fourier transforms of torch's library for generated code: descriptors and the addresses of its functions.

torch's builds for x86 hold MKL, whose interface to transforms (DFTI, oneMKL Developer Reference, "Fourier Transform
Functions") they export. Through it a kernel transforms rows and columns where they lie, without the copies that torch
makes around each call. Where it is missing, `find` gives None and convolutions call torch's functions instead.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, Final

import torch

from tessera.system import forks

_REAL: Final = 33
_COMPLEX: Final = 32
_IN_PLACE: Final = 43
_OUT_OF_PLACE: Final = 44
_COMPLEX_STORAGE: Final = 39
_PARAMETERS: Final = {
    "backward_scale": 5,
    "transforms": 7,
    "conjugate_even_storage": 10,
    "placement": 11,
    "input_strides": 12,
    "output_strides": 13,
    "input_distance": 14,
    "output_distance": 15,
    "threads": 27,
}
"""Values of `DFTI_CONFIG_PARAM` and `DFTI_CONFIG_VALUE` in MKL's mkl_dfti.h, which do not change between versions."""

_FUNCTIONS: Final = (
    "DftiCreateDescriptor_s_1d",
    "DftiSetValue",
    "DftiCommitDescriptor",
    "DftiComputeForward",
    "DftiComputeBackward",
    "DftiFreeDescriptor",
)


@dataclass(frozen=True)
class TransformLibrary:
    """The library in memory; `forward` and `backward` are addresses of its two functions that transform."""

    library: Any
    forward: int
    backward: int


@cache
def find() -> TransformLibrary | None:
    """torch's library of transforms; None where it has none that can be called."""
    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        library = ctypes.CDLL(str(path))
    except OSError:
        return None
    if not all(hasattr(library, name) for name in _FUNCTIONS):
        return None
    for name in _FUNCTIONS:
        getattr(library, name).restype = ctypes.c_long
    ways = library.DftiComputeForward, library.DftiComputeBackward
    forward, backward = (ctypes.cast(way, ctypes.c_void_p).value or 0 for way in ways)
    return TransformLibrary(library, forward, backward)


class Transforms:
    """A committed descriptor: `handle` is valid as long as the object lives, and threads may share it."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, handle: int, library: Any) -> None:
        self.handle = handle
        weakref.finalize(self, _free, handle, library).atexit = False


def _free(handle: int, library: Any) -> None:
    library.DftiFreeDescriptor(ctypes.byref(ctypes.c_void_p(handle)))


_lock = forks.lock()


@lru_cache(maxsize=1 << 10)
def real_rows(points: int, count: int, step: int) -> Transforms | None:
    """`count` transforms between contiguous rows of `points` real numbers and rows of `points // 2 + 1` complex ones,
    `step` numbers apart. Backward they divide by `points`. None where the library refuses them.
    """
    return _committed(points, _REAL, count, (0, 1), (0, 1), (points, step), 1 / points)


@lru_cache(maxsize=1 << 10)
def complex_rows(points: int, count: int, step: int) -> Transforms | None:
    """The same from complex rows to real ones, for transforms backward."""
    return _committed(points, _REAL, count, (0, 1), (0, 1), (step, points), 1 / points)


@lru_cache(maxsize=1 << 10)
def columns(points: int, count: int) -> Transforms | None:
    """Transforms in place of all `count` columns of `points` complex numbers; backward they divide by `points`."""
    return _committed(points, _COMPLEX, count, (0, count), (0, count), (1, 1), 1 / points)


def _committed(
    points: int,
    domain: int,
    count: int,
    inputs: Sequence[int],
    outputs: Sequence[int],
    distances: tuple[int, int],
    scale: float,
) -> Transforms | None:
    found = find()
    if found is None:
        return None
    library, handle, pair = found.library, ctypes.c_void_p(), ctypes.c_long * 2
    settings: dict[str, Any] = {
        "placement": ctypes.c_int(_OUT_OF_PLACE if domain == _REAL else _IN_PLACE),
        "input_strides": pair(*inputs),
        "output_strides": pair(*outputs),
        "transforms": ctypes.c_long(count),
        "input_distance": ctypes.c_long(distances[0]),
        "output_distance": ctypes.c_long(distances[1]),
        "backward_scale": ctypes.c_double(scale),
        "threads": ctypes.c_long(1),
    }
    if domain == _REAL:
        settings["conjugate_even_storage"] = ctypes.c_int(_COMPLEX_STORAGE)
    with _lock:
        if library.DftiCreateDescriptor_s_1d(ctypes.byref(handle), ctypes.c_int(domain), ctypes.c_long(points)):
            return None
        made = Transforms(handle.value or 0, library)
        for name, value in settings.items():
            if library.DftiSetValue(handle, ctypes.c_int(_PARAMETERS[name]), value):
                return None
        return None if library.DftiCommitDescriptor(handle) else made
