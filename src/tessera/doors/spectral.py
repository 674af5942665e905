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

_LAST_TWO = (-2, -1)


def fft(
    x: object, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The discrete Fourier transform along an axis; x, real or complex, is cut or filled up with zeros to `n` points.

    `norm` is "backward" (no factor; the default), "ortho" or "forward" (a factor of 1/n). fp32 gives complex64, fp64
    complex128; integers count as fp32. Computed by torch's library. Raises ArgumentError (E_ARGUMENT) for no points, an
    axis out of range or an unknown norm, DTypeError (E_DTYPE) for floats of 16 and 8 bits: cast them first.
    """
    return _transform("fft", x, (n,), (axis,), norm, stream)


def ifft(
    x: object, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The inverse of `fft`, with a factor of 1/n under "backward", none under "forward"."""
    return _transform("ifft", x, (n,), (axis,), norm, stream)


def rfft(
    x: object, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The first `n // 2 + 1` points of `fft` of real numbers, which say it all; else as `fft`."""
    return _transform("rfft", x, (n,), (axis,), norm, stream)


def irfft(
    x: object, n: int | None = None, axis: int = -1, norm: str | None = None, *, stream: Stream | None = None
) -> Tensor:
    """The inverse of `rfft`: `n` real numbers, `2 * (extent - 1)` by default. Imaginary parts that such a transform
    has not (of the first point and, for even n, the last) are not looked at.
    """
    return _transform("irfft", x, (n,), (axis,), norm, stream)


def fft2(
    x: object,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """`fft` along two axes, of `s` points each; else as `fft`."""
    return _transform("fft", x, _two(s), axes, norm, stream)


def ifft2(
    x: object,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The inverse of `fft2`."""
    return _transform("ifft", x, _two(s), axes, norm, stream)


def rfft2(
    x: object,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """`fft2` of real numbers, of which the last axis holds the first half, `s[-1] // 2 + 1` points."""
    return _transform("rfft", x, _two(s), axes, norm, stream)


def irfft2(
    x: object,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = _LAST_TWO,
    norm: str | None = None,
    *,
    stream: Stream | None = None,
) -> Tensor:
    """The inverse of `rfft2`: real numbers, `2 * (extent - 1)` along the last axis where `s` does not say."""
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


def complex(real: object, imag: object, *, stream: Stream | None = None) -> Tensor:
    """Complex numbers of real and imaginary parts, which broadcast and meet in fp32 or fp64.

    Raises ShapeMismatchError (E_SHAPE_MISMATCH) for shapes that do not broadcast, DTypeError (E_DTYPE) for complex
    parts.
    """
    return typed(Tensor, issuing.on(complexes.joined(*as_pair(real, imag)), stream))


def real(x: object, *, stream: Stream | None = None) -> Tensor:
    """The real parts, a view where x exists; of real numbers, x itself."""
    return typed(Tensor, issuing.on(complexes.part(typed(Tensor, as_node(x)), 0), stream))


def imag(x: object, *, stream: Stream | None = None) -> Tensor:
    """The imaginary parts, a view where x exists. Raises DTypeError (E_DTYPE) for real numbers."""
    return typed(Tensor, issuing.on(complexes.part(typed(Tensor, as_node(x)), 1), stream))


def conj(x: object, *, stream: Stream | None = None) -> Tensor:
    """The complex conjugate; of real numbers, x itself."""
    node = typed(Tensor, as_node(x))
    return typed(Tensor, issuing.on(complexes.conjugate(node) if node.dtype.kind == "complex" else node, stream))


def spectral_conv(
    x: object,
    weight: object,
    bias: object = None,
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
    """
    image, kernel = typed(Tensor, as_node(x)), typed(Tensor, as_node(weight))
    added = None if bias is None else typed(Tensor, as_node(bias))
    options: dict[str, object] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    made = calls.spectral_conv(image, kernel, added, options, layout, fast_points)
    return typed(Tensor, issuing.on(made, stream))
