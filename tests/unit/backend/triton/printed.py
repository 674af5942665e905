"""Runs printed kernels; prints, as JSON, each one's largest error in units of its dtype's eps.

`python printed.py` runs them on the CPU, for which TRITON_INTERPRET=1 must be set: a program of its own, because Triton
reads that when it is imported. `python printed.py cuda` runs them, and more, on a GPU.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from xdsl.dialects.builtin import ModuleOp

from tessera import target
from tessera.backend.triton import TritonBackend
from tessera.dtypes import bf16, fp16, fp32, fp64
from tessera.scheduling.families.product.gpu import space as gpu_space
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.families.product.gpu.problem import contraction_gpu_problem
from tessera.scheduling.families.rows.gpu.chunks import lower_partial_gpu, two_steps
from tessera.scheduling.families.rows.gpu.lowering import lower_map_reduce_gpu, map_reduce_gpu_schedule
from tessera.scheduling.language.schedule import Schedule
from tessera.scheduling.lowering.spec import ContractionSpec, MapReduceSpec
from tessera.target import Target
from tests.unit.scheduling import specs

M, N, K = 37, 71, 53
DEVICE = sys.argv[1] if len(sys.argv) > 1 else "cpu"
ERRORS: dict[str, float] = {}


def this_gpu() -> Target:
    """The GPU that runs the kernels, by its architecture; an H100 where they are interpreted."""
    if DEVICE == "cpu":
        return target.gpu("h100")
    major, minor = torch.cuda.get_device_capability()
    return target.gpu(f"sm{major}{minor}")


def load(module: ModuleOp, folder: Path) -> Any:
    """The printed kernel as a Python module."""
    text = TritonBackend().emit(module, this_gpu(), "source")
    assert isinstance(text, str)
    path = folder / "kernel.py"
    path.write_text(text)
    described = importlib.util.spec_from_file_location("kernel", path)
    assert described is not None
    assert described.loader is not None
    kernel = importlib.util.module_from_spec(described)
    described.loader.exec_module(kernel)
    return kernel


def check(name: str, module: ModuleOp, inputs: list[Any], expected: torch.Tensor, dtype: torch.dtype) -> None:
    """Runs a kernel and notes its error against the float64 result."""
    poison = float("nan") if dtype.is_floating_point else -99
    out = torch.full(expected.shape, poison, dtype=dtype, device=DEVICE)
    placed = [value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in inputs]
    with tempfile.TemporaryDirectory() as folder:
        load(module, Path(folder)).launch(*placed, out)
    out = out.cpu()
    eps = torch.finfo(dtype).eps if dtype.is_floating_point else 1.0
    scale = expected.abs().max().clamp(min=1.0)
    ERRORS[name] = float((out.double() - expected.double()).abs().max() / scale / eps)


def products() -> None:
    """Matrix products: epilogue, prologue, transposed operands, batches, 16 and 64 bits."""
    schedule = Schedule(tile=(32, 64, 16), pipeline_depth=3, warps=4)
    a, b, bias = torch.randn(M, K), torch.randn(K, N), torch.randn(N)

    def run(name: str, spec: ContractionSpec, inputs: list[torch.Tensor], expected: torch.Tensor) -> None:
        check(name, lower_contraction_gpu(spec, schedule), list(inputs), expected, inputs[0].dtype)

    gelu = torch.nn.functional.gelu
    run(
        "bias gelu",
        specs.matmul(fp32, bias=True, activation="gelu"),
        [a, b, bias],
        gelu(a.double() @ b.double() + bias.double()),
    )
    run("prologue", specs.matmul(fp32, prologue="exp"), [a, b], a.double().exp() @ b.double())
    columns = specs.matmul(fp32, a_axes="km", b_axes="nk")
    run("transposed", columns, [a.T.contiguous(), b.T.contiguous()], a.double() @ b.double())
    batched = torch.randn(3, M, K)
    run("batch", specs.matmul(fp32, batch=("b0",), b_batch=()), [batched, b], batched.double() @ b.double())
    grouped = schedule.replace(tile=(16, 16, 16), group=2)
    check(
        "groups of rows",
        lower_contraction_gpu(specs.matmul(fp32, batch=("b0",), b_batch=()), grouped),
        [batched, b],
        batched.double() @ b.double(),
        torch.float32,
    )
    run("fp16", specs.matmul(fp16), [a.half(), b.half()], a.half().double() @ b.half().double())
    run("fp64 relu", specs.matmul(fp64, activation="relu"), [a.double(), b.double()], (a.double() @ b.double()).relu())


def rows() -> None:
    """Row kernels whole and in a loop, reductions either way, an elementwise kernel with a scalar."""
    x, weight, bias = torch.randn(5, N), torch.randn(N), torch.randn(N)

    def run(
        name: str,
        spec: MapReduceSpec,
        schedule: Schedule,
        inputs: list[Any],
        expected: torch.Tensor,
        dtype: torch.dtype,
    ) -> None:
        check(name, lower_map_reduce_gpu(spec, schedule), inputs, expected, dtype)

    looped = Schedule(tile=(1, 16), whole_row=False, warps=1)
    for dtype in (fp32, bf16, fp64):
        spec, narrow = specs.rows("softmax", dtype), x.to(dtype.torch)
        expected = narrow.double().softmax(-1)
        run(f"softmax {dtype}", spec, map_reduce_gpu_schedule(spec, N), [narrow], expected, dtype.torch)
        run(f"softmax loop {dtype}", spec, looped, [narrow], expected, dtype.torch)
    norm = specs.rows("layer_norm", fp32, 2, eps=1e-5)
    expected = torch.nn.functional.layer_norm(x.double(), (N,), weight.double(), bias.double())
    run("layer norm", norm, map_reduce_gpu_schedule(norm, N), [x, weight, bias], expected, torch.float32)
    references: dict[str, Callable[..., torch.Tensor]] = {"sum": torch.sum, "max": torch.amax, "mean": torch.mean}
    for kind, reference in references.items():
        for by_rows in (True, False):
            spec = specs.reduction(kind, fp32, by_rows)
            expected = reference(x.double(), dim=int(by_rows))
            name = f"{kind} {'rows' if by_rows else 'columns'}"
            run(name, spec, map_reduce_gpu_schedule(spec, N), [x], expected, torch.float32)
    spec = specs.reduction("argmax", fp32, by_rows=True)
    run("argmax", spec, map_reduce_gpu_schedule(spec, N), [x], x.argmax(1), torch.int64)
    several = Schedule(tile=(4, 128), whole_row=True, warps=1)
    run("several rows", specs.rows("softmax", fp32), several, [x], x.double().softmax(-1), torch.float32)
    steps = Schedule(tile=(4, 32), whole_row=False, warps=1)
    run("steps of columns", specs.reduction("mean", fp32, False), steps, [x], x.double().mean(0), torch.float32)
    parts = two_steps(specs.reduction("sum", fp32, by_rows=True))
    assert parts is not None
    partial = lower_partial_gpu(parts.first, Schedule(tile=(1, 16), warps=1, chunk=32))
    padded = torch.nn.functional.pad(x.double(), (0, -N % 32))
    check("chunks", partial, [x], padded.reshape(5, -1, 32).sum(2), torch.float32)
    spec = specs.add_scaled(fp32)
    run("scalar", spec, map_reduce_gpu_schedule(spec, N), [x, weight, 2.5], x.double() + 2.5 * weight, torch.float32)


def default_products() -> None:
    """Products of 16-bit operands under the schedules that this GPU gets, whole tiles and others."""
    for dtype in (bf16, fp16):
        for m, n, k in ((512, 512, 512), (1024, 1024, 1024), (2048, 1536, 1024), (1, 512, 256), (333, 257, 129)):
            a, b = torch.randn(m, k).to(dtype.torch), torch.randn(k, n).to(dtype.torch)
            spec = specs.matmul(dtype)
            problem = contraction_gpu_problem(spec, {"m": m, "n": n, "k": k}, this_gpu())
            module = lower_contraction_gpu(spec, gpu_space.default_schedule(problem))
            check(f"{dtype} {m}x{n}x{k}", module, [a, b], a.double() @ b.double(), dtype.torch)


if __name__ == "__main__":
    torch.manual_seed(0)
    products()
    rows()
    if DEVICE != "cpu":  # bf16 products are wrong in the interpreter of Triton 3.6
        default_products()
    json.dump(ERRORS, sys.stdout)
