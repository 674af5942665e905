"""Index arithmetic of loops: ranges, whole steps of them, and the parts in which long sums are formed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from xdsl.ir import SSAValue

from tessera.scheduling.lowering.builder import Loop, TileBuilder

Range: TypeAlias = tuple[SSAValue, SSAValue]
"""The first index, and the one after the last."""


def ceil_div(builder: TileBuilder, a: SSAValue, b: SSAValue) -> SSAValue:
    """`a / b`, rounded up; neither is negative."""
    return builder.floor_div(builder.add(a, builder.sub(b, builder.index(1))), b)


def rounded_down(builder: TileBuilder, extent: SSAValue, step: int) -> SSAValue:
    """An extent, rounded down to whole steps."""
    return builder.mul(builder.floor_div(extent, builder.index(step)), builder.index(step))


def rounded_up(builder: TileBuilder, extent: SSAValue, step: int) -> SSAValue:
    """An extent, rounded up to whole steps."""
    return extent if step == 1 else rounded_down(builder, builder.add(extent, builder.index(step - 1)), step)


def whole_steps(builder: TileBuilder, span: Range, step: int) -> SSAValue:
    """Where the last whole step of a range ends."""
    lower, upper = span
    return builder.add(lower, rounded_down(builder, builder.sub(upper, lower), step))


@contextmanager
def summed_in_parts(
    builder: TileBuilder,
    span: Range,
    step: int,
    parts: Sequence[int],
    neutral: Sequence[SSAValue],
    join: Callable[[Sequence[SSAValue], Sequence[SSAValue]], Sequence[SSAValue]],
    unroll: int = 1,
) -> Iterator[Loop]:
    """A loop that carries sums, which begin anew after as many indices as each of `parts` has, the longest first, and
    are added, by `join`, to those of the parts before. Such a sum has smaller rounding errors than one long one, whose
    errors grow with its length where they all go one way, as those of equal numbers do.
    """
    if not parts:
        with builder.loop(*span, step, neutral, unroll) as loop:
            yield loop
        return
    with builder.loop(*span, parts[0], neutral) as longest:
        end = builder.minimum(builder.add(longest.index, builder.index(parts[0])), span[1])
        with summed_in_parts(builder, (longest.index, end), step, parts[1:], neutral, join, unroll) as loop:
            yield loop
        longest.yielded = tuple(join(longest.carried, loop.results))
    loop.results = longest.results
