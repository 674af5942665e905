"""What is measured on GPUs: operands, our ways to compute each case, and those of others."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import torch

import tessera
from tessera import op
from tessera.dtypes import DType
from tessera.scheduling.families.product.gpu.choice import STARTS, WAYS
from tessera.scheduling.language.schedule import Schedule


class Evaluated(Protocol):
    """What is computed when it is asked for: a tensor, or several that are computed together."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its extents."""

    @property
    def dtype(self) -> DType:
        """The dtype of its elements."""

    def eval(self, out: torch.Tensor | None = None) -> Any:
        """Computes it, into `out` where that is given."""


Ours = Callable[[], Any]
"""What gives something to evaluate: `Evaluated`, as tensors are."""
Theirs = Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Place:
    """Where a case runs: the `memory` that torch takes and the `device` of Tessera (alike but for the interpreter)."""

    memory: str = "cuda"
    device: str = "cuda"

    def normal(self, *shape: int, dtype: torch.dtype, scale: float = 1.0) -> torch.Tensor:
        """Standard-normal values times `scale`."""
        return (torch.randn(*shape, device=self.memory) * scale).to(dtype)

    def given(self, tensor: torch.Tensor) -> tessera.Tensor:
        """A tensor as Tessera takes it."""
        return op.tensor(tensor, device=self.device)


@dataclass(frozen=True)
class Made:
    """A case with its operands: `ours` by schedule, peers by name (built when asked for, since some compile for long),
    and what both are checked against, in float64 where it is small enough.
    """

    ours: Mapping[str, Ours]
    peers: Mapping[str, Callable[[], Theirs]]
    reference: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Case:
    """One case. `work` is floating-point operations or bytes, as `unit` says ("TFLOP/s" or "GB/s"); an error relative
    to the largest element of at most `tolerance` is right. `goals` are (peer, least ratio of its time to ours).
    """

    suite: str
    label: str
    work: float
    unit: str
    tolerance: float
    make: Callable[[Place], Made]
    goals: Mapping[str, float] = field(default_factory=dict)


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
COMPILED = "torch.compile max-autotune"


def _compiled(function: Callable[..., torch.Tensor], mode: str | None, *arguments: torch.Tensor) -> Theirs:
    compiled = torch.compile(function, mode=mode, dynamic=False)
    compiled(*arguments)
    return partial(compiled, *arguments)


def _scheduled(build: Callable[[], Any]) -> dict[str, Ours]:
    """A product under its default schedule, and under the first starts, each with every way to move its operands: `pin`
    refuses what is not legal.
    """
    found: dict[str, Ours] = {"default": build}
    for (tile, stages, warps), moved in itertools.product(STARTS[:5], MOVED):
        knobs: dict[str, Any] = {"tile": tile, "pipeline_depth": stages, "warps": warps, **moved}
        found[str(Schedule(knobs))] = partial(_pinned, build, **knobs)
    return found


MOVED: tuple[Mapping[str, Any], ...] = ({}, *WAYS)
"""By pointers, and the ways that default schedules take."""


def _pinned(build: Callable[[], Any], **knobs: Any) -> Any:
    return build().pin(**knobs)


# -- products ---------------------------------------------------------------------------------------------------------

SQUARES = (1024, 2048, 4096, 8192)
LLAMA_8B = {"qkv": (6144, 4096), "out": (4096, 4096), "gate+up": (28672, 4096), "down": (4096, 14336)}
"""Layer -> (N, K) of Llama 3 8B, "The Llama 3 Herd of Models", table 3."""
TOKENS = (128, 2048, 8192)


def _product(m: int, n: int, k: int, place: Place) -> Made:
    a = place.normal(m, k, dtype=torch.bfloat16)
    weight = place.normal(n, k, dtype=torch.bfloat16, scale=k**-0.5)
    x, w = place.given(a), place.given(weight)
    return Made(
        _scheduled(lambda: op.matmul(x, w.T)),
        {"cuBLAS": lambda: partial(torch.nn.functional.linear, a, weight)},
        lambda: torch.nn.functional.linear(a[:64].double(), weight.double()),
    )


def products() -> Iterator[Case]:
    """bf16 squares, and layers of Llama with their weights as [N, K]."""
    for size in SQUARES:
        yield Case(
            "matmul",
            f"bf16 {size} cubed",
            2.0 * size**3,
            "TFLOP/s",
            2e-2,
            partial(_product, size, size, size),
        )
    for tokens in TOKENS:
        for layer, (n, k) in LLAMA_8B.items():
            make = partial(_product, tokens, n, k)
            yield Case("matmul", f"bf16 Llama {layer}, {tokens} tokens", 2.0 * tokens * n * k, "TFLOP/s", 2e-2, make)


