"""Rules of complex numbers and of Fourier transforms."""

from __future__ import annotations

import random

from tessera.dtypes import complex64, complex128, fp32, fp64
from tessera.ops.applications.rule import AbstractValue, Application, Rule, WantedOperand

_PRECISIONS = ((fp32, complex64), (fp64, complex128))


def _precision(value: AbstractValue) -> int:
    """The place in `_PRECISIONS` of what is as exact as a value."""
    return int(value.dtype in (fp64, complex128))


def of_complex_maps(count: int) -> Rule:
    """The rule of a map of so many complex operands of one shape."""

    def rule(chance: random.Random, x: AbstractValue) -> Application:
        return Application((WantedOperand(x.shape, _PRECISIONS[_precision(x)][1]),) * count)

    return rule


def of_parts(chance: random.Random, x: AbstractValue) -> Application:
    """Of `view_as_complex`: pairs of real numbers along the last dimension."""
    return Application((WantedOperand((*x.shape, 2), _PRECISIONS[_precision(x)][0]),))


def of_complex_products(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `complex_matmul`: matrices, maybe in batches."""
    if len(x.shape) < 2:
        return None
    dtype, columns = _PRECISIONS[_precision(x)][1], chance.choice((1, 3, 8))
    return Application((WantedOperand(x.shape, dtype), WantedOperand((*x.shape[:-2], x.shape[-1], columns), dtype)))


def of_widening(chance: random.Random, x: AbstractValue) -> Application:
    """Of `to_complex`: real numbers of two precisions."""
    real, wide = _PRECISIONS[_precision(x)]
    return Application((WantedOperand(x.shape, real),), {"dtype": wide})


def _of_transforms(real: bool) -> Rule:
    """The rule of a Fourier transform of real or of complex numbers, along one axis or two, cut and filled up."""

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        if not x.shape or 0 in x.shape:
            return None
        axes = tuple(sorted(chance.sample(range(len(x.shape)), min(len(x.shape), chance.choice((1, 1, 2))))))
        sizes = tuple(chance.choice((None, None, x.shape[axis] + 1, max(2, x.shape[axis] - 1))) for axis in axes)
        norm = chance.choice(("backward", "ortho", "forward"))
        operand = WantedOperand(x.shape, _PRECISIONS[_precision(x)][0 if real else 1])
        return Application((operand,), {"axes": axes, "sizes": sizes, "norm": norm})

    return rule


of_signals = _of_transforms(real=True)
"""Of `rfft`."""

of_spectra = _of_transforms(real=False)
"""Of `fft` and `ifft`."""


def of_halves(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `irfft`: half a spectrum, of at least two points."""
    drawn = of_spectra(chance, x)
    if drawn is None or x.shape[drawn.attributes["axes"][-1]] < 2:
        return None
    return drawn


def of_adjoints(real: bool) -> Rule:
    """The rule of a transform's adjoint, whose result has the real or complex operand of the transform as its shape."""

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        if not x.shape or 0 in x.shape:
            return None
        axis, dtypes = chance.randrange(len(x.shape)), _PRECISIONS[_precision(x)]
        points = chance.choice((2, 5, 8))
        half = tuple(points // 2 + 1 if d == axis else extent for d, extent in enumerate(x.shape))
        full = tuple(points if d == axis else extent for d, extent in enumerate(x.shape))
        attributes = {"axes": (axis,), "sizes": (points,), "norm": "backward"}
        if real:
            return Application((WantedOperand(half, dtypes[1]),), {**attributes, "shape": full})
        return Application((WantedOperand(full, dtypes[0]),), {**attributes, "shape": half})

    return rule


# -- spectral convolution ---------------------------------------------------------------------------------------------


def of_kernel_spectra(chance: random.Random, x: AbstractValue) -> Application:
    """Of `kernel_spectrum`: small windows, transformed at more points than they have."""
    channels, window = (chance.randint(1, 4), chance.randint(1, 3)), (chance.randint(1, 3), chance.randint(1, 3))
    places = {"sizes": (chance.randint(5, 8), chance.randint(5, 8)), "offset": (0, chance.randint(0, 1))}
    return Application((WantedOperand((*channels, *window), _PRECISIONS[_precision(x)][0]),), places)


def of_spectrum_adjoints(chance: random.Random, x: AbstractValue) -> Application:
    """Of `spectrum_adjoint`."""
    rows, columns = chance.randint(5, 8), chance.randint(5, 8)
    shape = (chance.randint(1, 4), chance.randint(1, 3), rows, columns // 2 + 1)
    spectrum = WantedOperand(shape, _PRECISIONS[_precision(x)][1])
    return Application((spectrum,), {"sizes": (rows, columns), "kernel": (chance.randint(1, 3), chance.randint(1, 3))})


def of_spectral_products(chance: random.Random, x: AbstractValue) -> Application:
    """Of `pointwise_mul`: spectra of images by spectra of kernels, in groups."""
    groups, depth, outputs = chance.choice((1, 2)), chance.randint(1, 3), chance.randint(1, 3)
    dtype, plane, images = _PRECISIONS[_precision(x)][1], (chance.randint(1, 5), chance.randint(1, 5)), 2
    image = WantedOperand((images, groups * depth, *plane), dtype)
    result = WantedOperand((images, groups * outputs, *plane), dtype)
    kernel = WantedOperand((groups * outputs, depth, *plane), dtype)
    by = chance.choice(("result", "image", "kernel"))
    operands = {"result": (image, kernel), "image": (result, kernel), "kernel": (image, result)}[by]
    return Application(operands, {"groups": groups, "by": by})


def of_spectral_convolutions(chance: random.Random, x: AbstractValue) -> Application:
    """Of `spectral_conv`: images, and the spectrum of a kernel at as many points or more."""
    groups, depth, outputs = chance.choice((1, 2)), chance.randint(1, 3), chance.randint(1, 3)
    real, wide = _PRECISIONS[_precision(x)]
    extents = chance.randint(1, 6), chance.randint(1, 6)
    points = extents[0] + chance.randint(0, 3), max(2, extents[1] + chance.randint(0, 3))
    stride = chance.choice(((1, 1), (2, 1)))
    results = tuple(chance.randint(1, -(-count // step)) for count, step in zip(points, stride, strict=True))
    image = WantedOperand((chance.randint(1, 2), groups * depth, *extents), real)
    spectrum = WantedOperand((groups * outputs, depth, points[0], points[1] // 2 + 1), wide)
    return Application((image, spectrum), {"points": points, "results": results, "stride": stride, "groups": groups})
