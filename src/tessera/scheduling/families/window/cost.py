"""What a reduction over windows makes one worker do. The loops are those of `window/lowering.py`."""

from __future__ import annotations

from typing import Final

from tessera.scheduling.families.window.buffer import ring_shape
from tessera.scheduling.families.window.space import WindowProblem, inside_share
from tessera.scheduling.language.columns import Knobs, Number, divided, larger, smaller, where
from tessera.scheduling.model.machine import DRAM, L2, REORDERED, Machine, Work, largest_share

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
RUN_CYCLES: Final = 15.0
"""Waiting for the first line of a run of channels that is read in place, where the next pixel's lies elsewhere: what is
fetched ahead ends with a page, in which few pixels are. Copies do not wait (Zen 4, 3 x 3 of 56 x 56 by 256 channels,
means of 17 schedules: 446 us in runs of 64 bytes, 355 of 128, 276 of 256, 235 of whole pixels; the least of 60 calls on
a busy Zen 3: 743, 598, 568, 538).
"""
BLOCK_CYCLES: Final = 200
"""Entering and leaving a block where columns go along lanes."""
LINE: Final = 64
STREAMS: Final = 6
STREAM_LOSS: Final = 0.09
"""Rows that are walked at a time without loss, and what each further one costs of memory's time."""
SHORT_RUN: Final = 40
"""Bytes that could have been read from memory in the time that a step to the next vectors of a row takes.

These four are fitted to Zen 4, 3 x 3 windows of 112 x 112 and 28 x 28 images that leave the caches."""


def window_work(problem: WindowProblem, schedule: Knobs, rates: Machine) -> Work:
    """The work of the worker with the largest share."""
    rows, columns = schedule.integer("rows"), schedule.integer("columns")
    vectors = schedule.integer("vectorize")
    by_columns, buffered = problem.lanes_axis == "x", schedule.equals("buffering", "rows")
    share = _largest_share(problem, schedule)
    # Of a register tile: vectors of the image, each used by several results; operands of taps; and the arithmetic.
    pixels = _seen(problem, 0, rows) * (problem.geometry.kernel[1] if by_columns else _seen(problem, 1, columns))
    loads = pixels * vectors + problem.taps * problem.free * (1 if by_columns else vectors)
    if by_columns and problem.geometry.stride[1] > 1:
        loads = loads * 2.5
    sums = rows * columns * vectors
    arithmetic = sums * (problem.taps * problem.operations + problem.after)
    flops_per_cycle = rates.flop_per_s["fp32"] * rates.cycle_s / (2 * rates.vector_bytes / 4)
    multiplying = arithmetic / flops_per_cycle
    loading = loads * (rates.vector_bytes / 32) / LOADS
    # Sums of a register tile wait for each other, but the next one's have begun by then.
    in_flight = sums * larger(1.0, REORDERED / (arithmetic + loads))
    waiting = multiplying * larger(1.0, rates.fma_latency * flops_per_cycle / in_flight)
    height, width, _ = problem.result
    results = problem.images * height * (1 if by_columns else width)
    across = 1.0 if by_columns else _across(problem, schedule)
    tiles = divided(problem.lanes, vectors * problem.vector) * results / (rows * columns) * across
    edge = _edge(problem, schedule) if by_columns else 1 - inside_share(schedule, problem)
    edge = where(buffered, 0.0, edge) * ((MASKED if by_columns else PIXEL_BY_PIXEL) - 1)
    cycles = larger(waiting, loading) + STEP_CYCLES
    tile_s = share * tiles * rates.cycle_s
    work = Work(tile_s * cycles * (1 + edge) + share * _blocks(problem, schedule) * BLOCK_CYCLES * rates.cycle_s)
    work.parts |= {
        "FMA": tile_s * multiplying,
        "issue": tile_s * loading,
        "wait": where(waiting > multiplying, tile_s * waiting, 0.0),
        "edges": tile_s * (cycles * edge + STEP_CYCLES),
    }
    _traffic(problem, schedule, rates, work, share, tiles * pixels * vectors * rates.vector_bytes)
    return work


def _traffic(
    problem: WindowProblem, schedule: Knobs, rates: Machine, work: Work, share: Number, seen_bytes: Number
) -> None:
    """What comes from memory and goes there, and what is read again by neighbouring windows."""
    home = rates.home((problem.bytes_in + problem.bytes_out) / problem.workers)
    streams = schedule.flag("nontemporal")
    loss = _scattered(problem, schedule, rates) if problem.lanes_axis == "x" and home == DRAM else 1.0
    work.move(home, share * problem.bytes_in * loss)
    written = where(streams, _streamed(problem), 2.0)
    work.move(where(streams, DRAM, home), share * problem.bytes_out * written * loss)
    if problem.lanes_axis == "x":  # rows of the image are read again by the next ones
        work.move(L2, share * problem.image_bytes * (problem.geometry.kernel[0] - 1))
        return
    buffered = schedule.equals("buffering", "rows")
    copied = _copied(problem, schedule) * divided(problem.result[2], problem.vector)
    work.packing_s = where(buffered, share * copied * COPY_CYCLES * rates.cycle_s, 0.0)
    work.move(L2, where(buffered, 0.0, share * seen_bytes))
    if home > L2:
        work.exposed_s = where(buffered, 0.0, share * _runs(problem, schedule) * RUN_CYCLES * rates.cycle_s)


