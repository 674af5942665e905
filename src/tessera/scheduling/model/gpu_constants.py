"""The constants of the cost models of GPUs that only a GPU can give: value, interval, and where they are from.

What data sheets say (peaks, bandwidths, clocks) is not among them: that is in `target`. The intervals hold what is
published where something is, else what would not surprise; `tessera doctor --gpu-model` shows which choices of
schedules change within them, so that those constants are measured first.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Final

_ASSUMED: Final = "assumed"
_LUO: Final = (
    'Luo et al., "Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via Microbenchmarking" (2024)'
)

_H100: Final = (
    "eleven bf16 products on an H100 that rests between them, which the model meets by 6 % on average; cuBLAS' best is "
    "818 of 989 TFLOP/s, in waves that are 97 % full (bench/results/nvidia-h100-80gb-hbm3-2026-11-26-matmul.md)"
)


_SHAH: Final = (
    'Shah et al., "FlashAttention-3" (2024), section 3.1: 3.9 TFLOP/s of special functions on an H100 are 16 a clock '
    "and multiprocessor"
)
_ATTENTION: Final = (
    "attention on an H100, bf16, 16384 tokens, heads of 64 and 128: 1.37 and 2.10 us for a step of 128 x 128, the "
    "products' time and 0.7 us (bench/results/nvidia-h100-80gb-hbm3-2026-11-26-attention.md)"
)


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant: its value, the interval that it is thought to lie in, its unit, what it is, and its source."""

    name: str
    value: float
    least: float
    most: float
    unit: str
    meaning: str
    source: str


def _constant(value: float, least: float, most: float, unit: str, meaning: str, source: str = _ASSUMED) -> Any:
    if not least <= value <= most:
        raise ValueError(f"{value} does not lie within {least} to {most}")
    given = {"least": least, "most": most, "unit": unit, "meaning": meaning, "source": source}
    return field(default=value, metadata=MappingProxyType(given))


