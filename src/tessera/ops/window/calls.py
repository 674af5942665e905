"""Windows over images as users call them: geometry checked, padding of either side sorted out, divisors of means."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

from tessera.dtypes import accumulator
from tessera.errors import ArgumentError, DeviceError, DTypeError, ShapeMismatchError
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.node import Node
from tessera.lazy.structures.structure import Structure
from tessera.ops.algebra import call
from tessera.ops.layout import views
from tessera.ops.layout.views import flag, normalized_axis, number
from tessera.ops.record import family_of, shape_error
from tessera.ops.window.geometry import TO_FIRST, TO_LAST, checked_layout, pair, single_image
from tessera.ops.window.gradients import max_pool_gradient
from tessera.ops.window.records import image_dimensions

LOOKED_AT = 16
"""Operators above an image among which one that puts channels last is looked for."""


def _require_cpu(name: str, *operands: Node) -> None:
    """Raises DeviceError (E_DEVICE) for operands on a GPU."""
    for operand in operands:
        device = operand.structure.device
        if device is not None and device != CPU:
            raise DeviceError(
                f"{name} on {device}: reductions over windows have no kernels for GPUs yet",
                hints=["compute it on the CPU: x.to('cpu')", "or by torch on the GPU"],
            )


def _arranged(name: str, image: Node, layout: str, *taps: Node, **attributes: Any) -> Any:
    """The operator on an image as it lies: one whose channels lie side by side is seen with its channels last."""
    if layout == "NHWC" or not _channels_lie_together(image.structure):
        return call(name, image, *taps, layout=layout, **attributes)
    result = call(name, call("transpose", image, permutation=TO_LAST), *taps, layout="NHWC", **attributes)
    return call("transpose", result, permutation=TO_FIRST)


def _channels_lie_together(structure: Structure) -> bool:
    """Whether an image [N, C, H, W] lies in memory, or will, as [N, H, W, C]: a torch tensor in `channels_last`
    format, what a convolution gives, and maps of these.
    """
    waiting, seen = [structure], 0
    while waiting and seen < LOOKED_AT:
        each, seen = waiting.pop(), seen + 1
        if len(each.shape) != 4:
            continue
        if each.kind == "buffer" and each.strides[1] == 1 != each.strides[3] and each.shape[1] > 1:
            return True
        if each.operator is None:
            continue
        if each.operator.name == "transpose" and each.named_attributes["permutation"] == TO_FIRST:
            return True
        if family_of(each.operator.name).is_map:
            waiting += each.operands
    return False


def depthwise_conv2d(
    image: Node, weight: Node, stride: object, padding: object, dilation: object, layout: object
) -> Any:
    """A depthwise convolution of an image with [channels, 1, rows, columns] or [channels, rows, columns]."""
    name = "depthwise_conv2d"
    _require_cpu(name, image, weight)
    arranged = checked_layout(name, layout)
    steps, gaps = pair(name, "stride", stride, 1), pair(name, "dilation", dilation, 1)
    rows, columns = pair(name, "padding", padding, 0)
    shape = weight.shape
    both = (image.structure, weight.structure)
    if len(image.shape) != 4:
        wanted = "[N, C, H, W]" if arranged == "NCHW" else "[N, H, W, C]"
        raise shape_error(name, both, f"images are {wanted}", single_image(len(image.shape)))
    if len(shape) not in (3, 4) or (len(shape) == 4 and shape[1] != 1) or 0 in shape[-2:]:
        raise shape_error(name, both, "the weight is [C * m, 1, KH, KW], or [C * m, KH, KW]")
    channels = image.shape[image_dimensions(arranged)[0]]
    if channels == 0 or shape[0] % channels or shape[0] == 0:
        raise shape_error(
            name,
            both,
            f"a weight for {shape[0]} channels does not fit {channels} channels of the image",
            ["each channel of the image has the same number of kernels", "NHWC images need layout='NHWC'"],
        )
    return _arranged(
        name,
        image,
        arranged,
        # An operator, not a view of what exists: gradients follow it.
        weight if len(shape) == 3 else call("reshape", weight, shape=(shape[0], *shape[2:])),
        kernel=shape[-2:],
        stride=steps,
        padding=(rows, rows, columns, columns),
        dilation=gaps,
        multiplier=shape[0] // channels,
    )


# -- pools ------------------------------------------------------------------------------------------------------------


class _Pool:
    """The checked geometry of a pool over one image. Raises ArgumentError."""

    def __init__(
        self, name: str, image: Node, kernel: object, stride: object, padding: object, dilation: object, layout: object
    ) -> None:
        _require_cpu(name, image)
        self.layout = checked_layout(name, layout)
        self.kernel = pair(name, "kernel_size", kernel, 1)
        self.stride = self.kernel if stride is None else pair(name, "stride", stride, 1)
        self.padding, self.dilation = pair(name, "padding", padding, 0), pair(name, "dilation", dilation, 1)
        if any(2 * pad > size for pad, size in zip(self.padding, self.kernel, strict=True)):
            raise ArgumentError(
                f"{name}: padding={padding!r} is more than half of kernel_size={kernel!r}",
                hints=["windows would lie in the padding alone"],
            )
        self.sides = (
            [image.shape[dimension] for dimension in image_dimensions(self.layout)[1:]]
            if (len(image.shape) == 4)
            else [0, 0]
        )

    def ends(self, ceil_mode: bool) -> tuple[int, int]:
        """The padding below and to the right; with `ceil_mode` as much more as a last window needs that begins in the
        image or in the padding before it.
        """
        found = []
        for side in (0, 1):
            extent, before, stride = self.sides[side], self.padding[side], self.stride[side]
            span = extent + 2 * before - (self.kernel[side] - 1) * self.dilation[side] - 1
            more = -span % stride if flag(ceil_mode, "ceil_mode") and span >= 0 else 0
            if more and (span + more) // stride * stride >= extent + before:
                more = 0
            found.append(before + more)
        return found[0], found[1]

    def windows(self, ceil_mode: bool) -> dict[str, Any]:
        """The attributes of a record, but for the layout."""
        below, right = self.ends(ceil_mode)
        return {
            "kernel": self.kernel,
            "stride": self.stride,
            "padding": (self.padding[0], below, self.padding[1], right),
            "dilation": self.dilation,
        }

    def call(self, operator: str, image: Node, ceil_mode: bool) -> Any:
        """The node."""
        return _arranged(operator, image, self.layout, **self.windows(ceil_mode))


def max_pool2d(
    image: Node, kernel: object, stride: object, padding: object, dilation: object, ceil_mode: bool, layout: object
) -> Any:
    """The largest element of each window."""
    return _Pool("max_pool2d", image, kernel, stride, padding, dilation, layout).call("max_pool2d", image, ceil_mode)


def max_pool_cotangent(
    g: Node, image: Node, kernel: object, stride: object, padding: object, dilation: object, ceil_mode: bool
) -> Any:
    """The cotangent of images [N, C, H, W] whose maxima, which are looked for again, have the cotangent g."""
    windows = _Pool("max_pool2d", image, kernel, stride, padding, dilation, "NCHW").windows(ceil_mode)
    largest = call("max_pool2d", image, layout="NCHW", **windows)
    return max_pool_gradient(g, (image,), largest, layout="NCHW", **windows)[0]


def avg_pool2d(
    image: Node,
    kernel: object,
    stride: object,
    padding: object,
    ceil_mode: bool,
    layout: object,
    count_include_pad: bool,
    divisor_override: int | None,
) -> Any:
    """The sum of each window over its number of elements: one number where it is the same for all, else a matrix."""
    pool = _Pool("avg_pool2d", image, kernel, stride, padding, 1, layout)
    if divisor_override is not None and (
        isinstance(divisor_override, bool) or not number(divisor_override, "divisor_override")
    ):
        raise ArgumentError(f"avg_pool2d: divisor_override={divisor_override!r}", hints=["a number other than 0"])
    total = pool.call("sum_pool2d", image, ceil_mode)
    ends = pool.ends(ceil_mode)
    count_include_pad = flag(count_include_pad, "count_include_pad")
    padded = pool.padding != (0, 0) and not count_include_pad
    if divisor_override is not None or (not padded and ends == pool.padding):
        divisor = divisor_override or pool.kernel[0] * pool.kernel[1]
        return call("div", total, float(divisor))
    wide = accumulator(image.dtype)
    counts = [
        _counts(extent, kernel_size, stride_, before, end, count_include_pad)
        for extent, kernel_size, stride_, before, end in zip(
            pool.sides, pool.kernel, pool.stride, pool.padding, ends, strict=True
        )
    ]
    rows, columns = (as_node(torch.tensor(count, dtype=wide.torch, device="cpu")) for count in counts)
    inner = (1,) if pool.layout == "NHWC" else ()
    down = views.reshape(rows, (len(counts[0]), 1, *inner))
    matrix = call("mul", down, views.reshape(columns, (1, len(counts[1]), *inner)))
    result = call("div", total, matrix)
    return result if result.dtype is image.dtype else call("cast", result, dtype=image.dtype)


@lru_cache(maxsize=256)
def _counts(extent: int, kernel: int, stride: int, before: int, after: int, include_pad: bool) -> tuple[int, ...]:
    """How many elements each window along one dimension counts: those of the image, or of it and its padding, which is
    `before` wide on both sides, but not what `ceil_mode` put after it.
    """
    found = []
    for place in range((extent + before + after - kernel) // stride + 1):
        start = place * stride - before
        end = min(start + kernel, extent + before)
        found.append(end - start if include_pad else min(end, extent) - max(start, 0))
    return tuple(found)


# -- batch norm -------------------------------------------------------------------------------------------------------


def batch_norm(x: Node, mean: Node, var: Node, weight: Node | None, bias: Node | None, eps: float, axis: int) -> Any:
    """x * scale + shift, with scale = weight / sqrt(var + eps), shift = bias - mean * scale for each channel."""
    given = [operand for operand in (mean, var, weight, bias) if operand is not None]
    place = normalized_axis(axis, len(x.shape))
    shape = x.shape[place : place + 1]
    if any(operand.shape != shape for operand in given):
        shapes = ", ".join(str(operand.shape) for operand in given)
        raise ShapeMismatchError(
            f"batch_norm of {x.shape}: statistics of shapes {shapes}", hints=[f"axis {axis} has shape {shape}"]
        )
    if any(operand.dtype.kind != "float" for operand in (x, *given)):
        raise DTypeError("batch_norm is defined on floating-point elements only", hints=["cast to fp32"])
    wide = accumulator(x.dtype)
    mean, var, *rest = (each if each.dtype is wide else call("cast", each, dtype=wide) for each in given)
    scale = call("rsqrt", call("add", var, number(eps, "eps")))
    if weight is not None:
        scale = call("mul", scale, rest.pop(0))
    shift = call("neg", call("mul", mean, scale))
    if bias is not None:
        shift = call("add", rest.pop(0), shift)
    trailing = (*shape, *(1,) * (len(x.shape) - 1 - place))
    factor, offset = (views.reshape(each, trailing) for each in (scale, shift))
    result = call("add", call("mul", x, factor), offset)
    return result if result.dtype is x.dtype else call("cast", result, dtype=x.dtype)
