"""The suites by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from bench.gpu.attention import attention, backward
from bench.gpu.cases import Case, fp8_products, fused_products, products, row_kernels
from bench.gpu.decoding import decoding

SUITES: Mapping[str, Callable[[], Iterator[Case]]] = {
    "matmul": products,
    "fp8": fp8_products,
    "fused": fused_products,
    "rows": row_kernels,
    "attention": attention,
    "backward": backward,
    "decoding": decoding,
}
