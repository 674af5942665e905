"""Linear layers of few rows, as decoding and small batches have them: Llama's and GPT-2's weights in fp32, bf16, int8.

The weights are a frozen model's, so that everyone may pack them beforehand. `torch.compile`, which takes long to tune,
takes part for 1, 8 and 64 rows of two layers; for the others there are the libraries that it calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import nn

from bench.environments import NotMeasuredError, onednn_packs
from bench.jobs.job import Call, Group, Inputs, Job, Peer
from tessera import op

SEED = 37
LEAST = 1.1
"""The goal: the geometric mean over the layers of one dtype."""
TOLERANCE = {"fp32": 1e-5, "bf16": 1e-2, "int8": 2e-2}
"""Of the largest value of the result. A peer of int8 has one scale for all rows of its input."""
LAYERS = (
    (4096, 4096),
    (4096, 11008),
    (11008, 4096),
    (4096, 14336),
    (2048, 2048),
    (768, 768),
    (768, 3072),
    (3072, 768),
)
COMPILED = ((4096, 4096), (768, 3072))
"""The layers measured with all numbers of rows, and with `torch.compile`."""
ROWS = (1, 2, 4, 8, 16, 32, 64)
FEW_ROWS = (1, 8, 64)
MOST = 127


class Int8Linear(nn.Module):
    """A linear layer over int8 weights with a scale for each of their rows; rows of the input are quantized too."""

    weight: torch.Tensor
    scale: torch.Tensor

    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        scale = weight.abs().amax(1) / MOST
        self.register_buffer("weight", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """`x` [M, K] by the weights [N, K]."""
        scale = x.abs().amax(1, keepdim=True) / MOST
        rows = (x / scale).round().to(torch.int8)
        return torch._int_mm(rows, self.weight.t()) * scale * self.scale


@dataclass(frozen=True)
class Layer:
    """One layer: `rows` by weights of `k` inputs and `n` outputs."""

    rows: int
    k: int
    n: int
    dtype: str

    def inputs(self) -> Inputs:
        """Rows of standard-normal values."""
        x = torch.randn(self.rows, self.k, generator=torch.Generator().manual_seed(SEED))
        return (x.bfloat16() if self.dtype == "bf16" else x,)

    def module(self) -> nn.Module:
        """The layer with normal weights that keep the size of what goes through."""
        drawn = torch.randn(self.n, self.k, generator=torch.Generator().manual_seed(SEED + 1)) / self.k**0.5
        if self.dtype == "int8":
            return Int8Linear(drawn).eval()
        linear = nn.Linear(self.k, self.n, bias=False)
        linear.weight = nn.Parameter(drawn, requires_grad=False)
        return (linear.bfloat16() if self.dtype == "bf16" else linear).eval()

    def ours(self, module: nn.Module, inputs: Inputs) -> Call:
        """Tessera's product with a constant."""
        (x,) = inputs
        weight = op.constant(cast(torch.Tensor, module.weight))
        if isinstance(module, Int8Linear):
            scale = module.scale
            return lambda: op.int8_linear(x, weight, scale).eval()
        turned = weight.T
        return lambda: op.matmul(x, turned).eval()

    def job(self) -> Job:
        """The layer as the bench runs it."""
        itemsize = {"fp32": 4, "bf16": 2, "int8": 1}[self.dtype]
        ends = {"fp32": 4, "bf16": 2, "int8": 4}[self.dtype] * self.rows * (self.k + self.n)
        onednn = Peer(_onednn_int8 if self.dtype == "int8" else _onednn)
        return Job(
            name=f"{self.dtype} {self.rows} x {self.k} by {self.k} x {self.n}",
            goal=None,
            inputs=self.inputs,
            module=self.module,
            ours=self.ours,
            tolerance=TOLERANCE[self.dtype],
            peers={"oneDNN packed": onednn} | ({"MKL packed": Peer(_mkl, "mkl")} if self.dtype == "fp32" else {}),
            flops=2 * self.rows * self.k * self.n,
            bytes=self.k * self.n * itemsize + ends,
            dtype=self.dtype,
            group=Group(f"{self.dtype} layers of 1 to 64 rows", LEAST),
            reference=_exact if self.dtype == "int8" else None,
            compiles=(self.k, self.n) in COMPILED and self.rows in FEW_ROWS,
        )


def _exact(module: nn.Module, inputs: Inputs) -> torch.Tensor:
    """What the float weights that the bytes stand for give, in float64."""
    assert isinstance(module, Int8Linear)
    return inputs[0].double() @ (module.weight.double() * module.scale.double()[:, None]).T


def _onednn(module: nn.Module, inputs: Inputs) -> Call:
    """oneDNN's linear over weights that it reordered."""
    (x,) = inputs
    with onednn_packs():
        packed = torch.ops.mkldnn._reorder_linear_weight(module.weight, x.shape[0])
    linear = torch.ops.mkldnn._linear_pointwise.default
    return lambda: linear(x, packed, None, "none", [], "")


def _mkl(module: nn.Module, inputs: Inputs) -> Call:
    """MKL's product over weights that it packed."""
    if not torch._C.has_mkl:
        raise NotMeasuredError("this torch has no MKL")
    (x,) = inputs
    weight, rows = module.weight, x.shape[0]
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    linear = torch.ops.mkl._mkl_linear.default
    return lambda: linear(x, packed, weight, None, rows)


def _onednn_int8(module: nn.Module, inputs: Inputs) -> Call:
    """oneDNN's quantized linear over packed weights. Its input is quantized beforehand: what it does not have to do."""
    assert isinstance(module, Int8Linear)
    (x,) = inputs
    rows, scale = x.shape[0], float(x.abs().max()) / MOST
    quantized = ((x / scale).round() + 128).to(torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(module.weight, [rows, x.shape[1]])
    zeros = torch.zeros(module.weight.shape[0], dtype=torch.int32)
    linear = torch.ops.onednn.qlinear_pointwise.default
    settings: tuple[object, ...] = (None, 1.0, 0, torch.float32, "none", [], "")
    scales = module.scale
    return lambda: linear(quantized, scale, 128, packed, scales, zeros, *settings)


def _layers(quick: bool) -> Iterator[Layer]:
    if quick:
        for dtype in TOLERANCE:
            yield Layer(3, 96, 80, dtype)
        return
    for dtype in TOLERANCE:
        for k, n in LAYERS:
            rows = ROWS if (k, n) in COMPILED else FEW_ROWS
            for count in rows:
                yield Layer(count, k, n, dtype)


def jobs(quick: bool) -> list[Job]:
    """The suite `skinny`."""
    return [layer.job() for layer in _layers(quick)]
