"""`Target`: the facts of one device that scheduling, code generation and analysis read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final, Literal

from tessera.errors import UnsupportedTargetError
from tessera.target.ceilings import Ceilings
from tessera.target.core import CoreFacts
from tessera.target.datasheet import DataSheet

_AVX512 = frozenset(("avx512f", "avx512bw", "avx512dq", "avx512vl"))
_NEEDED_ON_X86 = ("avx2", "fma")

USUAL_FMA_PER_CYCLE: Final = 2
USUAL_FMA_LATENCY: Final = 4
"""What most cores of servers do since 2015: two fused multiply-adds of full width begin in a cycle, and each takes
four."""
USUAL_TLB_PAGES: Final = 64
"""Entries of the first buffer for data pages of Zen 3 and of Intel's cores from 2013 to 2020."""
USUAL_STREAMS: Final = 16
"""Rows of memory that prefetchers follow while they are read in turn, as the cost model's tables of Zen 4 have it."""
USUAL_WAKE_S: Final = 1.1e-6
"""Seconds for starting and joining a second worker of torch's OpenMP pool, which waits for it (Zen 4)."""

PAIRS_PAY: Final = 0.75
"""Multiplications of bf16 pairs in the time of one of fp32 from which pairs are multiplied. Cores do half as many as of
fp32 (Emerald Rapids in a virtual machine, 163 to 320 GFLOP/s), as many, or twice: this lies between the first two."""

TENSOR_MAP_BOX: Final = 256
"""The longest side of the block that one instruction of NVIDIA's copy engine moves ("CUDA Driver API",
cuTensorMapEncodeTiled).
"""
TILE_ARCHITECTURES: Final = (
    *("sm_80", "sm_86", "sm_87", "sm_88", "sm_89", "sm_90", "sm_100", "sm_103", "sm_110", "sm_120", "sm_121"),
)
"""What the compiler of CUDA Tile IR, tileiras 13.4, has code for."""


@dataclass(frozen=True)
class MemoryLevel:
    """One data cache, or the memory behind them ("DRAM", "HBM"; `size_bytes` 0 where it is not known).

    GPUs have "shared" (shared memory, LDS; on NVIDIA's the rest of the same memory is "L1"), "L2", where there is one
    "Infinity Cache" or "TMEM" (tensor memory), and "HBM". `shared_by` is the number of `Target.cores` that share one
    instance, `line_bytes` the unit of transfer.
    """

    name: str
    size_bytes: int
    line_bytes: int
    shared_by: int


@dataclass(frozen=True)
class GpuLimits:
    """What bounds occupancy on a GPU: per multiprocessor (SM, CU) unless the name says otherwise. Registers have 32
    bits.
    """

    warp_size: int
    max_warps: int
    registers: int
    max_registers_per_thread: int
    shared_bytes: int
    max_shared_bytes_per_block: int
    max_blocks: int = 32


