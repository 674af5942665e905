"""Gradients of reductions over windows, out of other operators.

Each element of an image goes into the windows that see it: its cotangent is a reduction over windows of the result's
cotangent, spread out by the stride, with the taps in reverse order. The cotangent of a tap is the sum of what
the image has at that place of each window, times the window's cotangent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

from tessera.errors import ArgumentError
from tessera.lazy.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.layout import dilated, padded

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
    starts, steps = [0] * 4, [1] * 4
    for side, axis in enumerate(sides):
        starts[axis] = tap[side] * attributes["dilation"][side]
        steps[axis] = attributes["stride"][side]
    seen = call("slice", x, starts=tuple(starts), sizes=g.shape, steps=tuple(steps))
    channel = 1 if attributes["layout"] == "NCHW" else 3
    total = call("sum", g * seen, axes=tuple(axis for axis in range(4) if axis != channel), keepdims=False)
    return call("reshape", total, shape=(g.shape[channel], 1, 1))


def sum_pool_gradient(g: N, operands: tuple[N], out: N, **attributes: Any) -> tuple[N]:
    """The sum of the cotangents of the windows that see an element."""
    spread = _spread(g, operands[0].shape, attributes)
    return (call("sum_pool2d", spread, **{**attributes, "stride": (1, 1), "padding": (0, 0, 0, 0)}),)


def no_gradient_of_extrema(g: N, operands: tuple[N], out: N, **attributes: Any) -> NoReturn:
    """The place of the extremum is not kept. Raises ArgumentError (E_ARGUMENT)."""
    raise ArgumentError(
        "max_pool2d has no gradient: its kernel does not keep where a window's maximum was",
        hints=["differentiate torch.nn.functional.max_pool2d, or pool by avg_pool2d"],
    )
