"""Tessera as a contender. Runs inside worker processes."""

from __future__ import annotations

from collections.abc import Callable

import torch

import tessera
from bench.cases import EPSILON, Case, Inputs
from bench.peers import Builder, Call
from tessera import autotune, op


def tuned() -> None:
    """Makes kernels tune at their first call in this process; what the cache knows is not measured again."""
    autotune.enable(True, share="first_call")


def lazy(case: Case, inputs: Inputs) -> Callable[[], tessera.Tensor]:
    """Makes the case's lazy result."""
    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    calls: dict[str, Callable[[], tessera.Tensor]] = {
        "matmul": lambda: op.matmul(x, weight),
        "linear_gelu": lambda: op.gelu(op.matmul(x, weight) + bias),
        "softmax": lambda: op.softmax(x),
        "layer_norm": lambda: op.layer_norm(x, weight, bias, eps=EPSILON),
        "rms_norm": lambda: op.rms_norm(x, weight, eps=EPSILON),
        "gelu": lambda: op.gelu(x),
    }
    return calls[case.operation]


def fresh(case: Case, inputs: Inputs) -> Call:
    """Tessera, each call returning a fresh tensor."""
    make = lazy(case, inputs)
    return lambda: make().eval()


def out(case: Case, inputs: Inputs) -> Call:
    """Tessera writing into a torch tensor made beforehand."""
    make = lazy(case, inputs)
    width = inputs.weight.shape[-1] if case.is_product else inputs.x.shape[1]
    result = torch.empty(inputs.x.shape[0], width, dtype=inputs.x.dtype)
    return lambda: make().eval(result)


BUILDERS: dict[str, Builder] = {"tessera_fresh": fresh, "tessera_out": out}
