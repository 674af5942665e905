"""Tessera as a contender. Runs inside worker processes."""

from __future__ import annotations

from typing import Any

from bench.cases import EPSILON, Case, Inputs
from bench.environments import NotMeasuredError
from bench.peers import Builder, Call


def tuned() -> None:
    """Makes kernels tune at their first call in this process; what the cache knows is not measured again."""
    from tessera import autotune

    autotune.enable(True)


def fresh(case: Case, inputs: Inputs) -> Call:
    """Tessera, each call returning a fresh tensor."""
    from tessera import op

    x, weight, bias = inputs.x, inputs.weight, inputs.bias

    @op.kernel
    def linear_gelu(x: Any, weight: Any, bias: Any) -> Any:
        return op.gelu(x @ weight + bias)

    calls: dict[str, Call] = {
        "matmul": lambda: op.matmul(x, weight).eval(),
        "linear_gelu": lambda: linear_gelu(x, weight, bias).eval(),
        "softmax": lambda: op.softmax(x).eval(),
        "layer_norm": lambda: op.layer_norm(x, weight, bias, eps=EPSILON).eval(),
        "rms_norm": lambda: op.rms_norm(x, weight, eps=EPSILON).eval(),
        "gelu": lambda: op.gelu(x).eval(),
    }
    return calls[case.operation]


def out(case: Case, inputs: Inputs) -> Call:
    """Tessera writing into a torch tensor made beforehand.

    Raises:
        NotMeasuredError: the operator takes no `out=`.
    """
    import torch

    from tessera import op

    x, weight, bias = inputs.x, inputs.weight, inputs.bias
    width = weight.shape[-1] if case.is_product else x.shape[1]
    result = torch.empty(x.shape[0], width, dtype=x.dtype)
    calls: dict[str, Call] = {
        "matmul": lambda: op.matmul(x, weight, out=result).eval(),
        "softmax": lambda: op.softmax(x, out=result).eval(),
        "layer_norm": lambda: op.layer_norm(x, weight, bias, eps=EPSILON, out=result).eval(),
        "rms_norm": lambda: op.rms_norm(x, weight, eps=EPSILON, out=result).eval(),
        "gelu": lambda: op.gelu(x, out=result).eval(),
    }
    if case.operation not in calls:
        raise NotMeasuredError(f"no out= form of {case.operation}")
    call = calls[case.operation]
    try:
        call()
    except TypeError as mismatch:
        raise NotMeasuredError(f"the operator takes no out=: {mismatch}") from mismatch
    return call


BUILDERS: dict[str, Builder] = {"tessera_fresh": fresh, "tessera_out": out}