@dataclass(frozen=True)
class Target:
    """One device.

    `arch` is LLVM's name of it ("znver4", "sm_90", "gfx942"), `features` are LLVM's feature names (CPU only). `cores`
    are the physical cores this process may use, or a GPU's multiprocessors; `processors` the logical ones. `memory`
    lists the levels from the nearest outwards. `core` is what was measured of a CPU's core; without it the properties
    below say what most cores do.
    """

    kind: Literal["cpu", "gpu"]
    arch: str
    name: str
    features: frozenset[str]
    vector_bits: int
    vector_registers: int
    cores: int
    processors: int
    memory: tuple[MemoryLevel, ...]
    machine: str = ""
    gpu: GpuLimits | None = None
    datasheet: DataSheet | None = None
    ceilings: Ceilings | None = None
    core: CoreFacts | None = None

    @property
    def has_several_maths(self) -> bool:
        """Whether products are multiplied as a numerics policy says: matrix units of GPUs may round fp32 to tf32,
        but for CDNA 4's, which have no such format.
        """
        return self.kind == "gpu" and self.arch != "gfx950"

    @property
    def has_avx512(self) -> bool:
        """Whether 512-bit vectors of every element width, and masks for narrower ones, can be used."""
        return self.features >= _AVX512

    @property
    def has_avx512bf16(self) -> bool:
        """Whether bf16 dot products (`vdpbf16ps`) on 512-bit vectors can be used."""
        return self.has_avx512 and "avx512bf16" in self.features

    @property
    def multiplies_bf16_pairs(self) -> bool:
        """Whether bf16 is multiplied in pairs: the CPU has instructions for it, and was not seen to do them so slowly
        that bf16 is better widened to fp32 while it is packed, whose multiply-adds take twice the registers and loads.
        """
        rate = self.core.dot_rate("bf16") if self.core is not None else None
        return self.has_avx512bf16 and (rate is None or rate >= PAIRS_PAY)

    @property
    def has_avx512vnni(self) -> bool:
        """Whether int8 dot products (`vpdpbusd`) on 512-bit vectors can be used."""
        return self.has_avx512 and "avx512vnni" in self.features

    @property
    def has_amx_bf16(self) -> bool:
        """Whether a matrix unit (AMX) multiplies tiles of bf16."""
        return self.has_avx512bf16 and self.features >= {"amx-tile", "amx-bf16"}

    @property
    def has_amx_int8(self) -> bool:
        """Whether a matrix unit (AMX) multiplies tiles of int8."""
        return self.has_avx512vnni and self.features >= {"amx-tile", "amx-int8"}

    @property
    def has_vnni(self) -> bool:
        """Whether int8 dot products can be used, on vectors of any width."""
        return bool(self.features & {"avx512vnni", "avxvnni"})

    @property
    def has_fma(self) -> bool:
        """Whether x86's fused multiply-add can be used; Arm's vector instructions always have one."""
        return "fma" in self.features or self.has_neon

    @property
    def has_f16c(self) -> bool:
        """Whether x86 can convert between fp16 and fp32 in vectors."""
        return "f16c" in self.features

    @property
    def has_neon(self) -> bool:
        """Whether this is an Arm CPU with vector instructions."""
        return "neon" in self.features

    def level(self, name: str) -> MemoryLevel | None:
        """The memory level called `name` ("L1", "L2", "L3", "DRAM", "HBM"), None where there is none."""
        return next((level for level in self.memory if level.name == name), None)

    def cache_bytes(self, name: str) -> int:
        """The bytes of a CPU's cache that can be used: as the system says, or less where less was seen to stay; 0 where
        there is no such cache.
        """
        level = self.level(name)
        stated = level.size_bytes if level is not None else 0
        return min(stated, dict(self.core.caches).get(name, stated)) if self.core is not None else stated

    @property
    def fma_per_cycle(self) -> int:
        """Vector fused multiply-adds of the widest kind, of fp32, that one core of a CPU starts in a cycle."""
        return self.core.fma_per_cycle if self.core is not None else USUAL_FMA_PER_CYCLE

    @property
    def fma_latency(self) -> int:
        """Cycles from a fused multiply-add of fp32 to one that needs its result."""
        return self.core.fma_latency if self.core is not None else USUAL_FMA_LATENCY

    @property
    def tlb_pages(self) -> int:
        """Pages that a core's first translation buffer reaches."""
        return (self.core.tlb_pages if self.core is not None else 0) or USUAL_TLB_PAGES

    @property
    def streams(self) -> int:
        """Rows of memory that are fetched ahead while a core reads them in turn."""
        return (self.core.streams if self.core is not None else 0) or USUAL_STREAMS

    @property
    def wake_s(self) -> float:
        """Seconds for starting and joining a second worker."""
        return (self.core.wake_s if self.core is not None else 0.0) or USUAL_WAKE_S

    def byte_per_s(self, level: str, access: str = "read") -> float | None:
        """Peak bandwidth of a memory level for all multiprocessors or cores together: the ceilings', else what is
        published; None where neither knows it.
        """
        known = self.ceilings.byte_per_s(level, self.cores, access) if self.ceilings is not None else None
        published = self.datasheet.level(level) if self.datasheet is not None else None
        return known or (published.byte_per_s if published is not None else None)

    def with_core(self, core: CoreFacts | None) -> Target:
        """This target with what was measured of its cores, or without."""
        return self if core == self.core else replace(self, core=core)

    def with_ceilings(self, ceilings: Ceilings) -> Target:
        """This target with its ceilings, measured or from a data sheet."""
        return replace(self, ceilings=ceilings)

    def unsupported_reason(self) -> str | None:
        """Why kernels cannot be generated for this device, in one sentence; None where they can."""
        if self.kind == "gpu" or self.has_neon:
            return None
        if self.machine not in ("x86_64", "AMD64"):
            return f"{self.name} ({self.machine or 'unknown architecture'}) has neither AVX2 nor NEON"
        missing = [feature.upper() for feature in _NEEDED_ON_X86 if feature not in self.features]
        return f"{self.name} lacks {' and '.join(missing)}" if missing else None

    def require_supported(self) -> None:
        """Raises UnsupportedTargetError, naming what is missing, where kernels cannot be generated for this device."""
        reason = self.unsupported_reason()
        if reason is not None:
            hints = ["x86 CPUs need AVX2 and FMA (2013 and later), Arm CPUs NEON; a virtual machine may hide them"]
            raise UnsupportedTargetError(reason, hints=hints)


def vector_facts(features: Iterable[str]) -> tuple[int, int]:
    """(bits of a vector register, number of vector registers) of a CPU with these LLVM features."""
    present = frozenset(features)
    if present >= _AVX512:
        return 512, 32
    if "neon" in present:
        return 128, 32
    return (256 if "avx" in present else 128), 16
