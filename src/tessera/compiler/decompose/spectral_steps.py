"""Spectral convolutions as steps of CPU plans: one generated kernel that calls the library's transforms.

The kernel is one for all shapes (`runtime/libraries/spectral.py`); a step holds the descriptors of its transforms, made
once per geometry. What it does not do (float64, a build of torch without such a library) stays a call of torch.
"""

from __future__ import annotations

from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.launches import LibraryLaunch
from tessera.dtypes import complex64, fp32
from tessera.lazy.threads import worker_count
from tessera.runtime.libraries.spectral import Planes, spectral_kernel
from tessera.runtime.memory.liveness import round_up
from tessera.runtime.plans.frames import Step

_COMPLEX_BYTES = 8
_FLOAT_BYTES = 4
_LEAST_WORK = 2_000_000
"""Operations below which one worker does it all."""


def spectral_step(launch: LibraryLaunch) -> Step | None:
    """The step of a call of a library that goes by planes of fp32 numbers; None where it has to be a call of torch."""
    if not launch.operator.by_planes:
        return None
    (image, spectrum), (result,) = launch.inputs, launch.outputs
    if image.dtype is not fp32 or spectrum.dtype is not complex64 or not _is_contiguous(spectrum):
        return None
    points, stride = launch.attributes["points"], launch.attributes["stride"]
    half = points[1] // 2 + 1
    count, channels, height, width = image.shape
    rows, columns = result.shape[2:]
    kernel = spectral_kernel(Planes(points, height, rows, half * stride[0]))
    if kernel is None:
        return None
    groups = launch.attributes["groups"]
    depth, outputs = channels // groups, result.shape[1] // groups
    plane = points[0] * half
    pitch = round_up(plane * _COMPLEX_BYTES)
    workers = worker_count() if result.shape[0] * result.shape[1] * depth * plane * 8 > _LEAST_WORK else 1
    # Where there are fewer images and groups than workers, each worker transforms the image for its own results.
    parts = 1 if count * groups >= workers else min(workers, outputs)
    workers = min(workers, count * groups * parts)
    strides = [stride * _FLOAT_BYTES for stride in image.strides]
    values = {
        **_placed("x", image),
        **_placed("v", spectrum),
        **_placed("y", result),
        "images": count,
        "groups": groups,
        "depth": depth,
        "outputs": outputs,
        "parts": parts,
        "share": -(-outputs // parts),
        **dict(zip(("x_image", "x_channel", "x_row", "x_column"), strides, strict=True)),
        "height": height,
        "width": width,
        "y_plane": rows * columns * _FLOAT_BYTES,
        "rows": rows,
        "columns": columns,
        "row_step": half * stride[0],
        "column_step": stride[1],
        "points": points[1],
        "half": half,
        "plane": plane,
        "pitch": pitch,
    }
    workspace = (depth + 1) * pitch + max(height, rows) * points[1] * _FLOAT_BYTES
    return Step(kernel, kernel.descriptors(values), workers, workspace)


def _placed(name: str, view: View) -> dict[str, int]:
    return {f"{name}_slot": view.storage.slot, f"{name}_offset": view.storage.offset + view.offset_bytes}


def _is_contiguous(view: View) -> bool:
    step = 1
    for extent, stride in zip(reversed(view.shape), reversed(view.strides), strict=True):
        if extent != 1 and stride != step:
            return False
        step *= extent
    return True
