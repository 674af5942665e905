"""The native kernel of spectral convolutions: generated once for all shapes, it calls the library's transforms."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import NamedTuple

from tessera import settings
from tessera.backend.llvm.machine_code.library import cached_library
from tessera.backend.llvm.machine_code.loading import MachineCode
from tessera.backend.llvm.native.spectral_ir import NAME, WORDS, spectral_text
from tessera.runtime.libraries import fourier
from tessera.runtime.libraries.fourier import TransformLibrary, Transforms


class Planes(NamedTuple):
    """The transforms of one convolution: of `height` rows of an image, of the columns of its spectrum, and of the
    `rows` of a result, `step` numbers apart. Planes have `points` rows and columns.
    """

    points: tuple[int, int]
    height: int
    rows: int
    step: int


class SpectralKernel:
    """The kernel with the transforms of one geometry; `address` is valid as long as the object lives."""

    __slots__ = ("_library", "_native", "_transforms", "address")

    def __init__(self, library: TransformLibrary, transforms: tuple[Transforms, ...]) -> None:
        self._library, self._transforms = library, transforms
        self._native = _native()
        self.address = self._native.address(NAME)

    def descriptors(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """The words of a step: `values` by name, and those that the transforms have."""
        handles = dict(zip(("image_rows", "all_columns", "result_rows"), self._transforms, strict=True))
        told = {
            **values,
            "forward": self._library.forward,
            "backward": self._library.backward,
            **{name: transforms.handle for name, transforms in handles.items()},
        }
        return tuple([told[word] for word in WORDS])


@cache
def _native() -> MachineCode:
    return cached_library("spectral", spectral_text(), settings.current().objects_dir)


def spectral_kernel(planes: Planes) -> SpectralKernel | None:
    """The kernel for planes of fp32 numbers; None where the library has no such transforms."""
    points, half = planes.points, planes.points[1] // 2 + 1
    transforms = (
        fourier.real_rows(points[1], planes.height, half),
        fourier.columns(points[0], half),
        fourier.complex_rows(points[1], planes.rows, planes.step),
    )
    library = fourier.find()
    made = tuple([each for each in transforms if each is not None])
    return None if library is None or len(made) < len(transforms) else SpectralKernel(library, made)
