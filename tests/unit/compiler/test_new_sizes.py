"""New sizes compile no new kernels: a few serve all that a program is called with, in every family."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tessera import op
from tessera.backend.llvm.machine_code import engine
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.target import Target, detect
from tests import whole

SIZES = whole.some((8, 9, 10, 11, 13, 16, 17, 20, 23, 31))
"""Ten, or every other one of those: primes, powers of two, and neighbours of either."""

# The most kernels are those of a case alone in its process: kernels that pack operands are shared by many cases.

F = torch.nn.functional


@contextmanager
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels that LLVM compiles inside the `with`."""
    found: list[str] = []
    compile_ = engine.compile_object

    def counting(text: str, target: Target) -> bytes:
        found.append(text)
        return compile_(text, target)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "compile_object", counting)
        yield found


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def convolution(
    rows: int,
    columns: int,
    images: int = 1,
    depth: int = 6,
    side: int = 3,
    stride: int = 1,
    padding: int = 0,
    dilation: int = 1,
) -> tuple[Tensor, torch.Tensor]:
    x = normal(images, depth, rows, columns).contiguous(memory_format=torch.channels_last)
    w = normal(20, depth, side, side) / (side * depth**0.5)
    wanted = F.conv2d(x.double(), w.double(), None, stride, padding, dilation).relu()
    return op.relu(op.conv2d(x, w, stride=stride, padding=padding, dilation=dilation)), wanted


