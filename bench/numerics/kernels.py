"""Errors of kernels that add up: products by K, sums, softmax, norms, attention, and what else there is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch.nn import functional

from bench.numerics.measures import ErrorRow, relative_error
from tessera import op

DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
SEED = 20


@dataclass(frozen=True)
class Kernel:
    """A kernel: shapes of its operands (standard-normal values), ours, and torch's, in float64 the reference."""

    name: str
    shapes: tuple[tuple[int, ...], ...]
    ours: Callable[..., object]
    theirs: Callable[..., torch.Tensor]
    dtypes: tuple[str, ...] = ("fp32", "fp16", "bf16")
    scale: float = 1.0
    """What the operands are multiplied by."""


def _product(k: int) -> Kernel:
    return Kernel(f"matmul, K = {k}", ((192, k), (k, 160)), op.matmul, torch.matmul)


def _attention(tokens: int, causal: bool) -> Kernel:
    shape = (4, tokens, 64)
    return Kernel(
        f"flash_attention, {tokens} keys{', causal' if causal else ''}",
        (shape, shape, shape),
        lambda q, k, v: op.flash_attention(q, k, v, causal=causal),
        lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
    )


def _rows(columns: int) -> Iterator[Kernel]:
    shape, row = (128, columns), (columns,)
    yield Kernel(f"softmax of {columns}", (shape,), op.softmax, lambda x: torch.softmax(x, -1), scale=4.0)
    yield Kernel(f"log_softmax of {columns}", (shape,), op.log_softmax, lambda x: torch.log_softmax(x, -1), scale=4.0)
    yield Kernel(
        f"layer_norm of {columns}",
        (shape, row, row),
        op.layer_norm,
        lambda x, weight, bias: functional.layer_norm(x, row, weight, bias),
    )
    yield Kernel(
        f"rms_norm of {columns}",
        (shape, row),
        lambda x, weight: op.rms_norm(x, weight, eps=1e-6),
        lambda x, weight: functional.rms_norm(x, row, weight, 1e-6),
    )


def _reductions() -> Iterator[Kernel]:
    shape = (64, 1 << 16)
    yield Kernel("sum of 65536", (shape,), lambda x: op.sum(x, axis=-1), lambda x: torch.sum(x, -1))
    yield Kernel("mean of 65536", (shape,), lambda x: op.mean(x, axis=-1), lambda x: torch.mean(x, -1))
    yield Kernel("sum down columns of 4096", ((4096, 96),), lambda x: op.sum(x, axis=0), lambda x: torch.sum(x, 0))
    yield Kernel(
        "logsumexp of 65536", (shape,), lambda x: op.logsumexp(x, axis=-1), lambda x: torch.logsumexp(x, -1), scale=4.0
    )
    yield Kernel("cumsum of 4096", ((64, 4096),), lambda x: op.cumsum(x, -1), lambda x: torch.cumsum(x, -1))


def _images() -> Iterator[Kernel]:
    image = (1, 64, 28, 28)
    yield Kernel(
        "conv2d 3x3 of 64 channels",
        (image, (32, 64, 3, 3)),
        lambda x, weight: op.conv2d(x, weight, padding=1),
        lambda x, weight: functional.conv2d(x, weight, padding=1),
    )
    yield Kernel(
        "depthwise_conv2d 5x5",
        (image, (64, 1, 5, 5)),
        lambda x, weight: op.depthwise_conv2d(x, weight, padding=2),
        lambda x, weight: functional.conv2d(x, weight, padding=2, groups=64),
    )
    yield Kernel(
        "avg_pool2d 3x3",
        (image,),
        lambda x: op.avg_pool2d(x, 3),
        lambda x: functional.avg_pool2d(x, 3),
        ("fp32", "bf16"),
    )


def _fourier() -> Iterator[Kernel]:
    for length in (1024, 1000):
        yield Kernel(
            f"rfft then irfft of {length}",
            ((64, length),),
            lambda x: op.irfft(op.rfft(x), x.shape[-1]),
            lambda x: torch.fft.irfft(torch.fft.rfft(x), x.shape[-1]),
            ("fp32",),
        )


def _spectral() -> Iterator[Kernel]:
    for channels, outputs, groups in ((8, 8, 8), (8, 4, 1)):
        kind = "depthwise" if groups > 1 else "dense"
        yield Kernel(
            f"spectral_conv, {kind} 31 x 31",
            ((1, channels, 56, 56), (outputs, channels // groups, 31, 31)),
            partial(op.spectral_conv, padding=15, groups=groups),
            partial(functional.conv2d, padding=15, groups=groups),
            ("fp32", "bf16"),
        )


def _linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> object:
    return op.gelu(op.add(op.matmul(x, weight), bias))


def kernels() -> list[Kernel]:
    """All kernels of the table."""
    return [
        *[_product(k) for k in (16, 256, 4096)],
        Kernel(
            "matmul + bias + gelu, K = 768",
            ((128, 768), (768, 160), (160,)),
            _linear_gelu,
            lambda x, weight, bias: functional.gelu(x @ weight + bias),
            scale=0.2,
        ),
        *[_attention(tokens, causal) for tokens in (128, 2048) for causal in (False, True)],
        *_rows(768),
        *_rows(4099),
        *_reductions(),
        *_images(),
        *_fourier(),
        *_spectral(),
    ]


def row(kernel: Kernel, dtype: str) -> ErrorRow:
    """The errors of one kernel in one dtype."""
    generator = torch.Generator().manual_seed(SEED)
    operands = [torch.randn(shape, generator=generator).mul_(kernel.scale).to(DTYPES[dtype]) for shape in kernel.shapes]
    exact = kernel.theirs(*[x.double() for x in operands])
    ours, theirs = op.tensor(kernel.ours(*operands)).torch(), kernel.theirs(*operands)
    errors = [relative_error(result, exact) for result in (ours, theirs)]
    shapes = ", ".join("x".join(map(str, shape)) for shape in kernel.shapes)
    return ErrorRow(kernel.name, dtype, shapes, "eps of the largest", errors[0], errors[1])


def rows() -> Iterator[ErrorRow]:
    """Every kernel in every dtype that it has."""
    for kernel in kernels():
        for dtype in kernel.dtypes:
            yield row(kernel, dtype)