@dataclass(frozen=True, slots=True)
class GpuConstants:
    """All of them, under the names that the models use. `known()` says what they are."""

    sustained: float = _constant(
        0.86, 0.70, 0.90, "of the peak",
        "the part of a published matrix peak that lasts; measured ceilings need no such factor",
        _H100,
    )  # fmt: skip
    streamed: float = _constant(
        0.90, 0.85, 0.95, "of the bandwidth",
        "the part of a published memory bandwidth that a copy reaches",
        "a copy on an H200: 4.3 of 4.8 TB/s",
    )  # fmt: skip
    usable_l2: float = _constant(
        0.75, 0.50, 1.00, "of L2", "the share of L2 that operands can count on while results stream through it"
    )
    l2_bytes_per_clock: float = _constant(
        5120, 4096, 8192, "byte a clock", "what L2 gives, of one die",
        '"NVIDIA A100 Tensor Core GPU Architecture", L2 cache; others are taken to be like it',
    )  # fmt: skip
    shared_bytes_per_clock: float = _constant(
        128, 115, 128, "byte a clock", "what shared memory gives one multiprocessor",
        '"CUDA C++ Programming Guide": 32 banks of 4 bytes; CDNA 3\'s LDS does as much',
    )  # fmt: skip
    port_bytes_per_clock: float = _constant(
        64, 48, 64, "byte a clock", "what arrives at one multiprocessor from L2",
        '"NVIDIA A100 Tensor Core GPU Architecture": 64 bytes a clock; CDNA 3 as much',
    )  # fmt: skip
    loaded: float = _constant(
        2.0, 1.0, 3.0, "times", "how much longer than on an idle device a load takes where memory is kept busy"
    )
    in_flight: float = _constant(
        1.0, 0.5, 1.5, "times", "the bytes that a multiprocessor must have under way to keep memory busy, of CUB's",
        "`arch_to_min_bytes_in_flight` of NVIDIA's CUB",
    )  # fmt: skip
    hopper_warp_share: float = _constant(
        0.62, 0.55, 0.70, "of the peak", "what mma.sync reaches of the matrix peak on sm_90", _LUO
    )
    blackwell_warp_share: float = _constant(
        0.31, 0.25, 0.50, "of the peak",
        "what mma.sync reaches of the matrix peak on sm_100, whose peak is twice sm_90's; taken to be no faster there",
    )  # fmt: skip
    vector_share: float = _constant(
        0.60, 0.45, 0.80, "of the peak",
        "what ordinary instructions, which also move the operands, reach of the vector peak in a product",
    )  # fmt: skip
    step_cycles: float = _constant(
        24, 8, 64, "cycles",
        "per step along K: waiting at a barrier, addresses, issuing the loads; another block's work hides it",
    )  # fmt: skip
    issue_cycles: float = _constant(
        16, 4, 40, "cycles", "per step along K, while matrix instructions of no block are under way"
    )
    epilogue_bytes_per_clock: float = _constant(
        32, 16, 64, "byte a clock", "what one multiprocessor writes of results; half of what it reads"
    )
    product_block_cycles: float = _constant(
        500, 200, 1500, "cycles", "starting a block of a product and leaving it, beside the first loads and last stores"
    )
    merged: float = _constant(
        2.0, 1.0, 2.0, "blocks",
        "neighbouring multiprocessors whose requests for one line of B reach L2 as one",
        "NVIDIA's L2 request coalescer; without it an H100 could not do what it does with 128 x 256 tiles",
    )  # fmt: skip
    rows_block_cycles: float = _constant(
        600, 200, 1500, "cycles", "starting a block of a map or reduction, its addresses, leaving it"
    )
    barrier_cycles: float = _constant(
        60, 20, 150, "cycles", "a reduction across the warps of a block: shuffles, shared memory, a barrier"
    )
    access_cycles: float = _constant(
        4, 2, 8, "cycles", "between two memory instructions of one multiprocessor, of 32 lanes each"
    )
    exponentials_per_clock: float = _constant(
        16, 12, 32, "a clock", "exponentials that one multiprocessor forms, as attention does of its scores", _SHAH
    )  # fmt: skip
    score_share: float = _constant(
        0.60, 0.40, 0.90, "of the peak",
        "what ordinary instructions reach of their rate between two products of attention",
    )  # fmt: skip
    softmax_hidden: float = _constant(
        0.05, 0.0, 0.50, "of the time",
        "the part of what lies between attention's products, or of these, that other warps of a multiprocessor hide",
        _ATTENTION,
    )  # fmt: skip
    overlap_loss: float = _constant(
        0.03, 0.0, 0.10, "of the time", "the part of every other resource's time that the slowest's does not hide"
    )
    launch_s: float = _constant(
        2e-6, 1e-6, 4e-6, "s", "from one kernel's end to the next one's first block, within a captured graph"
    )


KNOWN: Final = GpuConstants()
"""The constants as they are believed to be."""


def known() -> tuple[Constant, ...]:
    """Every constant, in the order of `GpuConstants`."""
    return tuple(Constant(each.name, getattr(KNOWN, each.name), **each.metadata) for each in fields(GpuConstants))


LATENCY_CYCLES: Final[Mapping[str, tuple[int, int]]] = MappingProxyType({"sm_80": (262, 466), "sm_90": (263, 479)})
"""(hit in L2, memory behind it) of an idle device, by architecture: Luo et al. (2024); others are taken to be like
Hopper."""

BYTES_IN_FLIGHT: Final[Mapping[str, int]] = MappingProxyType({"sm_80": 16 << 10, "sm_90": 48 << 10, "sm_100": 64 << 10})
"""What a multiprocessor must have on its way for memory to be kept busy, by architecture: NVIDIA's CUB library asks for
so many (`arch_to_min_bytes_in_flight`; by Little's law that is about a microsecond of bandwidth)."""
OTHERS_IN_FLIGHT: Final = 32 << 10

L2_DIES: Final[Mapping[str, int]] = MappingProxyType({"sm_100": 2})
"""Dies with an L2 of their own, where there are several."""
