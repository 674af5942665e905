"""Gradients of reductions over windows, out of other operators.

Each element of an image goes into the windows that see it: its cotangent is a reduction over windows of the result's
cotangent, spread out by the stride, with the taps in reverse order. The cotangent of a tap is the sum of what
the image has at that place of each window, times the window's cotangent. A maximum's cotangent goes to one element.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any, TypeAlias

from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call, literal
from tessera.ops.layout.records import dilated, padded
from tessera.ops.record import OPERATORS

N: TypeAlias = Any


def _sides(layout: str) -> tuple[int, int]:
    return (2, 3) if layout == "NCHW" else (1, 2)


def _cut(x: N, axis: int, before: int, after: int) -> N:
    """Without so many elements at either end of an axis."""
    starts = tuple(before if axis == dim else 0 for dim in range(len(x.shape)))
    sizes = tuple(extent - before - after if axis == dim else extent for dim, extent in enumerate(x.shape))
    return call("slice", x, starts=starts, sizes=sizes, steps=(1,) * len(x.shape))


def _fitted(x: N, axis: int, before: int, after: int) -> N:
    """Zeros at either end of an axis; where their number is negative, so many elements less."""
    if before < 0 or after < 0:
        x = _cut(x, axis, max(-before, 0), max(-after, 0))
    return padded(x, axis, max(before, 0), max(after, 0))


def _spread(g: N, image: Shape, attributes: dict[str, Any]) -> N:
    """The cotangent with the stride's gaps, and zeros around it: windows of stride 1 give the image's extents."""
    for side, axis in enumerate(_sides(attributes["layout"])):
        step, before = attributes["stride"][side], attributes["padding"][2 * side]
        reach = (attributes["kernel"][side] - 1) * attributes["dilation"][side]
        g = dilated(g, axis, step) if step > 1 else g
        g = _fitted(g, axis, reach - before, image[axis] - g.shape[axis] + before)
    return g


def _flipped(weight: N) -> N:
    """The taps in reverse order, along rows and columns."""
    for axis in (1, 2):
        last = weight.shape[axis] - 1
        taps = [_cut(weight, axis, last - tap, tap) for tap in range(last + 1)]
        weight = call("concat", *taps, axis=axis)
    return weight


def _every(x: N, axis: int, first: int, step: int) -> N:
    """Every `step`-th element along an axis."""
    starts = tuple(first if axis == dim else 0 for dim in range(len(x.shape)))
    sizes = tuple(len(range(first, extent, step)) if axis == dim else extent for dim, extent in enumerate(x.shape))
    return call(
        "slice", x, starts=starts, sizes=sizes, steps=tuple(step if axis == dim else 1 for dim in range(len(x.shape)))
    )


def depthwise_gradient(g: N, operands: tuple[N, N], out: N, **attributes: Any) -> tuple[N, N]:
    """Of the image and of the taps."""
    x, weight = operands
    channel, multiplier = (1 if attributes["layout"] == "NCHW" else 3), attributes["multiplier"]
    flipped, spread = _flipped(weight), _spread(g, x.shape, attributes)
    plain = {**attributes, "stride": (1, 1), "padding": (0, 0, 0, 0), "multiplier": 1}
    parts = [
        call(
            "depthwise_conv2d", _every(spread, channel, each, multiplier), _every(flipped, 0, each, multiplier), **plain
        )
        for each in range(multiplier)
    ]
    dx = parts[0]
    for part in parts[1:]:
        dx = dx + part
    repeated = _repeated(x, channel, multiplier)
    return dx, _tap_cotangents(g, repeated, attributes)


def _repeated(x: N, channel: int, times: int) -> N:
    """Each channel so many times, one after the other."""
    if times == 1:
        return x
    before, after = x.shape[: channel + 1], x.shape[channel + 1 :]
    column = call("reshape", x, shape=(*before, 1, *after))
    wide = call("broadcast_to", column, shape=(*before, times, *after))
    return call("reshape", wide, shape=(*x.shape[:channel], x.shape[channel] * times, *after))


def _tap_cotangents(g: N, x: N, attributes: dict[str, Any]) -> N:
    sides = _sides(attributes["layout"])
    for side, axis in enumerate(sides):
        before, after = attributes["padding"][2 * side : 2 * side + 2]
        x = padded(x, axis, before, after)
    rows = []
    for row in range(attributes["kernel"][0]):
        taps = [_at_tap(g, x, (row, column), sides, attributes) for column in range(attributes["kernel"][1])]
        rows.append(call("concat", *taps, axis=2))
    return call("concat", *rows, axis=1)


def _at_tap(g: N, x: N, tap: Sequence[int], sides: Sequence[int], attributes: dict[str, Any]) -> N:
    """The cotangent of one place of the window, [channels, 1, 1]."""
    starts, steps = _places(tap, sides, attributes)
    seen = call("slice", x, starts=starts, sizes=g.shape, steps=steps)
    channel = 1 if attributes["layout"] == "NCHW" else 3
    total = call("sum", g * seen, axes=tuple(axis for axis in range(4) if axis != channel), keepdims=False)
    return call("reshape", total, shape=(g.shape[channel], 1, 1))


def _places(tap: Sequence[int], sides: Sequence[int], attributes: dict[str, Any]) -> tuple[Shape, Shape]:
    """The first element of a padded image that a place of the window sees, and the steps to the next ones."""
    starts, steps = [0] * 4, [1] * 4
    for side, axis in enumerate(sides):
        starts[axis] = tap[side] * attributes["dilation"][side]
        steps[axis] = attributes["stride"][side]
    return tuple(starts), tuple(steps)


def sum_pool_gradient(g: N, operands: tuple[N], out: N, **attributes: Any) -> tuple[N]:
    """The sum of the cotangents of the windows that see an element."""
    spread = _spread(g, operands[0].shape, attributes)
    return (call("sum_pool2d", spread, **{**attributes, "stride": (1, 1), "padding": (0, 0, 0, 0)}),)


def max_pool_gradient(g: N, operands: tuple[N], out: N, **attributes: Any) -> tuple[N]:
    """Of each window's cotangent to its largest element, the first one in the order of rows; NaN is larger than any."""
    image, sides = operands[0], _sides(attributes["layout"])
    before, after = [0] * 4, [0] * 4
    for side, axis in enumerate(sides):
        before[axis], after[axis] = attributes["padding"][2 * side : 2 * side + 2]
    # NaN equals nothing, so that no window finds its largest element in the padding.
    outside = literal(math.nan, image.dtype)
    x = call("pad", _ordered(image), outside, before=tuple(before), after=tuple(after), mode="constant")
    largest, nothing = _ordered(out), literal(0, g.dtype)
    free: N = None
    total: N = None
    for tap in product(*map(range, attributes["kernel"])):
        starts, steps = _places(tap, sides, attributes)
        place = {"starts": starts, "sizes": g.shape, "steps": steps}
        seen = call("slice", x, **place)
        found = call("eq", seen, largest)
        own = found if free is None else found & free
        free = ~found if free is None else free & ~found
        (part,) = OPERATORS["slice"].gradient(call("where", own, g, nothing), (x,), seen, **place)
        total = part if total is None else total + part
    return (call("slice", total, starts=tuple(before), sizes=image.shape, steps=(1,) * 4),)


def _ordered(x: N) -> N:
    """The elements with infinity in the place of NaN."""
    return call("where", call("ne", x, x), literal(math.inf, x.dtype), x)
