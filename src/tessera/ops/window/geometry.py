"""What the options of windows over images mean as users give them: numbers and pairs, padding, layouts, biases.

The same texts and classes of errors for convolutions, pools and spectral convolutions; `name` is the operator's.
"""

from __future__ import annotations

import operator
from typing import Any, Final, TypeAlias

from tessera.errors import ArgumentError, DTypeError, ShapeMismatchError
from tessera.lazy.node import Node
from tessera.ops.algebra import call
from tessera.ops.layout.views import is_one_of

Pair: TypeAlias = tuple[int, int]

TO_LAST, TO_FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""Permutations of an image's dimensions: channels to the end, and back."""
LAYOUTS: Final = ("NCHW", "NHWC")


def checked_layout(name: str, layout: object) -> str:
    """The layout. Raises ArgumentError (E_ARGUMENT) for what is none."""
    if not is_one_of(layout, LAYOUTS):
        raise ArgumentError(f"{name}: layout={layout!r}", hints=['"NCHW" or "NHWC"'])
    return str(layout)


def single_image(rank: int) -> list[str]:
    """The hint for an operand that is no batch of images: how one image becomes a batch."""
    return ["give a single image a first dimension of 1: x[None]"] if rank == 3 else []


def pair(name: str, what: str, value: object, least: int) -> Pair:
    """Two whole numbers of at least `least`: `value` is both, or has one for rows and one for columns.

    Raises ArgumentError (E_ARGUMENT).
    """
    given = value if isinstance(value, (tuple, list)) else (value, value)
    try:
        numbers = tuple(operator.index(number) for number in given)
    except TypeError:
        numbers = ()
    if len(numbers) != 2 or min(numbers) < least or any(isinstance(number, bool) for number in given):
        raise ArgumentError(
            f"{name}: {what}={value!r}", hints=[f"a whole number of at least {least}, or two: of rows and of columns"]
        )
    return numbers[0], numbers[1]


def paddings(name: str, padding: object, window: Pair, stride: Pair, dilation: Pair) -> tuple[int, int, int, int]:
    """Rows and columns of zeros: top, left, bottom, right. "same" keeps the image's size, with the odd row or column
    at the end, as torch has it. Raises ArgumentError (E_ARGUMENT) for what means nothing, and "same" with a stride.
    """
    if not isinstance(padding, str):
        rows, columns = pair(name, "padding", padding, 0)
        return rows, columns, rows, columns
    if padding == "valid":
        return 0, 0, 0, 0
    if padding != "same":
        raise ArgumentError(f"{name}: padding={padding!r}", hints=['a number, a pair, "same" or "valid"'])
    if stride != (1, 1):
        raise ArgumentError(f'{name}: padding="same" with a stride', hints=["give the padding in pixels"])
    rows, columns = (d * (size - 1) for size, d in zip(window, dilation, strict=True))
    return rows // 2, columns // 2, rows - rows // 2, columns - columns // 2


def with_bias(name: str, result: Any, bias: Node, channels_first: bool) -> Any:
    """The result with a number added to each channel. Raises ShapeMismatchError (E_SHAPE_MISMATCH) for anything but
    one for each, and DTypeError (E_DTYPE) for another dtype than the result's.
    """
    channels = result.shape[1 if channels_first else -1]
    if bias.shape != (channels,):
        raise ShapeMismatchError(
            f"{name}: a bias of shape {bias.shape} for {channels} output channels", hints=["one number a channel"]
        )
    if bias.dtype is not result.dtype:
        raise DTypeError(
            f"{name}: a bias of {bias.dtype} for results of {result.dtype}", hints=[f"cast it to {result.dtype}"]
        )
    return call("add", result, call("reshape", bias, shape=(1, channels, 1, 1)) if channels_first else bias)
