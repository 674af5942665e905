"""Complex numbers, Fourier transforms with the parameters of `torch.fft`, and convolution through them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast as typed

from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.leaves.conversion import as_node, as_pair
from tessera.ops import complexes
from tessera.ops.algebra import call
from tessera.ops.layout.views import integer, is_one_of, normalized_axis, several
from tessera.ops.spectral import calls
from tessera.ops.spectral.transforms import NORMS
from tessera.runtime.streams.stream import Stream
from tessera.scheduling.families.convolution.spectral_cost import fast_points
from tessera.typing import ArrayLike

_LAST_TWO = (-2, -1)


def fft(
    x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The discrete Fourier transform along an axis; x, real or complex, is cut or filled up with zeros to `n` points.

    `norm` is "backward" (no factor; the default), "ortho" or "forward" (a factor of 1/n). fp32 gives complex64, fp64
    complex128; integers count as fp32. Computed by torch's library. Raises ArgumentError (E_ARGUMENT) for no points, an
    axis out of range or an unknown norm, DTypeError (E_DTYPE) for floats of 16 and 8 bits: cast them first.

    Shapes: x's, with n points along the axis. Dtypes: complex; fp32, integers and bools give complex64; fp64 gives
    complex128; not bf16, fp16 and 8-bit floats (E_DTYPE).

    >>> op.fft(op.tensor([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _transform("fft", x, (n,), (axis,), norm, stream)


def ifft(
    x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The inverse of `fft`, with a factor of 1/n under "backward", none under "forward".

    Shapes: x's, with n points along the axis. Dtypes: complex; fp32, integers and bools give complex64; fp64 gives
    complex128; not bf16, fp16 and 8-bit floats (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError (E_DTYPE).

    >>> op.real(op.ifft(op.ones(4))).tolist()
    [1.0, 0.0, 0.0, 0.0]
    """
    return _transform("ifft", x, (n,), (axis,), norm, stream)


