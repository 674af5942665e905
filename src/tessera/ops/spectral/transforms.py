"""Discrete Fourier transforms over one or several axes, by torch's library: `fft ifft rfft irfft`.

    fft(x)[k] = sum_j x[j] exp(-2 pi i j k / n)        ifft(x)[j] = 1/n sum_k x[k] exp(2 pi i j k / n)

`rfft` is the first half, n // 2 + 1 elements, of the transform of real numbers, and `irfft` its inverse (over several
axes: of the last one). `norm` says where the factor 1/n stands: "backward" (as above), "forward" (in `fft`) or "ortho"
(its root in both). `sizes` are the n of each axis, to which operands are cut or filled up with zeros; None is what the
operand has.

The transform of a real tensor reads each element once and is exact to O(eps log n) of the root mean square (Higham,
"Accuracy and Stability of Numerical Algorithms", 2002, theorem 24.2).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch

from tessera.dtypes import DType, complex_of, fp32, fp64, real_of
from tessera.errors import ArgumentError
from tessera.ir.anchors import along
from tessera.lazy.structures.structure import Shape
from tessera.ops.algebra import call
from tessera.ops.applications import places, transforms
from tessera.ops.library import define
from tessera.ops.record import Named, Typed, dtype_error, elements
from tessera.ops.spectral import spelling

N: TypeAlias = Any
Sizes: TypeAlias = Sequence[int | None]

NORMS = ("backward", "ortho", "forward")
_ADJOINT_NORM = {"backward": "forward", "ortho": "ortho", "forward": "backward"}


def _operand(name: str, x: Typed) -> DType:
    """What torch computes with: floats of 32 and 64 bits; integers and bools become fp32."""
    if x.dtype.kind == "float" and x.dtype not in (fp32, fp64):
        raise dtype_error(name, [x], "defined on fp32, fp64 and complex numbers", ['cast: x.to("fp32")'])
    return fp32 if x.dtype.kind in ("int", "bool") else x.dtype


def _to_complex(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [complex_of(_operand(name, operands[0]))]


def _to_real(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    dtype = _operand(name, operands[0])
    if dtype.kind == "complex":
        raise dtype_error(name, operands, "transforms real numbers", ["op.fft transforms complex ones"])
    return [dtype]


def _extents(name: str, shape: Shape, attributes: Named, halved: bool) -> tuple[int, ...]:
    """The n of each axis. Raises ArgumentError where one is 0."""
    axes, sizes = attributes["axes"], attributes["sizes"]
    found = []
    for axis, size in zip(axes, sizes, strict=True):
        own = 2 * (shape[axis] - 1) if halved and axis == axes[-1] else shape[axis]
        found.append(own if size is None else size)
        if found[-1] < 1 or not shape[axis]:
            raise ArgumentError(f"{name} over axis {axis} of a tensor of shape {shape}: {found[-1]} points")
    return tuple(found)


def _resized(shape: Shape, axes: Shape, extents: Shape, last: int) -> Shape:
    result = list(shape)
    for axis, extent in zip(axes, (*extents[:-1], last), strict=True):
        result[axis] = extent
    return tuple(result)


def _full(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    extents = _extents(name, operands[0].shape, attributes, halved=False)
    return _resized(operands[0].shape, attributes["axes"], extents, extents[-1]), complex_of(cast[0])


def _half(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    extents = _extents(name, operands[0].shape, attributes, halved=False)
    return _resized(operands[0].shape, attributes["axes"], extents, extents[-1] // 2 + 1), complex_of(cast[0])


def _real(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    extents = _extents(name, operands[0].shape, attributes, halved=True)
    return _resized(operands[0].shape, attributes["axes"], extents, extents[-1]), real_of(cast[0])


def _flops(operands: Sequence[Typed], result: Typed, attributes: Named) -> int:
    """5 n log2 n for n complex points, the usual count of radix 2 (Frigo, Johnson 2005), half of it for real ones."""
    points = max(elements(result.shape), elements(operands[0].shape))
    n = math.prod(max(result.shape[axis], operands[0].shape[axis]) for axis in attributes["axes"])
    return round(5 * points * math.log2(max(n, 2)))


def _without_sizes(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {**attributes, "sizes": None}


# -- calls of the library ---------------------------------------------------------------------------------------------


def _arguments(attributes: Named) -> tuple[list[int | None], list[int], str]:
    return list(attributes["sizes"]), list(attributes["axes"]), attributes["norm"]


def _along(
    transform: Callable[..., torch.Tensor], x: torch.Tensor, sizes: Sizes, axes: Sequence[int], norm: str
) -> torch.Tensor:
    """Transforms along several axes in turn; along none, the tensor as it is."""
    for size, axis in zip(sizes, axes, strict=True):
        x = transform(x, size, axis, norm)
    return x


def forward(x: torch.Tensor, sizes: Sizes, axes: Sequence[int], norm: str) -> torch.Tensor:
    """`fft` along axes, the last one first, which reads zeros least often."""
    return _along(torch.fft.fft, x, list(sizes)[::-1], list(axes)[::-1], norm)


def _fft(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    sizes, axes, norm = _arguments(attributes)
    _into(torch.fft.fft, forward(inputs[0], sizes[1:], axes[1:], norm), sizes[0], axes[0], norm, outputs[0])


def _ifft(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    sizes, axes, norm = _arguments(attributes)
    x = _along(torch.fft.ifft, inputs[0], sizes[1:], axes[1:], norm)
    _into(torch.fft.ifft, x, sizes[0], axes[0], norm, outputs[0])


def _rfft(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    sizes, axes, norm = _arguments(attributes)
    if len(axes) == 1:
        _into(torch.fft.rfft, inputs[0], sizes[0], axes[0], norm, outputs[0])
        return
    x = torch.fft.rfft(inputs[0], sizes[-1], axes[-1], norm)
    x = forward(x, sizes[1:-1], axes[1:-1], norm)
    _into(torch.fft.fft, x, sizes[0], axes[0], norm, outputs[0])


def _irfft(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    sizes, axes, norm = _arguments(attributes)
    # Axis after axis: torch's transform over several axes at once copies its operand, and takes twice as long.
    x = _along(torch.fft.ifft, inputs[0], sizes[:-1], axes[:-1], norm)
    _into(torch.fft.irfft, x, sizes[-1], axes[-1], norm, outputs[0])


def _into(
    transform: Callable[..., torch.Tensor], x: torch.Tensor, size: int | None, axis: int, norm: str, out: torch.Tensor
) -> None:
    transform(x, size, axis, norm, out=out)


def _rfft_adjoint(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(_rfft_adjoint_reference(inputs[0], **attributes))


def _irfft_adjoint(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(_irfft_adjoint_reference(inputs[0], **attributes))


# -- references -------------------------------------------------------------------------------------------------------


def _fft_reference(x: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str) -> torch.Tensor:
    result: torch.Tensor = torch.fft.fftn(x, _own(sizes, x, axes), axes, norm)
    return result


def _ifft_reference(x: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str) -> torch.Tensor:
    result: torch.Tensor = torch.fft.ifftn(x, _own(sizes, x, axes), axes, norm)
    return result


def _rfft_reference(x: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str) -> torch.Tensor:
    result: torch.Tensor = torch.fft.rfftn(x, _own(sizes, x, axes), axes, norm)
    return result


def _irfft_reference(x: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str) -> torch.Tensor:
    last = 2 * (x.shape[axes[-1]] - 1) if sizes[-1] is None else sizes[-1]
    result: torch.Tensor = torch.fft.irfftn(x, (*_own(sizes[:-1], x, axes[:-1]), last), axes, norm)
    return result


def _own(sizes: Sizes, x: torch.Tensor, axes: Shape) -> tuple[int, ...]:
    return tuple(x.shape[axis] if size is None else size for size, axis in zip(sizes, axes, strict=True))


def _fitted(x: torch.Tensor, shape: Shape) -> torch.Tensor:
    """x cut, or filled up with zeros, to a shape."""
    result = x.new_zeros(shape)
    place = tuple(slice(0, min(own, wanted)) for own, wanted in zip(x.shape, shape, strict=True))
    result[place] = x[place]
    return result


def _rfft_adjoint_reference(g: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str, shape: Shape) -> torch.Tensor:
    """Re sum_k g[k] exp(2 pi i j k / n) over the half that `rfft` gives, in the operand's shape."""
    full = list(g.shape)
    full[axes[-1]] = sizes[-1] if sizes[-1] is not None else shape[axes[-1]]
    back = torch.fft.ifftn(_fitted(g, tuple(full)), dim=axes, norm=_ADJOINT_NORM[norm])
    return _fitted(back.real, shape)


