"""The libraries a user has today, as contenders. Runs inside worker processes.

Each builder takes a case and its inputs and gives back a call without arguments that computes the result once. What a
library would do once per model (packing weights, compiling) a builder does once, untimed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from bench.cases import EPSILON, Case, Inputs
from bench.environments import NotMeasuredError

if TYPE_CHECKING:
    import torch

Call = Callable[[], object]
Builder = Callable[[Case, Inputs], Call]


def torch_fresh(case: Case, inputs: Inputs) -> Call:
    """torch eager, as a user writes it: each call returns a fresh tensor."""
    import torch
    from torch.nn import functional

    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    columns = (x.shape[-1],)
    calls: dict[str, Call] = {
        "matmul": lambda: torch.mm(x, weight),
        "linear_gelu": lambda: functional.gelu(torch.addmm(bias, x, weight)),
        "softmax": lambda: torch.softmax(x, -1),
        "layer_norm": lambda: functional.layer_norm(x, columns, weight, bias, EPSILON),
        "rms_norm": lambda: functional.rms_norm(x, columns, weight, EPSILON),
        "gelu": lambda: functional.gelu(x),
    }
    return calls[case.operation]


def torch_out(case: Case, inputs: Inputs) -> Call:
    """torch eager writing into tensors made beforehand.

    Raises:
        NotMeasuredError: torch has no such form of the operation.
    """
    import torch

    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    columns = [x.shape[-1]]
    aten = torch.ops.aten
    if case.operation == "rms_norm":
        raise NotMeasuredError("torch has no rms_norm with out= on CPUs")
    width = weight.shape[-1] if case.is_product else x.shape[1]
    out = torch.empty(x.shape[0], width, dtype=x.dtype)
    statistics = torch.empty(x.shape[0], 1, dtype=x.dtype)
    inverse = torch.empty_like(statistics)

    def linear_gelu() -> torch.Tensor:
        torch.addmm(bias, x, weight, out=out)
        return aten.gelu.out(out, out=out)  # type: ignore[no-any-return]

    def layer_norm() -> torch.Tensor:
        aten.native_layer_norm.out(x, columns, weight, bias, EPSILON, out0=out, out1=statistics, out2=inverse)
        return out

    calls: dict[str, Call] = {
        "matmul": lambda: torch.mm(x, weight, out=out),
        "linear_gelu": linear_gelu,
        "softmax": lambda: torch.softmax(x, -1, out=out),
        "layer_norm": layer_norm,
        "gelu": lambda: aten.gelu.out(x, out=out),
    }
    return calls[case.operation]


def onednn_linear(case: Case, inputs: Inputs) -> Call:
    """oneDNN's linear, weight packed beforehand, gelu fused: what `torch.compile` calls when it chooses oneDNN."""
    import torch

    x, bias = inputs.x, inputs.bias
    packed = torch.ops.mkldnn._reorder_linear_weight(inputs.weight.t().contiguous(), x.shape[0])
    linear = torch.ops.mkldnn._linear_pointwise.default
    if case.operation == "linear_gelu":
        return lambda: linear(x, packed, bias, "gelu", [], "none")
    return lambda: linear(x, packed, None, "none", [], "")


def mkl_packed(case: Case, inputs: Inputs) -> Call:
    """MKL's sgemm with the weight packed beforehand (`cblas_sgemm_compute`).

    Raises:
        NotMeasuredError: MKL's packed product is fp32 only, and this build of torch may have none.
    """
    import torch

    if case.dtype != "fp32":
        raise NotMeasuredError("MKL's packed product is fp32 only")
    if not torch._C.has_mkl:
        raise NotMeasuredError("this torch has no MKL")
    weight = inputs.weight.t().contiguous()
    x, rows = inputs.x, inputs.x.shape[0]
    packed = torch.ops.mkl._mkl_reorder_linear_weight(weight, rows)
    linear = torch.ops.mkl._mkl_linear.default
    if case.operation == "linear_gelu":
        bias = inputs.bias
        gelu = torch.ops.aten.gelu_.default
        return lambda: gelu(linear(x, packed, weight, bias, rows))
    return lambda: linear(x, packed, weight, None, rows)


