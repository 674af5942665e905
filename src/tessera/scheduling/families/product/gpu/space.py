"""The knobs of matrix products on GPUs; `rules.py` has what makes a schedule legal, `choice.py` the default one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tessera.scheduling.families.product.gpu.choice import STARTS, complete, default_schedule, with_vectors
from tessera.scheduling.families.product.gpu.problem import (
    VECTOR_BYTES,
    GpuContractionProblem,
    OperandLayout,
    shared_bytes,
    sums_per_thread,
)
from tessera.scheduling.families.product.gpu.rules import RULES
from tessera.scheduling.language.knobs import Knob, Space
from tessera.scheduling.language.schedule import KnobValue, Schedule

__all__ = [
    "RULES",
    "STARTS",
    "VARIANTS",
    "GpuContractionProblem",
    "OperandLayout",
    "complete",
    "default_schedule",
    "knobs",
    "searched",
    "shared_bytes",
    "space",
    "starts",
    "sums_per_thread",
]

_INDEXING = ("pointer", "host_descriptor", "device_descriptor")
_EVICTIONS = ("normal", "first", "last")


def knobs(problem: GpuContractionProblem) -> tuple[Knob, ...]:
    """The knobs of a matrix product on a GPU, with the choices that its architecture has at all."""
    indexing = _INDEXING if problem.has_copy_engine else _INDEXING[:1]
    evictions = _EVICTIONS if problem.is_nvidia else _EVICTIONS[:1]
    tiles = tuple(
        (bm, bn, bk) for bm in (16, 32, 64, 128, 256) for bn in (16, 32, 64, 128, 256) for bk in (16, 32, 64, 128)
    )
    return (
        Knob("tile", tiles, "the block's tile (BM, BN), and how deep one step along K is (BK)"),
        Knob("warps", (1, 2, 4, 8, 16), "warps of a block"),
        Knob("pipeline_depth", (1, 2, 3, 4, 5), "stages: tiles that are on their way at a time"),
        Knob("group", (1, 4, 8, 16), "rows of blocks that run side by side, so that they share B's tiles in L2"),
        Knob(
            "grid",
            ("flat", "persistent", "fused"),
            "a program per tile, or per multiprocessor, walking tiles: fused, it loads the next while it stores one",
        ),
        Knob("a_indexing", indexing, "how A's tiles are reached: by pointers, or by a descriptor for the copy engine"),
        Knob("b_indexing", indexing, "how B's tiles are reached"),
        Knob("out_indexing", indexing, "how the result's tiles are reached"),
        Knob("warp_specialize", (False, True) if problem.reads_shared else (False,), "warps of their own for loads"),
        Knob(
            "max_registers", (0, 96, 128, 168), "registers that a thread may have at most; 0 leaves it to the compiler"
        ),
        Knob(
            "accumulators",
            (1, 2) if problem.has_tensor_memory else (1,),
            "buffers of sums: with two, one is stored while the other is summed up",
        ),
        Knob("epilogue_parts", (1, 2, 4), "parts of the tile's columns that are stored one after the other"),
        Knob("split_k", (1, 2, 4, 8, 16), "parts of K that are summed up by blocks of their own, and added afterwards"),
        Knob(
            "vector_bytes",
            (0, 1, 2, 4, 8, VECTOR_BYTES),
            "bytes of one access that alignment is promised for; 0: wide ones where 16 divides extents and strides",
        ),
        Knob("a_eviction", evictions, "whether caches should give up A's tiles first, or last"),
        Knob("b_eviction", evictions, "whether caches should give up B's tiles first, or last"),
        Knob("out_eviction", evictions, "whether caches should give up the result's tiles first, or last"),
    )


VARIANTS: tuple[dict[str, KnobValue], ...] = (
    {},
    {"grid": "persistent"},
    {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor"},
    {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor", "grid": "fused", "epilogue_parts": 2},
    {
        "tile": (128, 128, 64),
        "warps": 4,
        "a_indexing": "host_descriptor",
        "b_indexing": "host_descriptor",
        "warp_specialize": True,
    },
    {
        "tile": (128, 128, 64),
        "warps": 4,
        "a_indexing": "host_descriptor",
        "b_indexing": "host_descriptor",
        "warp_specialize": True,
        "grid": "fused",
        "accumulators": 2,
    },
    {"pipeline_depth": 1},
)
"""What of the starts is changed, so that knobs stand together that go together."""


def starts(problem: GpuContractionProblem) -> tuple[Schedule, ...]:
    """The legal ones of the known good starts, each in all of the `VARIANTS`."""
    plain = [
        complete(Schedule(tile=tile, warps=warps, pipeline_depth=stages, group=8)) for tile, stages, warps in STARTS
    ]
    drawn = (start.replace(**family) for start in plain for family in VARIANTS)
    found = dict.fromkeys(with_vectors(start, problem) for start in drawn)
    return tuple(start for start in found if all(rule.holds(start, problem) for rule in RULES))


def space(problem: GpuContractionProblem) -> Space[GpuContractionProblem]:
    """All schedules of one matrix product."""
    return Space(knobs(problem), RULES, problem, default_schedule(problem), starts(problem))


_LARGE = 2048 * 2048
"""Elements of a result from which on it has tiles for all multiprocessors, whatever their size."""


def searched(space: Space[Any], problem: GpuContractionProblem) -> dict[str, Sequence[KnobValue]]:
    """The choices that a search looks at; the other knobs keep their defaults.

    All 17 knobs together have more schedules than a search can look through. Tiles that are larger than the product,
    and parts of K where the result has tiles enough, are left out as well.
    """
    knobs = {knob.name: knob.choices for knob in space.knobs}
    most = [max(16, 1 << (extent - 1).bit_length()) for extent in (problem.m, problem.n, problem.k)]
    return {
        **{name: (space.default[name],) for name in knobs},
        "tile": [
            # The default's stays: what is legal may be larger than a small product (32 deep, of 8-bit operands).
            tile
            for tile in knobs["tile"]
            if tile == space.default["tile"] or all(map(int.__le__, _sides(tile), most))
        ],
        "warps": knobs["warps"],
        "pipeline_depth": knobs["pipeline_depth"],
        "group": (1, 8),
        "grid": ("flat", "persistent"),
        "a_indexing": [way for way in knobs["a_indexing"] if way != "device_descriptor"],
        "b_indexing": [way for way in knobs["b_indexing"] if way != "device_descriptor"],
        "epilogue_parts": (1, 2),
        "split_k": (1,) if problem.m * problem.n >= _LARGE else (1, 2, 4, 8),
    }


def _sides(tile: KnobValue) -> tuple[int, ...]:
    assert isinstance(tile, tuple)
    return tile