def _irfft_adjoint_reference(g: torch.Tensor, *, axes: Shape, sizes: Sizes, norm: str, shape: Shape) -> torch.Tensor:
    """`rfft` with all but the first and, where n is even, the last element counted twice, in the operand's shape."""
    spectrum = torch.fft.rfftn(g, dim=axes, norm=_ADJOINT_NORM[norm])
    n = g.shape[axes[-1]]
    first = spectrum.movedim(axes[-1], -1)
    first[..., 1 : (n + 1) // 2] *= 2
    return _fitted(spectrum, shape)


# -- gradients --------------------------------------------------------------------------------------------------------


def _adjoint_by(name: str) -> Callable[..., tuple[N]]:
    """Of a complex transform: the other one, without its factor, cut or filled up to the operand's shape."""

    def gradient(g: N, operands: tuple[N], out: N, *, axes: Shape, sizes: Sizes, norm: str) -> tuple[N]:
        back = call(name, g, axes=axes, sizes=(None,) * len(axes), norm=_ADJOINT_NORM[norm])
        return (call("refit", back, shape=operands[0].shape),)

    return gradient


def _half_adjoint(name: str) -> Callable[..., tuple[N]]:
    def gradient(g: N, operands: tuple[N], out: N, *, axes: Shape, sizes: Sizes, norm: str) -> tuple[N]:
        return (call(name, g, axes=axes, sizes=sizes, norm=norm, shape=operands[0].shape),)

    return gradient


def _adjoint_of(name: str) -> Callable[..., tuple[N]]:
    """Of the adjoint of a real linear map: that map, with the points that it had."""

    def gradient(g: N, operands: tuple[N], out: N, *, axes: Shape, sizes: Sizes, norm: str, shape: Shape) -> tuple[N]:
        return (call(name, g, axes=axes, sizes=sizes, norm=norm),)

    return gradient


_TRANSFORM: Named = {"axes": (0,), "sizes": (None,), "norm": "backward"}

for _name, _call, _dtypes, _shape, _reference, _gradient, _application, _spelled in (
    ("fft", _fft, _to_complex, _full, _fft_reference, _adjoint_by("ifft"), transforms.of_spectra,
     spelling.complex_transform("fft")),
    ("ifft", _ifft, _to_complex, _full, _ifft_reference, _adjoint_by("fft"), transforms.of_spectra,
     spelling.complex_transform("ifft")),
    ("rfft", _rfft, _to_real, _half, _rfft_reference, _half_adjoint("rfft_adjoint"), transforms.of_signals,
     spelling.of_real),
    ("irfft", _irfft, _to_complex, _real, _irfft_reference, _half_adjoint("irfft_adjoint"), transforms.of_halves,
     spelling.to_real),
):  # fmt: skip
    define(
        _name,
        _call,
        _TRANSFORM,
        operand_dtypes=_dtypes,
        result=_shape,
        flops=_flops,
        reference=_reference,
        gradient=_gradient,
        application=_application,
        known_anchor=along.transform,
        spelled=_spelled,
        symbolic=_without_sizes,
    )


def _as_given(name: str, operands: Sequence[Typed], attributes: Named) -> list[DType]:
    return [operands[0].dtype]


def _given_real(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return attributes["shape"], real_of(cast[0])


def _given_complex(
    name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named
) -> tuple[Shape, DType]:
    return attributes["shape"], complex_of(cast[0])


def _given(name: str, operands: Sequence[Typed], cast: Sequence[DType], attributes: Named) -> tuple[Shape, DType]:
    return attributes["shape"], cast[0]


def _without_extents(attributes: Named, operands: Sequence[Typed], shape: Shape) -> Named:
    return {name: None if name in ("sizes", "shape") else value for name, value in attributes.items()}


def _refit(inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], attributes: Named) -> None:
    outputs[0].copy_(_fitted(inputs[0], attributes["shape"]))


def _refit_reference(x: torch.Tensor, *, shape: Shape) -> torch.Tensor:
    return _fitted(x, shape)


def _refit_gradient(g: N, operands: tuple[N], out: N, *, shape: Shape) -> tuple[N]:
    return (call("refit", g, shape=operands[0].shape),)


_ADJOINT: dict[str, Any] = {"known_anchor": along.transform, "flops": _flops, "symbolic": _without_extents}
define(
    "rfft_adjoint",
    _rfft_adjoint,
    {**_TRANSFORM, "shape": ()},
    operand_dtypes=_to_complex,
    result=_given_real,
    reference=_rfft_adjoint_reference,
    application=transforms.of_adjoints(real=True),
    spelled=spelling.of_real_adjoint(_ADJOINT_NORM.__getitem__),
    gradient=_adjoint_of("rfft"),
    **_ADJOINT,
)
define(
    "irfft_adjoint",
    _irfft_adjoint,
    {**_TRANSFORM, "shape": ()},
    operand_dtypes=_to_real,
    result=_given_complex,
    reference=_irfft_adjoint_reference,
    application=transforms.of_adjoints(real=False),
    spelled=spelling.to_real_adjoint(_ADJOINT_NORM.__getitem__),
    gradient=_adjoint_of("irfft"),
    **_ADJOINT,
)
define(
    "refit",
    _refit,
    {"shape": ()},
    operand_dtypes=_as_given,
    result=_given,
    reference=_refit_reference,
    gradient=_refit_gradient,
    known_anchor=along.refitted,
    application=places.of_refitting,
    symbolic=_without_extents,
)