def mkl_out(case: Case, inputs: Inputs) -> Call:
    """torch's product over MKL into a tensor made beforehand; torch hands bf16 to oneDNN, so fp32 only.

    Raises:
        NotMeasuredError: the case is bf16, or this build of torch has no MKL.
    """
    import torch

    if case.dtype != "fp32":
        raise NotMeasuredError("torch computes bf16 products with oneDNN, not MKL")
    if not torch._C.has_mkl:
        raise NotMeasuredError("this torch has no MKL")
    return torch_out(case, inputs)


def openblas(case: Case, inputs: Inputs) -> Call:
    """OpenBLAS' sgemm through numpy, into an array made beforehand.

    Raises:
        NotMeasuredError: numpy here uses another library, or the case is bf16, which numpy lacks.
    """
    import numpy

    if case.dtype != "fp32":
        raise NotMeasuredError("numpy, which carries OpenBLAS, has no bf16")
    blas = numpy.show_config(mode="dicts")["Build Dependencies"]["blas"]["name"]
    if "openblas" not in blas:
        raise NotMeasuredError(f"numpy here uses {blas}")
    x, weight = inputs.x.numpy(), inputs.weight.numpy()
    out = numpy.empty((x.shape[0], weight.shape[1]), numpy.float32)
    return lambda: numpy.matmul(x, weight, out=out)


def _compiled(case: Case, inputs: Inputs) -> tuple[Callable[[torch.Tensor], torch.Tensor], torch.Tensor]:
    """The case as a module of constant weights, which is what `torch.compile` optimizes best, and its input."""
    import torch
    from torch.nn import functional

    logging.getLogger("torch").setLevel(logging.ERROR)
    torch.set_grad_enabled(False)
    columns = (inputs.x.shape[-1],)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            weight = inputs.weight.t().contiguous() if case.is_product else inputs.weight
            self.weight = torch.nn.Parameter(weight, requires_grad=False)
            self.bias = torch.nn.Parameter(inputs.bias, requires_grad=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if case.operation == "matmul":
                return functional.linear(x, self.weight)
            if case.operation == "linear_gelu":
                return functional.gelu(functional.linear(x, self.weight, self.bias))
            if case.operation == "softmax":
                return torch.softmax(x, -1)
            if case.operation == "layer_norm":
                return functional.layer_norm(x, columns, self.weight, self.bias, EPSILON)
            if case.operation == "rms_norm":
                return functional.rms_norm(x, columns, self.weight, EPSILON)
            return functional.gelu(x)

    return Module().eval(), inputs.x


def torch_compiled(case: Case, inputs: Inputs) -> Call:
    """``torch.compile(mode="max-autotune")`` with frozen weights; each call returns a fresh tensor."""
    import torch

    module, x = _compiled(case, inputs)
    compiled = torch.compile(module, mode="max-autotune", dynamic=False)
    return lambda: compiled(x)


def torch_compiled_out(case: Case, inputs: Inputs) -> Call:
    """``torch.compile(mode="max-autotune")`` of a function that writes into a tensor made beforehand."""
    import torch

    module, x = _compiled(case, inputs)
    out = torch.empty_like(x)

    def into(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return out.copy_(module(x))

    compiled = torch.compile(into, mode="max-autotune", dynamic=False)
    return lambda: compiled(x, out)


BUILDERS: dict[str, Builder] = {
    "torch_fresh": torch_fresh,
    "torch_out": torch_out,
    "onednn_linear": onednn_linear,
    "mkl_packed": mkl_packed,
    "mkl_out": mkl_out,
    "openblas": openblas,
    "torch_compiled": torch_compiled,
    "torch_compiled_out": torch_compiled_out,
}
