"""Clock reads around the macro tiles of a timed kernel, and what is kept of them (`backend/tile_times.py`).

The reads do not wait for instructions in flight, so the edge of a tile is off by what the CPU works ahead, some 0.1 us.
"""

from __future__ import annotations

from typing import Final

from tessera.backend.llvm.emission.emitter import FunctionEmitter
from tessera.backend.tile_times import CAPACITY, COUNT, HEADER_WORDS, LONGEST, SHORTEST, TOTAL, WORKER_WORDS

_WORD_BYTES = 8


CLOCK: Final = "@llvm.readcyclecounter"
"""Reads the clock of records: the time stamp counter on x86, on arm64 CNTVCT_EL0, which programs may read.
(`llvm.readsteadycounter` is a constant 0 there, as of LLVM 22.)
"""


class TileClock:
    """Times tiles of one kernel; `memory` is the operand that holds the address of the first worker's part."""

    def __init__(self, emitter: FunctionEmitter, memory: str) -> None:
        self._emitter = emitter
        offset = emitter.emit(f"mul i64 %worker, {WORKER_WORDS * _WORD_BYTES}")
        self._part = emitter.emit(f"getelementptr i8, ptr {memory}, i64 {offset}")

    def read(self) -> str:
        """The clock, now."""
        return self._emitter.emit(self._emitter.call("i64", CLOCK))

    def finish(self, start: str) -> None:
        """Notes that a tile that began at `start` has ended."""
        emitter = self._emitter
        duration = emitter.emit(f"sub i64 {self.read()}, {start}")
        count = self._load(COUNT)
        slot = emitter.emit(f"and i64 {count}, {CAPACITY - 1}")
        word = emitter.emit(f"add i64 {slot}, {HEADER_WORDS}")
        place = emitter.emit(f"getelementptr i64, ptr {self._part}, i64 {word}")
        emitter.effect(f"store i64 {duration}, ptr {place}")
        self._store(COUNT, emitter.emit(f"add i64 {count}, 1"))
        self._store(TOTAL, emitter.emit(f"add i64 {self._load(TOTAL)}, {duration}"))
        for field, intrinsic in ((SHORTEST, "@llvm.smin.i64"), (LONGEST, "@llvm.smax.i64")):
            bounds = ("i64", self._load(field)), ("i64", duration)
            self._store(field, emitter.emit(emitter.call("i64", intrinsic, *bounds)))

    def _place(self, field: int) -> str:
        return self._emitter.pure(f"getelementptr i8, ptr {self._part}, i64 {field * _WORD_BYTES}")

    def _load(self, field: int) -> str:
        return self._emitter.emit(f"load i64, ptr {self._place(field)}")

    def _store(self, field: int, value: str) -> None:
        self._emitter.effect(f"store i64 {value}, ptr {self._place(field)}")
