"""The loop along the summed axis around a micro-kernel."""

from __future__ import annotations

from functools import partial

from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.microkernel.protocol import Step, Sums, all_added
from tessera.scheduling.lowering.ranges import Range, summed_in_parts, whole_steps


def summed(
    builder: TileBuilder,
    span: Range,
    depth: int,
    initial: Sums,
    step: Step,
    unroll: int = 1,
    part: int | None = None,
    has_rest: bool = False,
) -> Sums:
    """The sums after all steps of `depth` over a range, each by `step`. With `part` they are formed in parts of so many
    indices, of which `initial` are the zeros. Without `has_rest` the range is known to be whole steps.
    """
    lower, upper = span
    whole = whole_steps(builder, span, depth) if has_rest else upper
    if part is None:
        with builder.loop(lower, whole, depth, initial, unroll) as loop:
            loop.yielded = tuple(step(loop.index, loop.carried, True))
    else:
        join = partial(all_added, builder)
        with summed_in_parts(builder, (lower, whole), depth, (part,), initial, join, unroll) as loop:
            loop.yielded = tuple(step(loop.index, loop.carried, True))
    if not has_rest:
        return loop.results
    rest = builder.compare(whole, upper, "slt")
    return builder.branch(rest, lambda: step(whole, loop.results, False), lambda: loop.results)
