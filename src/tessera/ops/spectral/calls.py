"""`spectral_conv` as users call it: what a number, a pair, "same" and "valid" mean, in either layout."""

from __future__ import annotations

from typing import Any

from tessera.errors import ArgumentError, DTypeError
from tessera.lazy.node import Node
from tessera.ops.algebra import call
from tessera.ops.layout.views import integer
from tessera.ops.spectral.records import ConvolutionGeometry, check_shapes, convolve
from tessera.ops.window.geometry import TO_FIRST, TO_LAST, checked_layout, paddings, pair, with_bias

_NAME = "spectral_conv"


def spectral_conv(
    image: Node, kernel: Node, bias: Node | None, options: dict[str, object], layout: object, points: Any
) -> Any:
    """The convolution; `options` are stride, padding, dilation and groups as users give them, `points` gives the size
    of a transform for the least one. Raises ArgumentError, ShapeMismatchError and DTypeError.
    """
    checked_layout(_NAME, layout)
    if image.dtype.kind != "float" or image.dtype is not kernel.dtype:
        raise DTypeError(
            f"spectral_conv of {image.shape} {image.dtype} and {kernel.shape} {kernel.dtype}: image and weights have "
            "one floating-point dtype",
            hints=["cast them to one dtype"],
        )
    turned = layout == "NHWC" and len(image.shape) == 4
    planes: Any = call("transpose", image, permutation=TO_FIRST) if turned else image
    window = window_of(options, kernel)
    check_shapes("spectral_conv", planes, kernel, window)
    _, _, *sides = planes.shape
    _, _, *size = kernel.shape
    least = window.least_points((sides[0], sides[1]), (size[0], size[1]))
    result = convolve(planes, kernel, window, (points(least[0]), points(least[1])))
    if bias is not None:
        result = with_bias(_NAME, result, bias, channels_first=True)
    return call("transpose", result, permutation=TO_LAST) if turned else result


def window_of(options: dict[str, object], kernel: Node) -> ConvolutionGeometry:
    """The window of options as users give them. Raises ArgumentError."""
    stride, dilation = (pair(_NAME, what, options[what], 1) for what in ("stride", "dilation"))
    groups = integer(options["groups"], "groups")
    if groups < 1:
        raise ArgumentError(f"spectral_conv: groups={groups}", hints=["1, or a divisor of the channels"])
    size = kernel.shape[2:4] if len(kernel.shape) == 4 else (1, 1)
    around = paddings(_NAME, options["padding"], (size[0], size[1]), stride, dilation)
    return ConvolutionGeometry(stride, around, dilation, groups)