def _blocks(problem: WindowProblem, schedule: Knobs) -> Number:
    """Blocks of columns along lanes; those of channels are entered with their first register tile."""
    if problem.lanes_axis != "x":
        return 0.0
    rows, lanes = schedule.integers("tile")
    return problem.images * divided(problem.result[0], rows) * divided(problem.result[1], lanes)


def _streamed(problem: WindowProblem) -> float:
    """What stores past the caches cost, as bytes: several rows that are written in turn leave their buffers half empty,
    those that end within lines all the more (Zen 4: no gain at 28 x 28, 0.87 of the time at 112 x 112).
    """
    if problem.lanes_axis == "c":
        return 1.0
    return 1.5 if problem.result[1] * problem.sums_bytes % LINE == 0 else 2.0


def _scattered(problem: WindowProblem, schedule: Knobs, rates: Machine) -> Number:
    """How much longer memory takes where several rows of the image and of results are walked at a time, in steps of few
    vectors.
    """
    rows, run = schedule.integer("rows"), schedule.integer("vectorize") * rates.vector_bytes
    walked = _seen(problem, 0, rows) + rows
    return 1 + STREAM_LOSS * larger(walked - STREAMS, 0) + SHORT_RUN / run


def _largest_share(problem: WindowProblem, schedule: Knobs) -> Number:
    """The part of all the work that the worker with the most of it does."""
    by_columns = problem.lanes_axis == "x"
    height = max(problem.result[0], 1)
    strip = schedule.integers("tile")[0] if by_columns else schedule.integer("rows")
    by_rows = schedule.equals("parallel", "rows") | (not by_columns and problem.images <= 1)
    images = largest_share(problem.images, 1, problem.workers) / max(problem.images, 1)
    return where(by_rows, largest_share(height, strip, problem.workers) / height, images)


def _seen(problem: WindowProblem, side: int, results: Number) -> Number:
    """Rows or columns of the image that so many neighbouring results see."""
    geometry = problem.geometry
    apart = results * geometry.kernel[side]
    if geometry.dilation[side] > 1:
        return apart
    return smaller((results - 1) * geometry.stride[side] + geometry.reach(side) + 1, apart)


def _edge(problem: WindowProblem, schedule: Knobs) -> Number:
    """The share of rows that are done one by one where columns go along lanes: those of register tiles that meet the
    edge of the image, and what a block has more than whole tiles.
    """
    rows, height = schedule.integer("rows"), max(problem.result[0], 1)
    block = smaller(schedule.integers("tile")[0], height)
    outside = -(-problem.geometry.padding[0] // problem.geometry.stride[0])
    blocks = divided(height, block)
    lead = divided(outside, rows) * rows
    last = height - (blocks - 1) * block - outside
    whole = larger(block - lead, 0) // rows + (blocks - 2) * (block // rows) + larger(last, 0) // rows
    alone = larger(height - lead - outside, 0) // rows
    return 1 - where(blocks > 1, whole, alone) * rows / height


def _across(problem: WindowProblem, schedule: Knobs) -> Number:
    """How many columns register tiles compute for each that there is, where channels go along lanes: what a block of
    columns has more than whole tiles takes one of its own.
    """
    width, columns = max(problem.result[1], 1), schedule.integer("columns")
    block = smaller(schedule.integers("tile")[0], width)
    return (width // block * divided(block, columns) + divided(width % block, columns)) * columns / width


def _runs(problem: WindowProblem, schedule: Knobs) -> Number:
    """The runs of channels that blocks read of the image's pixels; none where a block has all, one pixel behind the
    other.
    """
    lanes, (height, width, _) = schedule.integers("tile")[1], problem.result
    pixels = float(problem.images) * height * width * problem.geometry.stride[0] * problem.geometry.stride[1]
    return where(lanes < problem.lanes, divided(problem.lanes, lanes) * pixels, 0.0)


def _copied(problem: WindowProblem, schedule: Knobs) -> Number:
    """The pixels that go through the ring of rows: all, and those that neighbouring blocks both see."""
    height, width, _ = problem.result
    _, columns, _ = ring_shape(schedule, problem.geometry)
    blocks = divided(width, schedule.integers("tile")[0])
    rows = height * problem.geometry.stride[0] + problem.geometry.reach(0)
    across = width * problem.geometry.stride[1] + blocks * problem.geometry.reach(1)
    return problem.images * rows * smaller(blocks * columns, across)
