"""Fourier transforms on meshes beside those of torch: of real and complex numbers, in slabs and pencils."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from tessera import dist, grad, op
from tessera.ops.algebra import call

Splits = tuple[tuple[str, ...], ...]


def _spec(splits: Splits) -> dist.ShardSpec:
    held = [(dim, axes) for dim, axes in enumerate(splits) if axes]
    return dist.ShardSpec([dim for dim, _ in held], [axes for _, axes in held])


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Reproducible normal numbers."""
    return torch.randn(shape, dtype=dtype, generator=torch.Generator().manual_seed(3))


def faults(mesh: dist.Mesh, shape: tuple[int, ...], splits: Splits, sizes: tuple[int, ...] | None) -> Iterator[str]:
    """What is wrong with transforms over all dimensions but a first one of four, and back, on a mesh."""
    axes = tuple(range(len(shape) == 4, len(shape)))
    real, whole = numbers(shape, torch.float64), numbers(shape, torch.complex128)
    points = tuple(shape[axis] for axis in axes) if sizes is None else sizes
    settings: dict[str, Any] = {"axes": axes, "sizes": (None,) * len(axes) if sizes is None else sizes, "norm": "ortho"}
    x, z = (dist.distribute(value, _spec(splits), mesh) for value in (real, whole))
    half, full = call("rfft", x, **settings), call("fft", z, **settings)
    back = {**settings, "sizes": points}
    wanted = torch.fft.rfftn(real, sizes, axes, "ortho")
    yield from _compared("rfft", half, wanted)
    yield from _compared("irfft", call("irfft", half, **back), torch.fft.irfftn(wanted, points, axes, "ortho"))
    spectrum = torch.fft.fftn(whole, sizes, axes, "ortho")
    yield from _compared("fft", full, spectrum)
    yield from _compared("ifft", call("ifft", full, **back), torch.fft.ifftn(spectrum, dim=axes, norm="ortho"))
    yield from _gradient(x, real, back)


def long_faults(mesh: dist.Mesh, axis: str, points: int) -> Iterator[str]:
    """What is wrong with a filter of a long signal on a mesh, whose spectrum stays as it lies."""
    signal, response = (numbers((points,), dtype) for dtype in (torch.complex128, torch.float64))
    x, k = dist.distribute(signal, _spec(((axis,),)), mesh), dist.distribute(response, None, mesh)
    wanted = torch.fft.ifft(torch.fft.fft(signal) * response)
    yield from _compared("a long filter", op.ifft(op.fft(x) * k), wanted)


def _gradient(x: Any, real: torch.Tensor, settings: dict[str, Any]) -> Iterator[str]:
    """Of what changes with both parts of half a spectrum, and with what comes back of it."""

    def loss(x: Any) -> Any:
        half = call("rfft", x, **settings)
        parts, back = call("view_as_real", half), call("irfft", half * half, **settings)
        return op.sum(parts * parts * parts) + op.sum(back * back)

    leaf = real.clone().requires_grad_()
    half = torch.fft.rfftn(leaf, settings["sizes"], settings["axes"], "ortho")
    back = torch.fft.irfftn(half * half, settings["sizes"], settings["axes"], "ortho")
    ((torch.view_as_real(half) ** 3).sum() + (back**2).sum()).backward()
    assert leaf.grad is not None
    yield from _compared("the gradient", grad.grad(loss)(x), leaf.grad)


def _compared(name: str, made: Any, wanted: torch.Tensor) -> Iterator[str]:
    found = made.full().torch()
    if found.shape != wanted.shape or not torch.allclose(
        found, wanted, rtol=1e-9, atol=1e-9 * wanted.abs().max().item()
    ):
        yield f'{name} of {tuple(wanted.shape)} as "{made.layout}" is {found}, not {wanted}'