def rfft(
    x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The first `n // 2 + 1` points of `fft` of real numbers, which say it all; else as `fft`.

    Shapes: x's, with n // 2 + 1 points along the axis. Dtypes: fp32, integers and bools give complex64; fp64 gives
    complex128; not bf16, fp16, 8-bit floats and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError
    (E_DTYPE).

    >>> op.rfft(op.ones(4)).shape
    (3,)
    """
    return _transform("rfft", x, (n,), (axis,), norm, stream)


def irfft(
    x: ArrayLike, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The inverse of `rfft`: `n` real numbers, `2 * (extent - 1)` by default. Imaginary parts that such a transform
    has not (of the first point and, for even n, the last) are not looked at.

    Shapes: x's, with n points along the axis. Dtypes: fp32, integers, bools and complex64 give fp32; fp64 and
    complex128 give fp64; not bf16, fp16 and 8-bit floats (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError
    (E_DTYPE).

    >>> op.irfft(op.rfft(op.tensor([1.0, 2.0]))).tolist()
    [1.0, 2.0]
    """
    return _transform("irfft", x, (n,), (axis,), norm, stream)


def fft2(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """`fft` along two axes, of `s` points each; else as `fft`.

    Shapes: x's, with `s` points along the axes. Dtypes: complex; fp32, integers and bools give complex64; fp64 gives
    complex128; not bf16, fp16 and 8-bit floats (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError (E_DTYPE).

    >>> op.fft2(op.ones((4, 4))).shape
    (4, 4)
    """
    return _transform("fft", x, _two(s), axes, norm, stream)


def ifft2(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The inverse of `fft2`.

    Shapes: x's, with `s` points along the axes. Dtypes: complex; fp32, integers and bools give complex64; fp64 gives
    complex128; not bf16, fp16 and 8-bit floats (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError (E_DTYPE).

    >>> op.ifft2(op.ones((4, 4))).shape
    (4, 4)
    """
    return _transform("ifft", x, _two(s), axes, norm, stream)


def rfft2(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """`fft2` of real numbers, of which the last axis holds the first half, `s[-1] // 2 + 1` points.

    Shapes: x's, with `s` points along the axes, or their half. Dtypes: fp32, integers and bools give complex64; fp64
    gives complex128; not bf16, fp16, 8-bit floats and complex (E_DTYPE). Raises ArgumentError (E_ARGUMENT), DTypeError
    (E_DTYPE).

    >>> op.rfft2(op.ones((4, 4))).shape
    (4, 3)
    """
    return _transform("rfft", x, _two(s), axes, norm, stream)


def irfft2(
    x: ArrayLike,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The inverse of `rfft2`: real numbers, `2 * (extent - 1)` along the last axis where `s` does not say.

    Shapes: x's, with `s` points along the axes, or their half. Dtypes: fp32, integers, bools and complex64 give fp32;
    fp64 and complex128 give fp64; not bf16, fp16 and 8-bit floats (E_DTYPE). Raises ArgumentError (E_ARGUMENT),
    DTypeError (E_DTYPE).

    >>> op.irfft2(op.rfft2(op.ones((4, 4)))).shape
    (4, 4)
    """
    return _transform("irfft", x, _two(s), axes, norm, stream)


def _two(s: Sequence[int] | None) -> tuple[int | None, ...]:
    sizes = (None, None) if s is None else several(s, "sizes")
    if len(sizes) != len(_LAST_TWO):
        raise ArgumentError(f"s={tuple(sizes)}: a transform of two axes has two sizes")
    return sizes


def _transform(
    name: str,
    x: object,
    sizes: Sequence[int | None],
    axes: Sequence[int],
    norm: str | None,
    stream: Stream | None,
) -> Tensor:
    node = typed(Tensor, as_node(x))
    if not node.structure.shape:
        raise ArgumentError(f"{name} of a tensor without dimensions", hints=["reshape it to one of one element"])
    places = tuple(normalized_axis(axis, len(node.structure.shape)) for axis in several(axes, "axes"))
    if len(places) != len(sizes) or len(set(places)) != len(places):
        raise ArgumentError(f"{name} over the axes {tuple(axes)}", hints=["name each axis once"])
    extents = tuple(None if size is None else integer(size, "a number of points") for size in sizes)
    if not is_one_of(norm, (None, *NORMS)):
        raise ArgumentError(f"{name}: norm={norm!r}", hints=[f"one of {', '.join(map(repr, NORMS))}"])
    result = call(name, node, axes=places, sizes=extents, norm=norm or NORMS[0])
    return typed(Tensor, issuing.on(result, stream))


def complex(real: ArrayLike, imag: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """Complex numbers of real and imaginary parts, which broadcast and meet in fp32 or fp64.

    Raises ShapeMismatchError (E_SHAPE_MISMATCH) for shapes that do not broadcast, DTypeError (E_DTYPE) for complex
    parts.

    Shapes: a and b broadcast. Dtypes: bf16, fp16, fp32, 8-bit floats, integers and bools give complex64; fp64 gives
    complex128; not complex (E_DTYPE).

    >>> op.complex(1.0, op.tensor([0.0, 2.0])).tolist()
    [(1+0j), (1+2j)]
    """
    return typed(Tensor, issuing.on(complexes.joined(*as_pair(real, imag)), stream))


def real(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The real parts, a view where x exists; of real numbers, x itself.

    Shapes: x of any shape; the result has it. Dtypes: floats, 8-bit floats, integers and bools; complex64 gives fp32;
    complex128 gives fp64.

    >>> op.real(op.complex(1.0, 2.0)).tolist()
    1.0
    """
    return typed(Tensor, issuing.on(complexes.part(typed(Tensor, as_node(x)), 0), stream))


def imag(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The imaginary parts, a view where x exists. Raises DTypeError (E_DTYPE) for real numbers.

    Shapes: x of any shape; the result has it. Dtypes: complex64 gives fp32; complex128 gives fp64; not floats, 8-bit
    floats, integers and bools (E_DTYPE).

    >>> op.imag(op.complex(1.0, 2.0)).tolist()
    2.0
    """
    return typed(Tensor, issuing.on(complexes.part(typed(Tensor, as_node(x)), 1), stream))


def conj(x: ArrayLike, *, stream: Stream | None = None) -> Tensor:
    """The complex conjugate; of real numbers, x itself.

    Shapes: x of any shape; the result has it. Dtypes: all.

    >>> op.conj(op.complex(1.0, 2.0)).tolist()
    (1-2j)
    """
    node = typed(Tensor, as_node(x))
    return typed(Tensor, issuing.on(complexes.conjugate(node) if node.dtype.kind == "complex" else node, stream))


def spectral_conv(
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
    """The convolution of images with a window of weights, as `torch.nn.functional.conv2d`, computed through Fourier
    transforms: the way for large windows, whose size costs nothing here (docs/convolution.md).

    `x` is [N, C, H, W] or, with `layout="NHWC"`, [N, H, W, C]; `weight` is [C_out, C / groups, KH, KW] in both layouts,
    and its spectrum is computed once where `op.constant` marks it. `padding` may be "valid" or "same" (stride 1 only).
    Floats of 16 bits are transformed in fp32. The error is that of the transforms, about eps log2 of their size times
    the root mean square of the results; a NaN or infinity of an image spoils all results that share its channel.

    Raises ShapeMismatchError (E_SHAPE_MISMATCH), DTypeError (E_DTYPE) and ArgumentError (E_ARGUMENT).

    Shapes: x [N, C, H, W] and weight [C_out, C / groups, KH, KW] give [N, C_out, H_out, W_out]. Dtypes: floats and
    8-bit floats; not integers, bools and complex (E_DTYPE).

    >>> op.spectral_conv(op.ones((1, 3, 32, 32)), op.ones((4, 3, 15, 15)), padding="same").shape
    (1, 4, 32, 32)
    """
    image, kernel = typed(Tensor, as_node(x)), typed(Tensor, as_node(weight))
    added = None if bias is None else typed(Tensor, as_node(bias))
    options: dict[str, object] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    made = calls.spectral_conv(image, kernel, added, options, layout, fast_points)
    return typed(Tensor, issuing.on(made, stream))
