"""Convolutions: `op.conv2d`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.leaves.conversion import as_node
from tessera.ops.convolution import calls
from tessera.runtime.streams.stream import Stream
from tessera.typing import ArrayLike


def conv2d(
    x: ArrayLike,
    weight: ArrayLike,
    bias: ArrayLike | None = None,
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    layout: str = "NCHW",
    stream: Stream | None = None,
) -> Tensor:
    """The convolution (cross-correlation, as in torch) of images with a window of weights.

    `x` is [N, C, H, W] or, with `layout="NHWC"`, [N, H, W, C]; the result has the same layout. What decides speed is
    how memory lies, not the name: a torch tensor in `channels_last` format given as "NCHW" is read as it is. Results
    have their channels together in memory, whatever the layout is called.

    `weight` is [C_out, C / groups, KH, KW] in both layouts, with any strides: weights stored as [KH, KW, C / groups,
    C_out] are passed as the view `w.permute(3, 2, 0, 1)`. Mark weights that stay with `op.constant`: they are packed
    once. `bias` is [C_out]. All have one floating-point dtype; sums are formed in fp32 (fp64 of fp64).

    `stride`, `padding` and `dilation` are a number, or one for rows and one for columns; `padding` may be "valid"
    (none) or "same" (the result has the image's size; stride 1 only), and larger than the window. A weight that is not
    finite may or may not show where it meets padding.

    Raises ShapeMismatchError (E_SHAPE_MISMATCH) where channels, groups or the window do not fit, DTypeError (E_DTYPE)
    and ArgumentError (E_ARGUMENT).

    Shapes: x [N, C, H, W] and weight [C_out, C / groups, KH, KW] give [N, C_out, H_out, W_out]. Dtypes: floats and
    8-bit floats; not integers, bools and complex (E_DTYPE).

    >>> op.conv2d(op.ones((1, 3, 8, 8)), op.ones((4, 3, 3, 3)), stride=2, padding=1).shape
    (1, 4, 4, 4)
    """
    image, weights = cast(Tensor, as_node(x)), cast(Tensor, as_node(weight))
    added = None if bias is None else cast(Tensor, as_node(bias))
    made = calls.conv2d(image, weights, added, stride, padding, dilation, groups, layout)
    return cast(Tensor, issuing.on(made, stream))
