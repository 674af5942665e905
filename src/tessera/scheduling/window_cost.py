"""What a reduction over windows makes one worker do. The loops are those of `window.py`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, cast

from tessera.scheduling.machine import FMA_LATENCY, Machine, Work, largest_share
from tessera.scheduling.schedule import KnobValue
from tessera.scheduling.window_buffer import ring_shape
from tessera.scheduling.window_space import WindowProblem, inside_share

LOADS: Final = 2.0
"""Vectors of 32 bytes that a core loads in a cycle, on every x86 since 2013; wider ones take their share of that."""
MASKED: Final = 2.0
"""How much longer a row takes that is done on its own, under masks, at the edge of the image."""
PIXEL_BY_PIXEL: Final = 4.0
"""The same where channels go along lanes: tiles of one row, whose pixels are tested one by one (measured on Zen 4)."""
COPY_CYCLES: Final = 4.0
"""A vector of the image on its way into scratch memory, behind the second cache: measured on Zen 4."""
STEP_CYCLES: Final = 6
"""Loop and addresses of a register tile."""


def window_work(problem: WindowProblem, schedule: Mapping[str, KnobValue], rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    rows, columns = cast(int, schedule["rows"]), cast(int, schedule["columns"])
    vectors = cast(int, schedule["vectorize"])
    by_columns, buffered = problem.lanes_axis == "x", schedule["buffering"] == "rows"
    share = _largest_share(problem, schedule)
    # Of a register tile: vectors of the image, each used by several results; operands of taps; and the arithmetic.
    pixels = _seen(problem, 0, rows) * (problem.geometry.kernel[1] if by_columns else _seen(problem, 1, columns))
    loads: float = pixels * vectors + problem.taps * problem.free * (1 if by_columns else vectors)
    if by_columns and problem.geometry.stride[1] > 1:
        loads *= 2.5
    wide = rates.vector_bytes / 32
    sums = rows * columns * vectors
    arithmetic = sums * (problem.taps * problem.operations + problem.after)
    flops_per_cycle = rates.flop_per_s["fp32"] * rates.cycle_s / (2 * rates.vector_bytes / 4)
    latency = max(1.0, FMA_LATENCY * flops_per_cycle / sums)
    cycles = max(arithmetic / flops_per_cycle * latency, loads * wide / LOADS) + STEP_CYCLES
    height, width, channels = problem.result
    results = problem.images * height * (1 if by_columns else width)
    tiles = -(-problem.lanes // (vectors * problem.vector)) * results / (rows * columns)
    edge = 0.0 if buffered else _edge(problem, rows) if by_columns else 1 - inside_share(schedule, problem)
    slower = (MASKED if by_columns else PIXEL_BY_PIXEL) - 1
    work = Work(share * tiles * cycles * (1 + edge * slower) * rates.cycle_s, {})
    home = rates.home((problem.bytes_in + problem.bytes_out) / problem.workers)
    work.move(home, share * problem.bytes_in)
    streams = bool(schedule["nontemporal"])
    work.move("DRAM" if streams else home, share * problem.bytes_out * (1 if streams else 2))
    if by_columns:  # rows of the image are read again by the next ones
        work.move("L2", share * problem.image_bytes * (problem.geometry.kernel[0] - 1))
    elif buffered:
        copied = _copied(problem, schedule) * -(-channels // problem.vector)
        work.packing_s += share * copied * COPY_CYCLES * rates.cycle_s
    else:
        work.move("L2", share * tiles * pixels * vectors * rates.vector_bytes)
    return work


def _largest_share(problem: WindowProblem, schedule: Mapping[str, KnobValue]) -> float:
    """The part of all the work that the worker with the most of it does."""
    by_columns = problem.lanes_axis == "x"
    height = max(problem.result[0], 1)
    strip = cast(tuple[int, int], schedule["tile"])[0] if by_columns else cast(int, schedule["rows"])
    if schedule["parallel"] == "rows" or (not by_columns and problem.images <= 1):
        return largest_share(height, strip, problem.workers) / height
    return largest_share(problem.images, 1, problem.workers) / max(problem.images, 1)


def _seen(problem: WindowProblem, side: int, results: int) -> int:
    """Rows or columns of the image that so many neighbouring results see."""
    geometry = problem.geometry
    apart = results * geometry.kernel[side]
    if geometry.dilation[side] > 1:
        return apart
    return min((results - 1) * geometry.stride[side] + geometry.reach(side) + 1, apart)


def _edge(problem: WindowProblem, rows: int) -> float:
    """The share of rows at the edge of images with columns along lanes."""
    before = -(-problem.geometry.padding[0] // problem.geometry.stride[0]) * 2
    return min(1.0, (before + problem.rows % rows) / max(problem.rows, 1))


def _copied(problem: WindowProblem, schedule: Mapping[str, KnobValue]) -> float:
    """The pixels that go through the ring of rows: all, and those that neighbouring blocks both see."""
    height, width, _ = problem.result
    _, columns, _ = ring_shape(schedule, problem.geometry)
    blocks = -(-width // cast(tuple[int, int], schedule["tile"])[0])
    rows = height * problem.geometry.stride[0] + problem.geometry.reach(0)
    return (
        problem.images
        * rows
        * min(blocks * columns, width * problem.geometry.stride[1] + blocks * problem.geometry.reach(1))
    )
