"""The problems: shapes, seeded inputs, float64 references, work counts.

torch is imported inside functions, so that the parent process stays light.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Operation = Literal["matmul", "linear_gelu", "softmax", "layer_norm", "rms_norm", "gelu"]
DtypeName = Literal["fp32", "bf16"]

EPSILON = 1e-5
"""The epsilon of layer norm and rms norm, torch's default for layer norm; every contender is given it."""

TOLERANCE: dict[DtypeName, float] = {"fp32": 2e-5, "bf16": 1e-2}
"""Largest error allowed, as a share of the largest reference value: fp32 sums of 4096 products err by some 1e-6, a bf16
result is rounded by 2^-9, and bf16 intermediate results by as much again."""

CHECKED = 96
"""How many rows, and for products columns too, are compared with the reference: strips that meet every tile."""

SEED = 20

_BYTES: dict[DtypeName, int] = {"fp32": 4, "bf16": 2}


@dataclass(frozen=True)
class Case:
    """One problem. `shape` is (M, N, K) for matmul and linear_gelu, (rows, columns) otherwise."""

    operation: Operation
    shape: tuple[int, ...]
    dtype: DtypeName

    @property
    def is_product(self) -> bool:
        """Whether the case is a matrix product, with or without an epilogue."""
        return self.operation in ("matmul", "linear_gelu")

    @property
    def label(self) -> str:
        """How the case is shown, such as ``matmul fp32 512x512x512``."""
        return f"{self.operation} {self.dtype} {'x'.join(map(str, self.shape))}"

    @property
    def flops(self) -> int:
        """Floating-point operations of the product (2 M N K); 0 for row-wise cases, which memory bounds."""
        if not self.is_product:
            return 0
        m, n, k = self.shape
        return 2 * m * n * k

    @property
    def bytes(self) -> int:
        """Bytes that must cross the memory bus: each operand once, the result once."""
        size = _BYTES[self.dtype]
        if self.is_product:
            m, n, k = self.shape
            return size * (m * k + k * n + m * n + (n if self.operation == "linear_gelu" else 0))
        rows, columns = self.shape
        affine = {"layer_norm": 2, "rms_norm": 1}.get(self.operation, 0)
        return size * (2 * rows * columns + affine * columns)


@dataclass(frozen=True)
class Inputs:
    """A case's tensors: `x` (M, K) or (rows, columns), `weight` (K, N) or a norm's gain, `bias` (N) or its shift."""

    x: torch.Tensor
    weight: torch.Tensor
    bias: torch.Tensor


def torch_dtype(name: DtypeName) -> torch.dtype:
    """The torch dtype called `name`."""
    import torch

    return torch.float32 if name == "fp32" else torch.bfloat16


def make_inputs(case: Case) -> Inputs:
    """Standard-normal inputs (weights scaled by 1/sqrt(K)); the same bits in every process."""
    import torch

    generator = torch.Generator().manual_seed(SEED)
    dtype = torch_dtype(case.dtype)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).mul_(scale).to(dtype)

    if case.is_product:
        m, n, k = case.shape
        return Inputs(normal(m, k), normal(k, n, scale=k**-0.5), normal(n))
    rows, columns = case.shape
    return Inputs(normal(rows, columns), normal(columns), normal(columns))


def _formula(case: Case, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """The case's operation as torch computes it, in the dtype of its arguments."""
    import torch
    from torch.nn import functional

    columns = (x.shape[-1],)
    match case.operation:
        case "matmul":
            return x @ weight
        case "linear_gelu":
            return functional.gelu(x @ weight + bias)
        case "softmax":
            return torch.softmax(x, -1)
        case "layer_norm":
            return functional.layer_norm(x, columns, weight, bias, EPSILON)
        case "rms_norm":
            return functional.rms_norm(x, columns, weight, EPSILON)
        case "gelu":
            return functional.gelu(x)


def _strip(extent: int) -> torch.Tensor:
    """At most `CHECKED` indices into `extent`, spread evenly, the first and the last among them."""
    import torch

    return torch.linspace(0, extent - 1, min(CHECKED, extent)).round().long()


def error(case: Case, inputs: Inputs, result: torch.Tensor) -> float:
    """Largest deviation of `result` from float64, as a share of the largest reference value.

    Compares a strip of rows, and for products a strip of columns too. Infinite for NaN or a wrong shape.
    """
    import torch

    expected_shape = (inputs.x.shape[0], inputs.weight.shape[-1] if case.is_product else inputs.x.shape[1])
    if tuple(result.shape) != expected_shape:
        return float("inf")
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    rows = _strip(x.shape[0])
    pairs = [(result[rows], _formula(case, x[rows].double(), weight.double(), bias.double()))]
    if case.is_product:
        columns = _strip(weight.shape[1])
        reference = _formula(case, x.double(), weight[:, columns].double(), bias[columns].double())
        pairs.append((result[:, columns], reference))
    worst = 0.0
    for actual, reference in pairs:
        difference = (actual.double() - reference).abs().max() / reference.abs().max().clamp_min(1e-30)
        worst = max(worst, float(torch.nan_to_num(difference, nan=float("inf"))))
    return worst
