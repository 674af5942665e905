"""The native part of the exchange in shared memory, loaded once.

A one-shot call, 8-byte words: 0 address of the lanes' addresses; 1 room for as many addresses; 2 ranks; 3 own rank;
4 address of the fault word; 5 nanoseconds to spin; 6 nanoseconds to wait at most; 7 number of the exchange;
8 fingerprint; 9 bytes of an operand; 10 elements that are put together; 11 address of what does that; 12 operand;
13 result; 14 stage, 0 in the beginning; 15 the rank that is waited for, 0 in the beginning; 16 byte of operands from
which on they are read.
"""

from __future__ import annotations

import ctypes
import platform
import time
from collections.abc import Callable
from enum import IntEnum
from functools import cache
from typing import Final

import torch

from tessera import settings
from tessera.dtypes import dtype_of
from tessera.sharding.transport.lanes import DEPTH, LAYOUT, SLOT_BYTES

ONE_SHOT_WORDS: Final = 17
NUMBER, FINGERPRINT, OPERAND, RESULT, STAGE, PEER = 7, 8, 12, 13, 14, 15


class WaitOutcome(IntEnum):
    """Why a wait came back."""

    MET = 0
    TIMEOUT = 1
    FAULT = 2
    MISMATCH = 3
    """Another rank announced another exchange."""


class Native:
    """The loaded functions. Those that may take a while release the GIL."""

    def __init__(self) -> None:
        from tessera.backend.llvm.machine_code.library import cached_library
        from tessera.backend.llvm.native.exchange_ir import exchange_text
        from tessera.backend.llvm.native.reduction_ir import NUMBERS, reduction_name, reductions

        text = exchange_text(
            machine=platform.machine(),
            monotonic=time.CLOCK_MONOTONIC,
            layout=LAYOUT,
            depth=DEPTH,
            slot_bytes=SLOT_BYTES,
        )
        self._library = library = cached_library("exchange", text, settings.current().objects_dir)
        word, pointer = ctypes.c_int64, ctypes.c_void_p
        self.wait: Callable[[int, int, int, int, int, int], int] = ctypes.CFUNCTYPE(
            word, pointer, word, pointer, pointer, word, word
        )(library.address("tessera_await"))
        self.one_shot: Callable[[int], int] = ctypes.CFUNCTYPE(word, pointer)(library.address("tessera_one_shot"))
        self.publish: Callable[[int, int, int, int], None] = ctypes.PYFUNCTYPE(None, pointer, word, word, word)(
            library.address("tessera_publish")
        )
        self.finish: Callable[[int, int], None] = ctypes.PYFUNCTYPE(None, pointer, word)(
            library.address("tessera_finish")
        )
        self.ring: Callable[[int], None] = ctypes.PYFUNCTYPE(None, pointer)(library.address("tessera_ring"))
        self.gather = library.address("tessera_gather")
        self._reductions = {
            (dtype_of(dtype).torch, reduction): library.address(reduction_name(dtype, reduction))
            for dtype, number in NUMBERS.items()
            for reduction in reductions(number)
        }

    def reduction(self, dtype: torch.dtype, reduction: str) -> int | None:
        """The address of a reduction in rank order; None where there is none and torch computes it."""
        return self._reductions.get((dtype, reduction))


native = cache(Native)
Reduce: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
"""Result, address of the parts' addresses, parts, elements."""
