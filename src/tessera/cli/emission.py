"""What `tessera opt` writes."""

from __future__ import annotations

from enum import StrEnum


class Emission(StrEnum):
    """What is written at the end: the IR, what the CPU backend makes of it, or Triton's source."""

    IR = "ir"
    LLVM = "llvm"
    ASM = "asm"
    OBJECT = "object"
    TRITON = "triton"