def allowed(most: int) -> int:
    """The most kernels on this CPU, of those with vectors of 64 bytes: narrower ones have more widths that the sizes
    lie between.
    """
    return most if detect().vector_bits >= 512 else most + max(1, most // 3)


Case = Callable[[int], tuple[Tensor, torch.Tensor]]
"""Gives what is computed for a size, not yet evaluated, and what torch makes of it in float64."""

CONVOLUTIONS: dict[str, tuple[int, Case]] = {
    "squares": (3, lambda n: convolution(n, n, padding=1)),
    "narrow images": (4, lambda n: convolution(40 - n, n - 7, padding=0, side=1, stride=2)),
    "wide images": (3, lambda n: convolution(9, 5 * n, padding=2, dilation=2)),
    "one row": (3, lambda n: convolution(1, n, padding=1)),
    "pixels by channels": (3, lambda n: convolution(n, n + 1, side=1)),
    "batches": (4, lambda n: convolution(9, n, images=n - 7, padding=1)),
    "strides": (3, lambda n: convolution(n, n, stride=2, padding=3, side=7, depth=3)),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_images_of_all_sizes_share_kernels(name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, case = CONVOLUTIONS[name]
    with compilations(monkeypatch) as compiled:
        for size in SIZES:
            pending, wanted = case(size)
            torch.testing.assert_close(pending.torch().double(), wanted, rtol=1e-4, atol=1e-4)
    # With 16 registers tiles are chosen by the ends of rows, which differ from size to size: as many kernels more.
    assert len(compiled) <= (most if detect().vector_bits >= 512 else 2 * most + 1)


def some(n: int, m: int) -> torch.Tensor:
    """n indices below m."""
    return torch.arange(n) % m


Operands = Sequence[torch.Tensor]
W, V = normal(64, 48), op.constant(normal(64, 48))

FAMILIES: dict[str, tuple[int, Callable[[int], Operands], Callable[..., Any]]] = {
    "products": (2, lambda n: (normal(n, n + 1), normal(n + 1, n + 3)), op.matmul),
    "rows by weights": (2, lambda n: (normal(n, 64), W), op.matmul),
    "rows by packed weights": (4, lambda n: (normal(n, 64),), lambda x: op.matmul(x, V)),
    "rows by weights with outputs first": (2, lambda n: (normal(n, 48), W), lambda x, w: op.matmul(x, op.transpose(w))),
    "large products": (2, lambda n: (normal(20 * n, 9 * n), normal(9 * n, 70)), op.matmul),
    "batches of products": (3, lambda n: (normal(n - 7, n, 8), normal(n - 7, 8, n)), op.matmul),
    "products of bf16": (2, lambda n: (normal(n, n).bfloat16(), normal(n, n).bfloat16()), op.matmul),
    "a row by a matrix": (2, lambda n: (normal(1, n), normal(n, 33)), op.matmul),
    "a matrix by a column": (2, lambda n: (normal(n, n), normal(n, 1)), op.matmul),
    "einsum": (1, lambda n: (normal(2, n, n + 1), normal(2, n + 1, n)), lambda a, b: op.einsum("bij,bjk->bki", a, b)),
    "int8": (6, lambda n: (normal(n, 16), torch.ones(5, 16, dtype=torch.int8), normal(5)), op.int8_linear),
    "attention": (2, lambda n: (normal(1, 2, n, 16),) * 3, op.flash_attention),
    "causal attention": (2, lambda n: (normal(n, 1, n, 8),) * 3, partial(op.flash_attention, causal=True)),
    "written attention": (
        3,
        lambda n: (normal(2, n, 16), normal(2, 16, n), normal(2, n, 16)),
        lambda q, k, v: op.softmax(q @ k * 0.25) @ v,
    ),
    "decoding": (1, lambda n: (normal(1, 2, 1, 16), normal(1, 2, n, 16), normal(1, 2, n, 16)), op.flash_attention),
    "maps": (1, lambda n: (normal(n, n + 1),), lambda x: op.relu(x * 2 + 1)),
    "maps of rows and columns": (1, lambda n: (normal(n, 1), normal(n)), op.add),
    "sums of rows": (2, lambda n: (normal(n, n + 1),), partial(op.sum, axis=1)),
    "sums of columns": (2, lambda n: (normal(n, n + 1),), partial(op.sum, axis=0)),
    "sums": (1, lambda n: (normal(n, n + 1),), op.sum),
    "softmax": (2, lambda n: (normal(n, n * n),), op.softmax),
    "layer_norm": (2, lambda n: (normal(n, n + 1), normal(n + 1), normal(n + 1)), op.layer_norm),
    "rms_norm": (2, lambda n: (normal(n, n + 1), normal(n + 1)), op.rms_norm),
    "batch_norm": (2, lambda n: (normal(2, n, n, n), normal(n), normal(n).abs()), op.batch_norm),
    "norms before products": (2, lambda n: (normal(n, 64), normal(64)), lambda x, w: op.matmul(op.rms_norm(x, w), W)),
    "gated products": (6, lambda n: (normal(n, 64),), lambda x: op.silu(op.matmul(x, W)) * op.matmul(x, V)),
    "cross_entropy": (3, lambda n: (normal(n, n + 1), some(n, n)), op.cross_entropy),
    "rope": (6, lambda n: (normal(1, 2, n, 16),), op.rope),
    "pad": (6, lambda n: (normal(n, n + 1),), lambda x: op.pad(x, (x.shape[0] - 7, 2), value=0.25 * x.shape[0])),
    "pad by reflection": (4, lambda n: (normal(n, n + 1),), lambda x: op.pad(x, (x.shape[0] - 7, 2), mode="reflect")),
    "split": (2, lambda n: (normal(n, n),), lambda x: op.split(x, [x.shape[0] - 7, 7])[1] * 2.0),
    "transposes": (2, lambda n: (normal(n, n + 1),), lambda x: op.transpose(x) + 1.0),
    "concat": (2, lambda n: (normal(n, 4), normal(n, n)), lambda a, b: op.concat([a, b], 1)),
    "stack": (2, lambda n: (normal(n, 4), normal(n, 4)), lambda a, b: op.stack([a, b])),
    "flip": (2, lambda n: (normal(n, n + 1),), lambda x: op.flip(x, 1)),
    "take": (1, lambda n: (normal(n, n + 1), some(5, n)), lambda x, i: op.take(x, i, 0)),
    "gather": (1, lambda n: (normal(n, n + 1), some(2 * n, n).view(2, n)), lambda x, i: op.gather(x, 0, i)),
    "embedding": (1, lambda n: (normal(n, n + 1), some(n, n)), op.embedding),
    "index_copy": (
        1,
        lambda n: (normal(n, 4), torch.arange(1, n, 2), normal(n // 2, 4)),
        lambda x, i, s: op.index_copy(x, 0, i, s),
    ),
    "scatter_add": (1, lambda n: (normal(n, 4), some(4 * n, n).view(n, 4)), lambda x, i: op.scatter_add(x, 0, i, x)),
    "one_hot": (2, lambda n: (some(n, n),), partial(op.one_hot, num_classes=31)),
    "dropout": (1, lambda n: (normal(n, n),), lambda x: op.dropout(x, 0.5, seed=x.shape[0])),
    "cumsum": (1, lambda n: (normal(n, n + 1),), lambda x: op.cumsum(x, 1)),
    "topk": (1, lambda n: (normal(n, n + 1),), lambda x: op.topk(x, 2)[0]),
    "depthwise": (2, lambda n: (normal(1, 4, n, n), normal(4, 1, 3, 3)), partial(op.depthwise_conv2d, padding=1)),
    "depthwise, channels last": (
        3,
        lambda n: (normal(1, n, n, 40), normal(40, 1, 3, 3)),
        partial(op.depthwise_conv2d, padding=1, layout="NHWC"),
    ),
    "max_pool2d": (2, lambda n: (normal(1, 4, n, n),), lambda x: op.max_pool2d(x, 3)),
    "avg_pool2d": (2, lambda n: (normal(1, 4, n, n + 3),), lambda x: op.avg_pool2d(x, 2)),
    "fft": (1, lambda n: (normal(4, n),), lambda x: op.abs(op.fft(x))),
    "spectral_conv": (2, lambda n: (normal(1, 2, n, n), normal(3, 2, 5, 5)), op.spectral_conv),
}
"""Family -> the most kernels for ten sizes, operands of a size, and what is computed of them."""


def kernel_of(function: Callable[..., Any], arity: int) -> Callable[..., Tensor]:
    """A kernel, whose operands have to have names."""
    names = ", ".join("abc"[:arity])
    return op.kernel(eval(f"lambda {names}: function({names})", {"function": function}))


@pytest.mark.parametrize("name", FAMILIES)
def test_operands_of_all_sizes_share_kernels(name: str, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    most, operands, function = FAMILIES[name]
    kernel = kernel_of(function, len(operands(SIZES[0])))
    with compilations(monkeypatch) as compiled:
        plain = [op.tensor(function(*[op.tensor(each) for each in operands(size)])).torch() for size in SIZES]
        assert len(compiled) <= allowed(most)
        in_kernels = [kernel(*operands(size)).torch() for size in SIZES]
        assert len(compiled) <= 2 * allowed(most)
        compiled.clear()
        again = [kernel(*[each.clone() for each in operands(size)]).torch() for size in SIZES]
        assert not compiled
    for first, second, third in zip(plain, in_kernels, again, strict=True):
        torch.testing.assert_close(second, first, rtol=1e-4, atol=1e-4)
        assert torch.equal(second, third)


def test_numbers_that_tensors_are_filled_with_are_arguments(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(9, 9)
    with compilations(monkeypatch) as compiled:
        for place, number in enumerate((3.5, -7.25, float("nan"), float("inf"), 1e-3)):
            padded = op.pad(x, (place, 1), value=number).torch()
            torch.testing.assert_close(padded, F.pad(x, (place, 1), value=number), equal_nan=True)
            assert op.full((3, place), number).torch().nan_to_num(5.0).eq(torch.tensor(number).nan_to_num(5.0)).all()
        assert len(compiled) <= 5


@pytest.mark.parametrize("number", [float("nan"), float("inf"), 1e300, 1 << 31])
def test_numbers_that_a_dtype_lacks_are_refused(number: float) -> None:
    with pytest.raises(ArgumentError, match="no number of int32"):
        op.pad(torch.ones(2, dtype=torch.int32), (1, 1), value=number)
    with pytest.raises(ArgumentError, match="no number of int32"):
        op.full((2,), number, torch.int32)


def test_a_linear_layer_of_bytes_compiles_no_more_than_a_few_kernels(
    cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers, scales = op.quantize(normal(96, 64), axis=-1)
    weight = op.constant(numbers)

    @op.kernel
    def layer(x: Tensor) -> Tensor:
        return op.int8_linear(x, weight, scales)

    with compilations(monkeypatch) as compiled:
        for rows in (*range(1, 40), 49, 64, 97, 128, 129, 145, 200):
            layer(normal(rows, 64)).eval()  # type: ignore[arg-type]
        assert len(compiled) <= 20
        compiled.clear()
        for rows in (41, 60, 110, 150, 300, 511):
            layer(normal(rows, 64)).eval()  # type: ignore[arg-type]
        assert not compiled


BATCHES = (1, 2, 3, 8, 16, 33, 64, 100, 128)


def test_layers_of_bytes_share_kernels_as_those_of_fp32_do(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = normal(48, 64)
    numbers, scales = op.quantize(weights, axis=-1)
    marked, bytes_ = op.constant(weights), op.constant(numbers.torch())
    scale = scales.torch()

    def count(layer: Callable[[torch.Tensor], Tensor]) -> int:
        with compilations(monkeypatch) as compiled:
            for rows in BATCHES:
                torch.testing.assert_close(
                    layer(normal(rows, 64)).torch(), normal(rows, 64) @ weights.T, rtol=0.1, atol=0.5
                )
        return len(compiled)

    wide = count(lambda x: op.matmul(x, op.transpose(marked, (1, 0))))
    assert wide < len(BATCHES)
    # Two more quantize one row and several, and one of fp32's is not needed.
    assert count(lambda x: op.int8_linear(x, bytes_, scale)) <= wide + 1