def _fp8_product(size: int, place: Place) -> Made:
    a, weight = (place.normal(size, size, dtype=torch.float8_e4m3fn, scale=0.25) for _ in range(2))
    x, w = place.given(a), place.given(weight)
    one = torch.ones((), device=place.memory)
    scaled = partial(torch._scaled_mm, a, weight.T, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    return Made(
        # The exact cast makes the result bf16 without rounding it to 8 bits; 8 bits by 8 bits are multiplied.
        _scheduled(lambda: op.matmul(op.cast(x, "bf16"), w.T)),
        {"cuBLASLt (torch._scaled_mm)": lambda: scaled},
        lambda: a[:64].double() @ weight.double().T,
    )


def fp8_products() -> Iterator[Case]:
    """fp8_e4m3 squares with bf16 results."""
    for size in (2048, 4096, 8192):
        make = partial(_fp8_product, size)
        goals = {"cuBLASLt (torch._scaled_mm)": 0.9}
        yield Case("fp8", f"e4m3 {size} cubed", 2.0 * size**3, "TFLOP/s", 2e-2, make, goals)


def _linear_gelu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, weight, bias))


def _fused_product(m: int, n: int, k: int, place: Place) -> Made:
    a, bias = place.normal(m, k, dtype=torch.bfloat16), place.normal(n, dtype=torch.bfloat16)
    weight = place.normal(n, k, dtype=torch.bfloat16, scale=k**-0.5)
    x, w, b = place.given(a), place.given(weight), place.given(bias)
    return Made(
        _scheduled(lambda: op.gelu(op.matmul(x, w.T) + b)),
        {
            "cuBLAS, then an eager gelu": lambda: partial(_linear_gelu, a, weight, bias),
            COMPILED: lambda: _compiled(_linear_gelu, "max-autotune-no-cudagraphs", a, weight, bias),
        },
        lambda: _linear_gelu(a[:64].double(), weight.double(), bias.double()),
    )


def fused_products() -> Iterator[Case]:
    """matmul + bias + gelu in bf16."""
    for m, n, k in ((4096, 4096, 4096), (8192, 8192, 8192), (2048, 14336, 4096)):
        goals = {"cuBLAS, then an eager gelu": 1.1, COMPILED: 1.0}
        make = partial(_fused_product, m, n, k)
        yield Case("fused", f"bf16 gelu(x W + b) {m}x{n}x{k}", 2.0 * m * n * k, "TFLOP/s", 3e-2, make, goals)


# -- rows -------------------------------------------------------------------------------------------------------------

ROWS: Mapping[str, tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = {
    "softmax": (op.softmax, lambda x: torch.softmax(x, -1)),
    "log_softmax": (op.log_softmax, lambda x: torch.log_softmax(x, -1)),
    "layer_norm": (op.layer_norm, lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:])),
    "rms_norm": (partial(op.rms_norm, eps=1e-6), lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], eps=1e-6)),
    "gelu(2x + 1)": (lambda x: op.gelu(x * 2.0 + 1.0), lambda x: torch.nn.functional.gelu(x * 2.0 + 1.0)),
}
"""Name -> (ours, torch's)."""
COPY = "copy of as many bytes"


def _row_kernel(name: str, shape: Sequence[int], dtype: str, place: Place) -> Made:
    ours, theirs = ROWS[name]
    values = place.normal(*shape, dtype=DTYPES[dtype])
    x, target = place.given(values), torch.empty_like(values)
    return Made(
        {"default": lambda: ours(x)},
        {
            COPY: lambda: partial(target.copy_, values),
            "torch": lambda: partial(theirs, values),
            "torch.compile": lambda: _compiled(theirs, None, values),
        },
        lambda: theirs(values[:64].double()),
    )


def row_kernels() -> Iterator[Case]:
    """Row-wise kernels and an elementwise chain, from 64 MB up, against a copy and torch.compile."""
    for dtype, shapes in (("fp32", ((4096, 4096), (16384, 8192))), ("bf16", ((8192, 4096), (32768, 8192)))):
        for shape in shapes:
            for name in ROWS:
                work = 2.0 * shape[0] * shape[1] * DTYPES[dtype].itemsize
                label = f"{name} {dtype} {shape[0]}x{shape[1]}"
                tolerance = 1e-5 if dtype == "fp32" else 2e-2
                goals = {COPY: 0.9, "torch.compile": 1.0}
                yield Case("rows", label, work, "GB/s", tolerance, partial(_row_kernel, name, shape, dtype), goals)
