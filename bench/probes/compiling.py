"""Measurements that need a process of their own: ``python -m bench.probes.compiling PROBE`` prints one JSON object."""

from __future__ import annotations

import copy
import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import tessera

SIDE = 512
LENGTHS = 512


def imports() -> dict[str, float]:
    """Seconds that ``import tessera`` takes once torch is imported."""
    import torch  # noqa: F401

    start = time.perf_counter()
    import tessera  # noqa: F401

    return {"seconds": time.perf_counter() - start}


def _operands() -> tuple[Any, Any]:
    import torch

    generator = torch.Generator().manual_seed(2)
    return torch.randn(SIDE, SIDE, generator=generator), torch.randn(SIDE, SIDE, generator=generator)


def first_matmul() -> dict[str, float]:
    """Seconds of the first matmul less those of the second, after another kernel has paid for the imports."""
    from tessera import op

    x, weight = _operands()
    op.exp(x[0]).eval()
    start = time.perf_counter()
    op.matmul(x, weight).eval()
    middle = time.perf_counter()
    op.matmul(x, weight).eval()
    return {"seconds": 2 * middle - start - time.perf_counter()}


def first_evaluation() -> dict[str, float]:
    """Seconds of a process' very first evaluation, the compiler's imports included."""
    from tessera import op

    x, weight = _operands()
    start = time.perf_counter()
    op.matmul(x, weight).eval()
    return {"seconds": time.perf_counter() - start}


def torch_first_matmul() -> dict[str, float]:
    """Seconds of ``torch.compile``'s first matmul, after another kernel has paid for its imports."""
    import torch

    x, weight = _operands()
    torch.compile(torch.exp)(x[0])
    compiled = torch.compile(torch.mm)
    start = time.perf_counter()
    compiled(x, weight)
    middle = time.perf_counter()
    compiled(x, weight)
    return {"seconds": 2 * middle - start - time.perf_counter()}


def lengths() -> dict[str, float]:
    """How many kernels 512 growing lengths of a product and of a softmax compile, and the seconds all calls took."""
    import torch

    from tessera import op

    @op.kernel
    def scores(query: tessera.Tensor, keys: tessera.Tensor) -> tessera.Tensor:
        return query @ keys

    @op.kernel
    def weights(scores: tessera.Tensor) -> tessera.Tensor:
        return op.softmax(scores)

    generator = torch.Generator().manual_seed(3)
    query, keys = op.tensor(torch.randn(8, 64, generator=generator)), torch.randn(64, LENGTHS, generator=generator)
    start = time.perf_counter()
    for length in range(1, LENGTHS + 1):
        weights(scores(query, op.tensor(keys[:, :length])).eval()).eval()
    seconds = time.perf_counter() - start
    compiled = {"product": len(scores.compilations()), "softmax": len(weights.compilations())}
    return {name: float(count) for name, count in compiled.items()} | {"seconds": seconds}


TOKENS = 128


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _block(module: Any, compute: Callable[[Any], Callable[[], object]]) -> dict[str, float]:
    """Of a block's first call, after another kernel has paid for the imports: the seconds that compiling took, and
    those that packing the weights took. `compute` makes a call of constants: a second set of them is packed anew, and
    needs no compiling.
    """
    from examples.gpt2_block import constants
    from tessera import op

    op.exp(_operands()[0][0]).eval()
    first, other = compute(constants(module)), compute(constants(copy.deepcopy(module)))
    cold, packing, warm = _seconds(first), _seconds(other), _seconds(first)
    return {"seconds": cold - packing, "packing": packing - warm}


def _gpt2(dtype: str) -> Any:
    from bench.jobs.blocks import DTYPES, normal
    from examples import gpt2_block

    module = gpt2_block.random_block(768, 12, DTYPES[dtype])
    return module, *normal(TOKENS, 768, dtype=dtype)


def gpt2_block(dtype: str) -> dict[str, float]:
    """Seconds that compiling a GPT-2-small block takes."""
    from examples import gpt2_block

    module, x = _gpt2(dtype)
    return _block(module, lambda weights: lambda: gpt2_block.block(x, weights, 12).eval())


def llama_block(dtype: str) -> dict[str, float]:
    """Seconds that compiling a block of a Llama-type model takes."""
    from bench.jobs.blocks import DTYPES, normal
    from examples import llama_block

    module = llama_block.random_block(2048, 32, 8, 5632, TOKENS, DTYPES[dtype])
    (x,) = normal(TOKENS, 2048, dtype=dtype)
    return _block(module, lambda weights: lambda: llama_block.block(x, weights, module.size).eval())


def torch_gpt2_block() -> dict[str, float]:
    """Seconds that ``torch.compile`` takes for a GPT-2-small block, without trying out other products."""
    import torch

    module, x = _gpt2("fp32")
    torch.set_grad_enabled(False)
    torch.compile(torch.exp)(x[0])
    compiled: Callable[[Any], object] = torch.compile(module, dynamic=False)
    return {"seconds": _seconds(lambda: compiled(x)) - _seconds(lambda: compiled(x))}


PROBES: dict[str, Callable[[], dict[str, float]]] = {
    "imports": imports,
    "first_matmul": first_matmul,
    "first_evaluation": first_evaluation,
    "torch_first_matmul": torch_first_matmul,
    "lengths": lengths,
    **{f"gpt2_block_{dtype}": partial(gpt2_block, dtype) for dtype in ("fp32", "bf16")},
    **{f"llama_block_{dtype}": partial(llama_block, dtype) for dtype in ("fp32", "bf16")},
    "torch_gpt2_block": torch_gpt2_block,
}


if __name__ == "__main__":
    sys.stdout.flush()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(PROBES[sys.argv[1]]()), file=answers, flush=True)
