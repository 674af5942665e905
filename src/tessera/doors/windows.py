"""Depthwise convolution and pooling: reductions over windows that slide over images.

Images are [N, C, H, W], or with `layout="NHWC"` [N, H, W, C]. Their strides decide how they are read: a torch tensor in
`torch.channels_last` memory is read in place, and gives such a result.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from tessera.doors.calls.nodes import node, on
from tessera.handle import Tensor
from tessera.ops.window import calls
from tessera.ops.window.geometry import with_bias
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike

Pair: TypeAlias = int | tuple[int, int]
Layout: TypeAlias = Literal["NCHW", "NHWC"]


def depthwise_conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: Pair = 1,
    padding: Pair = 0,
    dilation: Pair = 1,
    layout: Layout = "NCHW",
    stream: Stream | None = None,
) -> Tensor:
    """Each channel convolved with kernels of its own: `torch.nn.functional.conv2d` with as many groups as channels.

    `weight` is [C * m, 1, KH, KW] or [C * m, KH, KW], in either layout; channel c becomes the channels c * m ... of the
    result. `bias` is [C * m]. Sums are formed in fp32 (fp64 of fp64). Raises ShapeMismatchError where channels or sizes
    do not fit, and ArgumentError for geometry that is none.

    Shapes: x [N, C, H, W] and weight [C * m, 1, KH, KW] give [N, C * m, H_out, W_out]. Dtypes: floats and 8-bit floats;
    not integers, bools and complex (E_DTYPE).

    >>> op.depthwise_conv2d(op.ones((1, 3, 8, 8)), op.ones((6, 1, 3, 3))).shape
    (1, 6, 6, 6)
    """
    image, taps = node(x), node(weight)
    made: Tensor = calls.depthwise_conv2d(image, taps, stride, padding, dilation, layout)
    if bias is not None:
        made = with_bias("depthwise_conv2d", made, node(bias), layout == "NCHW")
    return on(made, stream)


def max_pool2d(
    x: ArrayLike,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    dilation: Pair = 1,
    ceil_mode: bool = False,
    *,
    layout: Layout = "NCHW",
    stream: Stream | None = None,
) -> Tensor:
    """The largest element of each window; NaN where it has one. The window moves by its own size unless `stride` says
    otherwise. As `torch.nn.functional.max_pool2d`: what lies outside is smaller than anything.

    Shapes: x [N, C, H, W] gives [N, C, H_out, W_out]. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH) for a window larger than the image, ArgumentError
    (E_ARGUMENT).

    >>> op.max_pool2d(op.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[4.0]]]]
    """
    made: Tensor = calls.max_pool2d(node(x), kernel_size, stride, padding, dilation, ceil_mode, layout)
    return on(made, stream)


def avg_pool2d(
    x: ArrayLike,
    kernel_size: Pair,
    stride: Pair | None = None,
    padding: Pair = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    *,
    layout: Layout = "NCHW",
    stream: Stream | None = None,
) -> Tensor:
    """The mean of each window, as `torch.nn.functional.avg_pool2d`: of the elements of the image and of its padding, of
    the image alone without `count_include_pad`, or the sum over `divisor_override`.

    Shapes: x [N, C, H, W] gives [N, C, H_out, W_out]. Dtypes: floats and 8-bit floats; not integers, bools and complex
    (E_DTYPE). Raises ShapeMismatchError (E_SHAPE_MISMATCH) for a window larger than the image, ArgumentError
    (E_ARGUMENT).

    >>> op.avg_pool2d(op.tensor([[[[1.0, 2.0], [3.0, 4.0]]]]), 2).tolist()
    [[[[2.5]]]]
    """
    options: dict[str, Any] = {"count_include_pad": count_include_pad, "divisor_override": divisor_override}
    made: Tensor = calls.avg_pool2d(node(x), kernel_size, stride, padding, ceil_mode, layout, **options)
    return on(made, stream)


def batch_norm(
    x: ArrayLike,
    mean: ArrayLike,
    var: ArrayLike,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    eps: float = 1e-5,
    *,
    axis: int = 1,
    stream: Stream | None = None,
) -> Tensor:
    """Normalization by known statistics, as in inference: (x - mean) / sqrt(var + eps) * weight + bias along `axis`.

    It is a scale and a shift for each channel, formed in fp32 (fp64 of fp64) of as many elements as there are channels,
    and becomes part of the kernel that computes `x` or of the one that reads the result. Raises ShapeMismatchError for
    statistics that do not have one element for each channel.

    Shapes: x [N, C, ...]; mean, var, weight and bias [C]; the result has x's. Dtypes: floats; not 8-bit floats,
    integers, bools and complex (E_DTYPE).

    >>> op.batch_norm(op.ones((1, 2, 1, 1)), mean=op.zeros(2), var=op.ones(2), eps=0.0).flatten().tolist()
    [1.0, 1.0]
    """
    gain, offset = (None if each is None else node(each) for each in (weight, bias))
    made: Tensor = calls.batch_norm(node(x), node(mean), node(var), gain, offset, eps, axis)
    return on(made, stream)
