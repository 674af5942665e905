"""Convolutions as users call them: what a number, a pair, "same" and "valid" mean, and images in either layout."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tessera.errors import ArgumentError
from tessera.lazy.node import Node
from tessera.lazy.structures.building import binary, unary
from tessera.lazy.structures.structure import Attributes
from tessera.ops.layout.views import integer
from tessera.ops.record import OPERATORS
from tessera.ops.window.calls import depthwise_conv2d
from tessera.ops.window.geometry import TO_FIRST, TO_LAST, Pair, checked_layout, paddings, pair, with_bias

MOST_COPIES = 4
"""Output channels for each channel up to which a convolution with as many groups as channels is depthwise."""


def conv2d(
    image: Node,
    weights: Node,
    bias: Node | None,
    stride: object,
    padding: object,
    dilation: object,
    groups: object,
    layout: object,
) -> Any:
    """The convolution; see `op.conv2d`. An image with channels first is seen through a view, and so is its result.

    Raises ArgumentError (E_ARGUMENT), ShapeMismatchError and DTypeError.
    """
    window = weights.shape[2:4] if len(weights.shape) == 4 else (1, 1)
    stride, padding, dilation, groups, layout = (
        value if isinstance(value, int | str) else _hashable(value)
        for value in (stride, padding, dilation, groups, layout)
    )
    attributes, channels_first = _settings(stride, padding, dilation, groups, layout, window)
    if _is_depthwise(image, weights, attributes, channels_first):
        steps, (top, left, *_), apart, _ = attributes
        result = depthwise_conv2d(image, weights, steps, (top, left), apart, layout)
        return result if bias is None else with_bias("conv2d", result, bias, channels_first)
    turned = channels_first and len(image.shape) == 4
    # Operators, not views of what exists: gradients follow these.
    pixels = unary(OPERATORS["transpose"], (TO_LAST,), image) if turned else image
    result = binary(OPERATORS["conv2d"], attributes, pixels, weights)
    result = unary(OPERATORS["transpose"], (TO_FIRST,), result) if turned else result
    return result if bias is None else with_bias("conv2d", result, bias, turned)


def _is_depthwise(image: Node, weights: Node, attributes: Attributes, channels_first: bool) -> bool:
    """Whether each channel is convolved on its own, to one or few channels: a reduction over a window, no product."""
    (_, (top, left, bottom, right), _, groups), shape = attributes, weights.shape
    if groups == 1 or len(shape) != 4 or len(image.shape) != 4 or 0 in shape:
        return False
    alone = shape[1] == 1 and image.shape[1 if channels_first else 3] == groups and shape[0] % groups == 0
    return alone and shape[0] <= MOST_COPIES * groups and (top, left) == (bottom, right)


def _hashable(value: object) -> object:
    value = tuple(value) if isinstance(value, list) else value
    try:
        hash(value)
    except TypeError as error:
        raise ArgumentError(f"conv2d: {value!r} is no stride, padding, dilation, groups or layout") from error
    return value


@lru_cache(maxsize=1 << 10, typed=True)
def _settings(
    stride: object, padding: object, dilation: object, groups: object, layout: object, window: Pair
) -> tuple[Attributes, bool]:
    """The record's attributes, and whether images have their channels first. On the path of every call."""
    arranged = checked_layout("conv2d", layout)
    steps, apart = pair("conv2d", "stride", stride, 1), pair("conv2d", "dilation", dilation, 1)
    count = integer(groups, "groups")
    if count < 1:
        raise ArgumentError(f"conv2d: groups={count}", hints=["1, or a divisor of the channels"])
    around = paddings("conv2d", padding, window, steps, apart)
    values = OPERATORS["conv2d"].attribute_values(stride=steps, padding=around, dilation=apart, groups=count)
    return values, arranged == "NCHW"
