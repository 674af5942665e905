"""Tile IR as Triton can express it, where it holds 8-bit floats."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from tessera.ir.tile.float8 import float8_to_integers
from tessera.target import Target
from tessera.target.float8 import has_float8, rounds_float8


def for_target(module: ModuleOp, target: Target) -> ModuleOp:
    """The module as it is printed for a GPU.

    Where the GPU does not know the 8-bit floats of OFP8, a buffer of them is one of bytes to the kernel, which converts
    by integers: Triton 3.6 refuses fp8_e4m3 below compute capability 8.9, and rounds fp8_e5m2 twice there. Where its
    instructions do not round to them as is meant, integers do.
    """
    return float8_to_integers(module, native=has_float8(target), rounds=rounds_float8(target))


def for_interpreter(module: ModuleOp) -> ModuleOp:
    """The module as Triton's interpreter computes it right: its own conversions cut off bits and know no NaN."""
    return float8_to_integers(module, native=False)
