"""Which GPUs compute with the 8-bit floats of OFP8, fp8_e4m3 and fp8_e5m2."""

from __future__ import annotations

from tessera.target.facts import Target

_NATIVE = frozenset(("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950"))


_ROUNDS = _NATIVE - {"sm_89", "gfx950"}


def has_float8(target: Target) -> bool:
    """Whether a GPU's instructions convert and multiply them: NVIDIA's from compute capability 8.9 on, CDNA 4.

    CDNA 3 (gfx942) has 8-bit floats of its own, with another bias, one zero and no infinities (LLVM calls them
    Float8E4M3FNUZ and Float8E5M2FNUZ). There and elsewhere OFP8's are integers that kernels convert.
    """
    return target.arch in _NATIVE


def rounds_float8(target: Target) -> bool:
    """Whether a GPU rounds to fp8_e4m3 once, and saturates, as `dtypes` says, by instructions.

    Compute capability 8.9 does not: ptxas 12.8 was seen to round fp32 towards zero to fp16 and that to fp8_e4m3, so
    that what lies just above the middle of two numbers rounds down. Nor does CDNA 4: the mode in which its instruction
    saturates (FP16_OVFL) also makes the kernel's fp16 saturate where infinity is meant.
    """
    return target.arch in _ROUNDS
