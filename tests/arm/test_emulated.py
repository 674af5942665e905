"""Every family of kernels as Arm code, run by an emulator and compared with float64."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch

from tessera import op, target
from tessera.handle import Tensor
from tests.arm.emulation import emulated, missing_tools
from tests.whole import some

_MISSING = missing_tools()
pytestmark = pytest.mark.skipif(_MISSING is not None, reason=_MISSING or "")

_TOLERANCE = {torch.float64: 1e-12, torch.float32: 3e-6, torch.bfloat16: 1e-2, torch.float16: 2e-3}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64).to(dtype)


def check(node: Tensor, reference: torch.Tensor, folder: Path, cpu: str = "neoverse-n1") -> None:
    """Compares with a float64 reference, relative to its largest finite element; NaN and inf must be where they are
    there.
    """
    found = emulated(node, target.arm_cpu(cpu), folder)
    assert found.shape == reference.shape
    tolerance = _TOLERANCE[found.dtype]
    finite = reference[reference.isfinite()]
    scale = max(1.0, float(finite.abs().max())) if finite.numel() else 1.0
    torch.testing.assert_close(found.double(), reference, rtol=tolerance, atol=tolerance * scale, equal_nan=True)


@pytest.mark.parametrize(
    ("cpu", "dtype", "extents"),
    some(
        product(
            target.ARM_CPUS,
            (torch.float32, torch.float64, torch.bfloat16, torch.float16),
            ((1, 1, 1), (13, 17, 19), (64, 48, 300)),
        ),
        lambda case: case[:2],
    ),
)
def test_products(cpu: str, dtype: torch.dtype, extents: tuple[int, int, int], tmp_path: Path) -> None:
    m, n, k = extents
    a, b = random(m, k, dtype=dtype), random(k, n, dtype=dtype)
    check(op.tensor(a) @ op.tensor(b), a.double() @ b.double(), tmp_path, cpu)


def test_a_batched_product_of_transposed_views_with_bias_and_gelu(tmp_path: Path) -> None:
    a, b, bias = random(3, 20, 21), random(3, 30, 20), random(30)
    product = op.matmul(op.tensor(a).transpose(), op.tensor(b).transpose())
    wanted = torch.nn.functional.gelu(a.double().mT @ b.double().mT + bias.double())
    check(op.gelu(product + op.tensor(bias)), wanted, tmp_path)


UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "exp": torch.exp,
    "log": torch.log,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "erf": torch.erf,
    "gelu": torch.nn.functional.gelu,
    "silu": torch.nn.functional.silu,
}


@pytest.mark.parametrize("name", UNARY)
def test_elementary_functions_with_nan_inf_and_denormals(name: str, tmp_path: Path) -> None:
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e-40, -1e-40, 80.0, -80.0, 1e30])
    x = torch.cat([random(91), special])
    if name == "silu":  # at -inf the definition x sigmoid(x) is inf times 0
        x = x[x != -math.inf]
    check(getattr(op, name)(op.tensor(x)), UNARY[name](x.double()), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("columns", [1, 7, 130])
def test_row_operators(dtype: torch.dtype, columns: int, tmp_path: Path) -> None:
    x, weight = random(5, columns, dtype=dtype), random(columns, dtype=dtype)
    wide, scale = x.double(), weight.double()
    check(op.softmax(op.tensor(x)), torch.softmax(wide, -1), tmp_path)
    normed = torch.nn.functional.rms_norm(wide, (columns,), scale, 1e-6)
    check(op.rms_norm(op.tensor(x), op.tensor(weight)), normed, tmp_path)


def test_layer_norm_over_strided_rows(tmp_path: Path) -> None:
    x = random(66, 9).t()
    check(op.layer_norm(op.tensor(x)), torch.nn.functional.layer_norm(x.double(), (66,)), tmp_path)


@pytest.mark.parametrize("axis", [None, 0, 1, 2])
def test_sums_along_every_axis(axis: int | None, tmp_path: Path) -> None:
    x = random(5, 11, 33)
    wanted = x.double().sum() if axis is None else x.double().sum(axis)
    check(op.sum(op.tensor(x), axis), wanted, tmp_path)


def test_maximum_propagates_nan(tmp_path: Path) -> None:
    x = random(4, 37)
    x[2, 5] = math.nan
    check(op.max(op.tensor(x), 1), x.double().amax(1), tmp_path)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8_e4m3", "fp8_e5m2"])
def test_rounding_to_narrow_dtypes_and_back(name: str, tmp_path: Path) -> None:
    x = torch.cat([random(200) * 20, torch.tensor([0.0, 1e-7, 3e-5, 440.0])])
    wanted = x.to(op.tensor(x[:1]).to(name).eval().torch().dtype).double()
    check(op.tensor(x).to(name).to("fp32"), wanted, tmp_path)


@pytest.mark.parametrize("causal", [False, True])
def test_attention(causal: bool, tmp_path: Path) -> None:
    q, k, v = random(2, 4, 19, 24), random(2, 2, 35, 24, seed=1), random(2, 2, 35, 24, seed=2)
    keys, values = (x.double().repeat_interleave(2, 1) for x in (k, v))
    scores = q.double() @ keys.mT / math.sqrt(24)
    if causal:
        hidden = torch.ones(19, 35, dtype=torch.bool).tril(35 - 19).logical_not()
        scores = scores.masked_fill(hidden, -math.inf)
    node = op.flash_attention(op.tensor(q), op.tensor(k), op.tensor(v), causal=causal)
    check(node, torch.softmax(scores, -1) @ values, tmp_path)


def test_several_steps_share_one_arena(tmp_path: Path) -> None:
    x, w = random(12, 40), random(40, 40)
    hidden = op.softmax(op.matmul(op.tensor(x), op.tensor(w)))
    wanted = torch.softmax(x.double() @ w.double(), -1) @ w.double()
    check(op.matmul(hidden, op.tensor(w)), wanted, tmp_path)
