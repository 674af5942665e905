"""The four kernels of `tessera quickstart`: how Tessera and torch compute each, and what float64 says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import tessera
from tessera import op

SIDE = 1024
"""Extents of the products: 1024 x 1024 x 1024."""

ROWS, COLUMNS = 4096, 4096
"""Extents of softmax and layer norm: 64 MB in fp32, more than caches hold."""

EPSILON = 1e-5
CHECKED_ROWS = 64
SEED = 7

TOLERANCE = {"fp32": 2e-5, "bf16": 1e-2}
"""Largest error as a share of the largest value: fp32 sums of 1024 products err by some 1e-6, bf16 rounds by 2^-9."""

_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}

Formula = Callable[..., Tensor]


@dataclass(frozen=True)
class QuickstartKernel:
    """One kernel in one dtype.

    `subject`, `shapes` and `dtype` are what `autotune` takes. `call` computes with Tessera, `formula` with torch, both
    from `operands`; the first operand's rows are the result's rows.
    """

    name: str
    dtype: str
    subject: Any
    shapes: Any
    operands: tuple[Tensor, ...]
    call: Callable[..., tessera.Tensor]
    formula: Formula
    is_product: bool

    @property
    def label(self) -> str:
        """Name and dtype."""
        return f"{self.name} {self.dtype}"

    def run(self) -> tessera.Tensor:
        """Computes with Tessera."""
        return self.call(*self.operands).eval()

    def run_torch(self) -> Tensor:
        """Computes with torch as a user writes it."""
        return self.formula(*self.operands)

    def error(self) -> float:
        """Tessera's largest deviation from float64 on rows spread over the result, as a share of the largest value.

        NaN where the result holds one.
        """
        rows = torch.linspace(0, self.operands[0].shape[0] - 1, CHECKED_ROWS, device="cpu").round().long()
        first, *others = self.operands
        expected = self.formula(first[rows].double(), *(operand.double() for operand in others))
        difference = (self.run().torch()[rows].double() - expected).abs().max()
        return float(difference / expected.abs().max())


@op.kernel
def matmul_bias_gelu(x: tessera.Tensor, weight: tessera.Tensor, bias: tessera.Tensor) -> tessera.Tensor:
    """gelu(x @ weight + bias) as one kernel."""
    return op.gelu(x @ weight + bias)


def _layer_norm(x: Tensor, gain: Tensor, shift: Tensor) -> Tensor:
    return functional.layer_norm(x, (x.shape[-1],), gain, shift, EPSILON)


def _tessera_layer_norm(x: Any, gain: Any, shift: Any) -> tessera.Tensor:
    return op.layer_norm(x, gain, shift, eps=EPSILON)


def kernels() -> list[QuickstartKernel]:
    """The four kernels, each in fp32 and bf16, on standard-normal operands."""
    return [kernel for dtype in _DTYPES for kernel in _in_dtype(dtype)]


def _in_dtype(dtype: str) -> list[QuickstartKernel]:
    generator = torch.Generator().manual_seed(SEED)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(*shape, generator=generator, device="cpu").mul_(scale).to(_DTYPES[dtype])

    x, weight, bias = normal(SIDE, SIDE), normal(SIDE, SIDE, scale=SIDE**-0.5), normal(SIDE)
    rows, gain, shift = normal(ROWS, COLUMNS), normal(COLUMNS), normal(COLUMNS)

    def kernel(name: str, subject: Any, operands: tuple[Tensor, ...], call: Any, formula: Formula) -> QuickstartKernel:
        product = len(operands[0]) == SIDE
        sizes: Any = [tuple(operand.shape) for operand in operands]
        return QuickstartKernel(name, dtype, subject, sizes, operands, call, formula, product)

    return [
        kernel("matmul", op.matmul, (x, weight), op.matmul, torch.matmul),
        kernel(
            "matmul+bias+gelu",
            matmul_bias_gelu,
            (x, weight, bias),
            matmul_bias_gelu,
            lambda x, w, b: functional.gelu(torch.addmm(b, x, w)),
        ),
        kernel("softmax", op.softmax, (rows,), op.softmax, lambda x: torch.softmax(x, -1)),
        kernel("layer norm", op.layer_norm, (rows, gain, shift), _tessera_layer_norm, _layer_norm),
    ]
