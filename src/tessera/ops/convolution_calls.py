"""Convolutions as users call them: what a number, a pair, "same" and "valid" mean, and images in either layout."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, TypeAlias

from tessera.errors import ArgumentError
from tessera.lazy.building import binary, unary
from tessera.lazy.node import Node
from tessera.lazy.structure import Attributes
from tessera.ops.algebra import call
from tessera.ops.record import OPERATORS
from tessera.ops.views import integer
from tessera.ops.window_calls import TO_FIRST, TO_LAST, checked_layout, depthwise_conv2d

Pair: TypeAlias = tuple[int, int]

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
        return result if bias is None else with_bias(result, bias, channels_first)
    turned = channels_first and len(image.shape) == 4
    # Operators, not views of what exists: gradients follow these.
    pixels = unary(OPERATORS["transpose"], (TO_LAST,), image) if turned else image
    result = binary(OPERATORS["conv2d"], attributes, pixels, weights)
    result = unary(OPERATORS["transpose"], (TO_FIRST,), result) if turned else result
    return result if bias is None else with_bias(result, bias, turned)


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
    steps, apart = pair(stride, "stride", least=1), pair(dilation, "dilation", least=1)
    count = integer(groups, "groups")
    if count < 1:
        raise ArgumentError(f"conv2d: groups={count}", hints=["1, or a divisor of the channels"])
    around = paddings(padding, window, steps, apart)
    values = OPERATORS["conv2d"].attribute_values(stride=steps, padding=around, dilation=apart, groups=count)
    return values, arranged == "NCHW"


def with_bias(result: Any, bias: Node, channels_first: bool) -> Any:
    """The result with a number added to each channel. Raises ArgumentError for anything but one for each."""
    channels = result.shape[1 if channels_first else -1]
    if bias.shape != (channels,):
        raise ArgumentError(
            f"conv2d: a bias of shape {bias.shape} for {channels} output channels", hints=["one number a channel"]
        )
    if bias.dtype is not result.dtype:
        raise ArgumentError(
            f"conv2d: a bias of {bias.dtype} for results of {result.dtype}", hints=[f"cast it to {result.dtype}"]
        )
    return result + (call("reshape", bias, shape=(1, channels, 1, 1)) if channels_first else bias)


def pair(value: object, name: str, least: int) -> Pair:
    """A number for both sides, or one for rows and one for columns. Raises ArgumentError below `least`."""
    given = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(given) != 2:
        raise ArgumentError(f"conv2d: {name}={value!r}", hints=["a whole number, or one for rows and one for columns"])
    rows, columns = (integer(entry, f"the {name} of a convolution") for entry in given)
    if min(rows, columns) < least:
        raise ArgumentError(f"conv2d: {name}={value!r}", hints=[f"at least {least}"])
    return rows, columns


def paddings(padding: object, window: Pair, stride: Pair, dilation: Pair) -> tuple[int, int, int, int]:
    """Rows and columns of zeros: top, left, bottom, right. "same" keeps the image's size, with the odd row or column
    at the end, as torch has it. Raises ArgumentError for what means nothing, and "same" with a stride.
    """
    if padding == "valid":
        return 0, 0, 0, 0
    if padding == "same":
        if stride != (1, 1):
            raise ArgumentError('conv2d: padding="same" with a stride', hints=["give the padding in pixels"])
        rows, columns = (d * (size - 1) for size, d in zip(window, dilation, strict=True))
        return rows // 2, columns // 2, rows - rows // 2, columns - columns // 2
    if isinstance(padding, str):
        raise ArgumentError(f"conv2d: padding={padding!r}", hints=['a number, a pair, "same" or "valid"'])
    rows, columns = pair(padding, "padding", least=0)
    return rows, columns, rows, columns
