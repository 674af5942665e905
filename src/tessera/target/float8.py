"""Which GPUs compute with the 8-bit floats of OFP8, fp8_e4m3 and fp8_e5m2."""

from __future__ import annotations

from tessera.target.facts import Target

_NATIVE = frozenset(("sm_89", "sm_90", "sm_100", "sm_103", "sm_120", "gfx950"))


def has_float8(target: Target) -> bool:
    """Whether a GPU's instructions convert and multiply them: NVIDIA's from compute capability 8.9 on, CDNA 4.

    CDNA 3 (gfx942) has 8-bit floats of its own, with another bias, one zero and no infinities (LLVM calls them
    Float8E4M3FNUZ and Float8E5M2FNUZ). There and elsewhere OFP8's are integers that kernels convert.
    """
    return target.arch in _NATIVE
