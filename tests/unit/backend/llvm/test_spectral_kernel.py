"""The spectral kernel by itself: libraries whose transforms fail, and planes of every size."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tessera import settings
from tessera.backend.llvm.machine_code.library import cached_library
from tessera.backend.llvm.native.spectral_ir import NAME, WORDS, spectral_text
from tessera.runtime.libraries import fourier

KERNEL = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 2, ctypes.c_void_p)
TRANSFORM = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)


@pytest.mark.parametrize("broken", ["forward", "backward"])
def test_a_transform_that_fails_leaves_nan(broken: str) -> None:
    library = cached_library("spectral", spectral_text(), settings.current().objects_dir)
    status = {way: TRANSFORM(lambda *_, value=int(way == broken): value) for way in ("forward", "backward")}
    points, half = 4, 3
    x, spectrum = torch.ones(points, points), torch.ones(points, half, dtype=torch.complex64)
    y, work = torch.zeros(points, points), torch.zeros(1024)
    table = (ctypes.c_int64 * 3)(x.data_ptr(), spectrum.data_ptr(), y.data_ptr())
    known = {"v_slot": 1, "y_slot": 2, "images": 1, "groups": 1, "depth": 1, "outputs": 1, "parts": 1, "share": 1}
    known |= {"x_row": 4 * points, "x_column": 4, "height": points, "width": points, "y_plane": 4 * points * points}
    known |= {"rows": points, "columns": points, "row_step": half, "column_step": 1, "points": points, "half": half}
    known |= {"plane": points * half, "pitch": 128}
    known |= {way: ctypes.cast(status[way], ctypes.c_void_p).value or 0 for way in status}
    words = (ctypes.c_int64 * len(WORDS))(*[known.get(word, 0) for word in WORDS])
    KERNEL(library.address(NAME))(ctypes.addressof(table), ctypes.addressof(words), 0, 1, work.data_ptr())
    spoiled = y if broken == "backward" else work[: 2 * points * half]  # the plane of the spectrum
    assert spoiled.isnan().all()


@pytest.mark.skipif(fourier.find() is None, reason="torch was built without a library of transforms to call")
@pytest.mark.parametrize(("points", "count"), [(2, 1), (48, 28), (90, 7)])
def test_transforms_are_the_librarys(points: int, count: int) -> None:
    found, half = fourier.find(), points // 2 + 1
    assert found is not None
    rows = fourier.real_rows(points, count, half)
    assert rows is not None
    x, spectrum = torch.randn(count, points), torch.empty(count, half, dtype=torch.complex64)
    found.library.DftiComputeForward(*map(ctypes.c_void_p, (rows.handle, x.data_ptr(), spectrum.data_ptr())))
    torch.testing.assert_close(spectrum, torch.fft.rfft(x), atol=1e-4, rtol=1e-4)
    assert fourier.real_rows(points, count, half) is rows


def test_what_the_library_refuses_is_none() -> None:
    assert fourier.columns(-1, 3) is None
