"""Convolution through Fourier transforms: what `spectral_conv` and the rewrite of `conv2d` are made of.

    conv2d(x, w)   =   irfft2(rfft2(x) . kernel_spectrum(w))        a product for each frequency

A transform of S points convolves circularly. With S >= extent + padding, whichever side has more of it, no result that
is wanted is one into which the other end has been wrapped: result y = sum_a x[y + d a - p] w[a] is the circular
convolution with a kernel whose element a stands at (p - d a) mod S. So images are filled up to S at their end alone, by
the transform itself, and padding costs nothing (Mathieu, Henaff, LeCun, "Fast training of convolutional networks
through FFTs", 2014).

The error is that of the transforms: eps log2(S) times the root mean square of the whole image's results, which is more
than a direct sum's where results differ much in size; one NaN or infinity of an image spoils all results that share its
channel. Policies other than "fast" therefore never rewrite a convolution so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, complex_of, fp32, fp64, real_of
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications import places, transforms
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, elements, shape_error

N: TypeAlias = Any
Pair: TypeAlias = tuple[int, int]

ADDED_ONE_BY_ONE = 8
"""Channels up to which products are added up channel by channel over all frequencies; more of them are a product of
matrices for each frequency.
"""


@dataclass(frozen=True)
class ConvolutionGeometry:
    """How a window moves over images; `padding` is top, left, bottom, right."""

    stride: Pair = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: Pair = (1, 1)
    groups: int = 1

    def reach(self, kernel: Pair) -> Pair:
        """The rows and columns that a kernel spans."""
        return (self.dilation[0] * (kernel[0] - 1) + 1, self.dilation[1] * (kernel[1] - 1) + 1)

    def results(self, image: Pair, kernel: Pair) -> Pair:
        """Rows and columns of the result; not positive where the window does not fit."""
        top, left, bottom, right = self.padding
        padded, reach = (image[0] + top + bottom, image[1] + left + right), self.reach(kernel)
        rows, columns = ((padded[side] - reach[side]) // self.stride[side] + 1 for side in (0, 1))
        return rows, columns

    def least_points(self, image: Pair, kernel: Pair) -> Pair:
        """The points that transforms need along rows and columns, so that nothing wraps into a result."""
        reach = self.reach(kernel)
        rows, columns = (
            max(
                image[side] + max(self.padding[side], self.padding[side + 2]),
                reach[side],
                image[side] + self.padding[side] + self.padding[side + 2] - reach[side] + 1,
            )
            for side in (0, 1)
        )
        return rows, columns


# -- the kernel's spectrum --------------------------------------------------------------------------------------------


def _wide(dtype: DType) -> DType:
    """What is transformed: narrower floats are widened."""
    return dtype if dtype in (fp32, fp64) else fp32


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operand.dtype for operand in operands]


def _spectrum_shape(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    rows, columns = attributes["sizes"]
    return (*operands[0].shape[:2], rows, columns // 2 + 1), complex_of(_wide(cast[0]))


def _places(extent: int, points: int, offset: int, dilation: int) -> torch.Tensor:
    return (offset - dilation * torch.arange(extent)) % points


def _spectrum_reference(w: torch.Tensor, *, sizes: Pair, offset: Pair, dilation: Pair) -> torch.Tensor:
    rows, columns = (_places(w.shape[2 + side], sizes[side], offset[side], dilation[side]) for side in (0, 1))
    placed = w.new_zeros((*w.shape[:2], *sizes))
    placed[:, :, rows[:, None], columns] = w
    result: torch.Tensor = torch.fft.rfft2(placed)
    return result


def _spectrum(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    # Widened here and not by a cast before it, so that a narrow constant has its spectrum kept like any other.
    wide = inputs[0] if inputs[0].dtype in (torch.float32, torch.float64) else inputs[0].float()
    outputs[0].copy_(_spectrum_reference(wide, **attributes))


def _spectrum_gradient(g: N, operands: tuple[N], out: N, *, sizes: Pair, offset: Pair, dilation: Pair) -> tuple[N]:
    kernel, dtype = operands[0].shape[2:], operands[0].dtype
    back = call("spectrum_adjoint", g, sizes=sizes, offset=offset, dilation=dilation, kernel=tuple(kernel))
    return (back if back.dtype is dtype else call("cast", back, dtype=dtype),)


def _adjoint_shape(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    return (*operands[0].shape[:2], *attributes["kernel"]), real_of(cast[0])


def _adjoint_reference(g: torch.Tensor, *, sizes: Pair, offset: Pair, dilation: Pair, kernel: Pair) -> torch.Tensor:
    full = g.new_zeros((*g.shape[:2], *sizes))
    full[..., : g.shape[-1]] = g
    back: torch.Tensor = torch.fft.ifft2(full, norm="forward").real
    rows, columns = (_places(kernel[side], sizes[side], offset[side], dilation[side]) for side in (0, 1))
    return back[:, :, rows[:, None], columns]


def _adjoint(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(_adjoint_reference(inputs[0], **attributes))


def _transform_flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    rows, columns = attributes["sizes"]
    images = elements(operands[0].shape[:2])
    points = int(rows) * int(columns)
    return round(2.5 * images * points * max((points - 1).bit_length(), 1))


def _adjoint_gradient(
    g: N, operands: tuple[N], out: N, *, sizes: Pair, offset: Pair, dilation: Pair, kernel: Pair
) -> tuple[N]:
    return (call("kernel_spectrum", g, sizes=sizes, offset=offset, dilation=dilation),)


def _without_extents(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {name: None if name in ("sizes", "offset", "kernel") else value for name, value in attributes.items()}


_PLACES: Named = {"sizes": (1, 1), "offset": (0, 0), "dilation": (1, 1)}
define(
    "kernel_spectrum",
    _spectrum,
    _PLACES,
    operand_dtypes=_as_given,
    result=_spectrum_shape,
    flops=_transform_flops,
    reference=_spectrum_reference,
    gradient=_spectrum_gradient,
    application=transforms.of_kernel_spectra,
    symbolic=_without_extents,
    kept=True,
)
define(
    "spectrum_adjoint",
    _adjoint,
    {**_PLACES, "kernel": (1, 1)},
    operand_dtypes=_as_given,
    result=_adjoint_shape,
    flops=_transform_flops,
    reference=_adjoint_reference,
    application=transforms.of_spectrum_adjoints,
    gradient=_adjoint_gradient,
    symbolic=_without_extents,
)

# -- products over channels, for each frequency -----------------------------------------------------------------------


def _mul_shape(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    first, second = (operand.shape for operand in operands)
    groups = attributes["groups"]
    if attributes["by"] == "kernel":  # x, g -> the kernel's: [outputs, channels of a group]
        return (second[1], first[1] // groups, *first[2:]), cast[0]
    channels = second[0] if attributes["by"] == "result" else second[1] * groups
    return (first[0], channels, *first[2:]), cast[0]


def _mul_flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    terms = operands[0].shape[0] if attributes["by"] == "kernel" else operands[1].shape[1]
    return 8 * elements(result.shape) * terms


def _apart(x: torch.Tensor, groups: int, dimension: int) -> torch.Tensor:
    shape = (*x.shape[:dimension], groups, x.shape[dimension] // groups, *x.shape[dimension + 1 :])
    return x.view(shape) if x.is_contiguous() else x.reshape(shape)


def _mul_reference(a: torch.Tensor, b: torch.Tensor, *, groups: int, by: str) -> torch.Tensor:
    if by == "kernel":
        product = torch.einsum("ngchw,ngohw->gochw", _apart(a, groups, 1).conj(), _apart(b, groups, 1))
        return product.flatten(0, 1)
    kernel = _apart(b, groups, 0)
    if by == "image":
        product = torch.einsum("ngohw,gochw->ngchw", _apart(a, groups, 1), kernel.conj())
    else:
        product = torch.einsum("ngchw,gochw->ngohw", _apart(a, groups, 1), kernel)
    return product.flatten(1, 2)


def _mul(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, kernel), (result,), groups = inputs, outputs, attributes["groups"]
    terms = kernel.shape[1]
    if attributes["by"] != "result" or not 0 < terms <= ADDED_ONE_BY_ONE:
        result.copy_(_mul_reference(x, kernel, **attributes))
        return
    images, kernels, sums = _apart(x, groups, 1), _apart(kernel, groups, 0), _apart(result, groups, 1)
    torch.mul(images[:, :, :1], kernels[:, :, 0], out=sums)
    for term in range(1, terms):
        torch.addcmul(sums, images[:, :, term : term + 1], kernels[:, :, term], out=sums)


def _mul_gradient(g: N, operands: tuple[N, N], out: N, *, groups: int, by: str) -> tuple[N, N]:
    """All three products are of one form, Re <result, image kernel>: the cotangent is what is not an operand."""
    first, second = operands
    if by == "image":
        pairs = {"result": (g, second), "kernel": (g, first)}
    elif by == "kernel":
        pairs = {"image": (second, g), "result": (first, g)}
    else:
        pairs = {"image": (g, second), "kernel": (first, g)}
    by_first, by_second = [call("pointwise_mul", a, b, groups=groups, by=kind) for kind, (a, b) in pairs.items()]
    return by_first, by_second


define(
    "pointwise_mul",
    _mul,
    {"groups": 1, "by": "result"},
    arity=(2, 2),
    operand_dtypes=_as_given,
    result=_mul_shape,
    flops=_mul_flops,
    reference=_mul_reference,
    gradient=_mul_gradient,
    application=transforms.of_spectral_products,
)

# -- the convolution --------------------------------------------------------------------------------------------------


def check_shapes(name: str, image: N, kernel: N, window: ConvolutionGeometry) -> None:
    """Raises ShapeMismatchError for images [N, C, H, W] and kernels [C_out, C / groups, KH, KW] that do not fit."""
    shown = [image, kernel]
    if len(image.shape) != 4 or len(kernel.shape) != 4:
        raise shape_error(name, shown, "images are [N, C, H, W], weights [C_out, C / groups, KH, KW]")
    channels, groups = image.shape[1], window.groups
    if channels != kernel.shape[1] * groups:
        reason = f"the image has {channels} channels, the weights take {kernel.shape[1]} in each of {groups} groups"
        raise shape_error(name, shown, reason)
    if kernel.shape[0] % groups:
        raise shape_error(name, shown, f"{groups} groups do not divide {kernel.shape[0]} output channels")
    if 0 in kernel.shape[2:] or 0 in image.shape[2:]:
        raise shape_error(name, shown, "images and windows have elements")
    if min(window.results(image.shape[2:], kernel.shape[2:])) < 1:
        reason = f"the window reaches over {window.reach(kernel.shape[2:])} pixels, more than the padded image has"
        raise shape_error(name, shown, reason, ["a smaller window or dilation", "or more padding"])


def _conv_dtypes(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [real_of(operands[1].dtype), operands[1].dtype]


def _conv_shape(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return (operands[0].shape[0], operands[1].shape[0], *attributes["results"]), cast[0]


def _conv_flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """Of transforms of whole planes, 2.5 n log2 n each, and of the products."""
    (images, channels), (outputs, depth) = operands[0].shape[:2], operands[1].shape[:2]
    rows, columns = attributes["points"]
    points = int(rows) * int(columns)
    transforms = 2.5 * images * (channels + outputs) * points * max((points - 1).bit_length(), 1)
    return round(transforms) + 8 * images * outputs * depth * int(rows) * (int(columns) // 2 + 1)


def _conv_reference(
    x: torch.Tensor, spectrum: torch.Tensor, *, points: Pair, results: Pair, stride: Pair, groups: int
) -> torch.Tensor:
    y = _mul_reference(torch.fft.rfft2(x, s=points), spectrum, groups=groups, by="result")
    back: torch.Tensor = torch.fft.irfft2(y, s=points)
    return back[..., :: stride[0], :: stride[1]][..., : results[0], : results[1]]


def _conv(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    (x, spectrum), (result,) = inputs, outputs
    (rows, columns), stride = attributes["points"], attributes["stride"]
    # Rows first, and back last: rows of zeros are not transformed, nor rows that are not wanted.
    spectra = torch.fft.fft(torch.fft.rfft(x, columns, -1), rows, -2)
    products = spectra.new_empty((*result.shape[:2], *spectra.shape[2:]))
    _mul([spectra, spectrum], [products], {"groups": attributes["groups"], "by": "result"})
    back = torch.fft.ifft(products, None, -2)[..., :: stride[0], :][..., : result.shape[2], :]
    result.copy_(torch.fft.irfft(back, columns, -1)[..., :: stride[1]][..., : result.shape[3]])


def _conv_gradient(
    g: N, operands: tuple[N, N], out: N, *, points: Pair, results: Pair, stride: Pair, groups: int
) -> tuple[N, N]:
    x, spectrum = operands
    shape = (*out.shape[:2], *points)
    spread = call("spread", g, shape=shape, steps=(1, 1, *stride))
    half: dict[str, Any] = {"axes": (2, 3), "sizes": points, "norm": "backward"}
    down = call("irfft_adjoint", spread, shape=(*shape[:3], points[1] // 2 + 1), **half)
    to_image = call("pointwise_mul", down, spectrum, groups=groups, by="image")
    return (
        call("rfft_adjoint", to_image, shape=x.shape, **half),
        call("pointwise_mul", call("rfft", x, **half), down, groups=groups, by="kernel"),
    )


def _without_geometry(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {**attributes, "points": None, "results": None}


define(
    "spectral_conv",
    _conv,
    {"points": (1, 1), "results": (1, 1), "stride": (1, 1), "groups": 1},
    arity=(2, 2),
    operand_dtypes=_conv_dtypes,
    result=_conv_shape,
    flops=_conv_flops,
    reference=_conv_reference,
    gradient=_conv_gradient,
    application=transforms.of_spectral_convolutions,
    symbolic=_without_geometry,
    by_planes=True,
)


def convolve(image: N, kernel: N, window: ConvolutionGeometry, points: Pair) -> N:
    """The convolution of images [N, C, H, W] by transforms of `points` rows and columns; both of one dtype."""
    dtype = image.dtype
    x = image if dtype in (fp32, fp64) else call("cast", image, dtype=fp32)
    spectrum = call("kernel_spectrum", kernel, sizes=points, offset=window.padding[:2], dilation=window.dilation)
    results = window.results(image.shape[2:], kernel.shape[2:])
    y = call("spectral_conv", x, spectrum, points=points, results=results, stride=window.stride, groups=window.groups)
    return y if y.dtype is dtype else call("cast", y, dtype=dtype)


# -- spread: what a gradient needs ------------------------------------------------------------------------------------


def _spread_reference(x: torch.Tensor, *, shape: Shape, steps: Shape) -> torch.Tensor:
    result = x.new_zeros(shape)
    place = tuple(slice(0, (extent - 1) * step + 1, step) for extent, step in zip(x.shape, steps, strict=True))
    if x.numel():
        result[place] = x
    return result


def _spread(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(_spread_reference(inputs[0], **attributes))


def _spread_gradient(g: N, operands: tuple[N], out: N, *, shape: Shape, steps: Shape) -> tuple[N]:
    sizes = operands[0].shape
    return (call("slice", g, starts=(0,) * len(sizes), sizes=sizes, steps=steps),)


define(
    "spread",
    _spread,
    {"shape": (), "steps": ()},
    operand_dtypes=_as_given,
    result=lambda name, operands, cast, attributes: (attributes["shape"], cast[0]),
    reference=_spread_reference,
    gradient=_spread_gradient,
    application=places.of_spreading,
    symbolic=lambda attributes, operands, shape: {**attributes, "shape": None},
)
