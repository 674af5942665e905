"""What is compiled: programs for CPUs and operators for GPUs, of every family, by the public operators alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tessera import op

Build = Callable[[], Any]


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Numbers that are the same in every process."""
    made = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32)
    return made.to(dtype) if dtype.is_floating_point else made.mul(20).to(dtype)


def _last(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _linear(m: int, n: int, k: int, dtype: torch.dtype) -> Build:
    x, w, b = drawn(m, k, dtype=dtype), drawn(k, n, dtype=dtype), drawn(n, dtype=dtype)
    return lambda: op.gelu(op.matmul(x, w) + b)


def _gated() -> Any:
    x, up, gate = drawn(48, 64), drawn(64, 96), drawn(64, 96)
    return op.silu(op.matmul(x, gate)) * op.matmul(x, up)


def _normed() -> Any:
    return op.matmul(op.rms_norm(drawn(40, 64), drawn(64)), drawn(64, 80))


def _constant(dtype: torch.dtype) -> Build:
    x, w = drawn(17, 64, dtype=dtype), op.constant(drawn(64, 48, dtype=dtype))
    return lambda: op.relu(op.matmul(x, w))


def _bytes() -> Any:
    numbers, scales = op.quantize(drawn(48, 64), axis=-1)
    return op.int8_linear(drawn(20, 64), op.constant(numbers), scales)


def _attention(rows: int, keys: int, causal: bool = False, dtype: torch.dtype = torch.float32) -> Build:
    q, k, v = (drawn(1, 2, extent, 32, dtype=dtype) for extent in (rows, keys, keys))
    return lambda: op.flash_attention(q, k, v, causal=causal)


def _convolution(size: int, stride: int, dtype: torch.dtype = torch.float32, **options: Any) -> Build:
    x, w = _last(drawn(1, 16, 20, 21, dtype=dtype)), drawn(24, 16, size, size, dtype=dtype)
    return lambda: op.relu(op.conv2d(x, w, stride=stride, **options))


def _first() -> Any:
    return op.conv2d(drawn(2, 8, 14, 14), drawn(16, 8, 3, 3), padding=1)


def _depthwise(last: bool) -> Build:
    x = drawn(1, 16, 18, 18)
    x = _last(x) if last else x
    return lambda: op.silu(op.depthwise_conv2d(x, drawn(16, 1, 3, 3), padding=1))


HALF = torch.bfloat16
PROGRAMS: dict[str, Build] = {
    "product fp32": _linear(192, 160, 96, torch.float32),
    "product fp64": _linear(65, 33, 50, torch.float64),
    "product bf16": _linear(192, 160, 96, HALF),
    "product fp16": _linear(64, 48, 32, torch.float16),
    "product of few rows": _linear(3, 160, 96, torch.float32),
    "product of few columns": _linear(160, 2, 96, torch.float32),
    "product of a row": _linear(1, 256, 128, HALF),
    "product, gated": _gated,
    "product of normed rows": _normed,
    "product, constant fp32": _constant(torch.float32),
    "product, constant bf16": _constant(HALF),
    "product, transposed": lambda: op.matmul(drawn(40, 50).T, drawn(60, 40).T),
    "products in a batch": lambda: op.matmul(drawn(3, 20, 30), drawn(3, 30, 40)) * 0.5,
    "product of int8": _bytes,
    "product of int32": lambda: op.matmul(drawn(9, 20, dtype=torch.int32), drawn(20, 17, dtype=torch.int32)),
    "attention": _attention(64, 64),
    "attention, causal": _attention(40, 40, causal=True),
    "attention of one query": _attention(1, 512),
    "attention bf16": _attention(64, 64, dtype=HALF),
    "convolution 1x1": _convolution(1, 1),
    "convolution 3x3": _convolution(3, 1, padding=1),
    "convolution 3x3, stride 2": _convolution(3, 2, padding=1),
    "convolution, dilated": _convolution(3, 1, dilation=2),
    "convolution bf16": _convolution(3, 1, HALF, padding=1),
    "convolution, channels first": _first,
    "window, channels last": _depthwise(last=True),
    "window, channels first": _depthwise(last=False),
    "window, maximum": lambda: op.max_pool2d(drawn(1, 8, 17, 17), 3, stride=2),
    "window, mean": lambda: op.avg_pool2d(_last(drawn(1, 8, 16, 16)), 2),
    "rows, softmax": lambda: op.softmax(drawn(70, 300)),
    "rows, softmax bf16": lambda: op.softmax(drawn(70, 300, dtype=HALF)),
    "rows, layer norm": lambda: op.layer_norm(drawn(64, 256), drawn(256), drawn(256)),
    "rows, map": lambda: op.gelu(drawn(50, 70) * 2 + drawn(70)),
    "rows, map of columns first": lambda: op.tanh(drawn(50, 70).T) + drawn(50),
    "rows, transposed": lambda: drawn(60, 70) + op.transpose(drawn(70, 60)),
    "rows, sum": lambda: op.sum(drawn(1000)),
    "rows, maximum and its place": lambda: op.argmax(drawn(30, 200)),
    "rows, conversion": lambda: op.cast(drawn(20, 33), torch.int8),
    "columns, sum": lambda: op.sum(drawn(300, 70), 0),
    "columns, variance": lambda: op.var(drawn(100, 64), 0),
    "columns, softmax": lambda: op.softmax(drawn(80, 40), axis=0),
    "gather": lambda: op.take(drawn(50, 16), torch.arange(20) % 50, 0) * 2,
}
"""Programs by name: each gives a pending result."""

OPERATORS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    **{
        f"product {dtype} {shape}": (op.matmul, shape, dtype)
        for dtype in ("fp32", "bf16", "fp16")
        for shape in ((128, 256, 64), (65, 33, 50), (1, 128, 256))
    },
    "attention bf16": (op.flash_attention, (1, 4, 256, 64), "bf16"),
    "attention fp16, odd": (op.flash_attention, (1, 2, 77, 32), "fp16"),
    "rows, softmax": (op.softmax, (301, 77), "fp32"),
    "rows, softmax bf16": (op.softmax, (64, 4096), "bf16"),
    "rows, layer norm": (op.layer_norm, (64, 256), "bf16"),
    "rows, map": (op.gelu, (50, 70), "fp32"),
    "sum of all": (op.sum, (1000, 300), "fp32"),
    "rows, variance": (op.var, (30, 200), "fp32"),
}
"""Operators by name, with the shapes and the dtype of their operands as `autotune` takes them."""
