"""What identities call a processor, so that the same core finds its winners in every cloud and under every name.

A CPU is called by facts that decide which schedule is fast, and by nothing that a maker, a hypervisor or LLVM calls it:

    x86-512x32-bf16-vnni-32k-1m-1fma      Zen 4
    x86-256x16-32k-512k-2fma              Zen 2 and Zen 3
    arm-128x32-64k-1m-2fma                Neoverse N1 and N2

These are its instructions (registers as bits x number, then what multiplies bf16 and bytes), the sizes of L1 and L2 as
the system says them, and the multiply-adds of full width that begin in a cycle. The last alone is measured. It is a
small whole number, the best of many short runs, kept once (`CoreFacts`): others who want the CPU can only make it look
less, so that one which was measured in doubt counts where it is the usual most. Otherwise, and where nothing is
measured (`TESSERA_CORE_FACTS=0`), the name leaves it out, and is looked for with any number.

The last cache is no part of the name: its share depends on how large a virtual machine is. Times are none either.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Final

from tessera.target import Target, detect
from tessera.target.facts import USUAL_FMA_PER_CYCLE

_SIZES: Final = tuple(step << power for power in range(10, 30) for step in (2, 3))
"""Sizes of caches in steps of half an octave, in bytes: caches of 1 and of 1.125 MiB want the same tiles."""
_FMA: Final = (2, 1, 4)
"""Multiply-adds that begin in a cycle, as coarsely as names have them; the usual number first."""
_CPU: Final = re.compile(r"(?P<kind>(?:x86|arm)-\d+x\d+(?:-[a-z]\w*)*(?:-\d+(?:p5)?[km]){2})(?:-(?P<fma>\d)fma)?")


def arch_of(target: Target) -> str:
    """What identities call a processor: `Identity.arch`. GPUs of one architecture differ in what is fastest, and have
    their names in it.
    """
    if target.kind == "gpu":
        return f"{target.arch} {target.name}"
    fma = _fma(target)
    return kind_of(target) if fma is None else f"{kind_of(target)}-{fma}fma"


def kind_of(target: Target) -> str:
    """What the system says of a CPU's cores, as a name: the same whatever is measured, and whenever."""
    units = (("bf16", target.has_avx512bf16), ("vnni", target.has_vnni))
    matrix = (("amxbf16", target.has_amx_bf16), ("amxint8", target.has_amx_int8))
    parts = [
        "arm" if target.has_neon else "x86",
        f"{target.vector_bits}x{target.vector_registers}",
        *(name for name, has in (*units, *matrix) if has),
        *(_size(target, level) for level in ("L1", "L2")),
    ]
    return "-".join(parts)


@lru_cache(maxsize=256)
def names_of(arch: str) -> tuple[str, ...]:
    """The names under which winners of a processor may be kept, its own first.

    One whose multiply-adds were counted finds what was kept before they were, and the reverse. This machine's CPU also
    finds what earlier versions kept under LLVM's name of it.
    """
    found = _CPU.fullmatch(arch)
    if found is None:
        return (arch,)
    kind = found["kind"]
    others = (kind,) if found["fma"] else tuple(f"{kind}-{count}fma" for count in _FMA)
    here = detect()
    return (arch, *others, *((here.arch,) if kind_of(here) == kind else ()))


def _fma(target: Target) -> int | None:
    """The multiply-adds that begin in a cycle, coarsely; None where that is not known for sure."""
    core = target.core
    if core is None or (core.in_doubt and core.fma_per_cycle < USUAL_FMA_PER_CYCLE):
        return None
    return min(_FMA, key=lambda count: abs(math.log2(core.fma_per_cycle / count)))


def _size(target: Target, name: str) -> str:
    """The size of a cache, coarsely: "48k", "1m"; "0k" where the system tells of none."""
    level = target.level(name)
    if level is None or level.size_bytes <= 0:
        return "0k"
    size = min(_SIZES, key=lambda size: abs(math.log2(level.size_bytes / size)))
    kibibytes = size >> 10
    return f"{kibibytes}k" if kibibytes % 512 or kibibytes < 1024 else f"{kibibytes / 1024:g}m".replace(".5", "p5")
