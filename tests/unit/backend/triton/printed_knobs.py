"""Runs printed products under each knob, as `printed.py` runs kernels: three programs walk where programs walk.

On a GPU 16-bit products run too, and warps are specialized; interpreted, all loads and stores are numpy's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace

import torch

from tessera.dtypes import DType, bf16, fp16, fp32
from tessera.scheduling.families.product.gpu.lowering import lower_contraction_gpu
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tests.unit.backend.triton import printed
from tests.unit.scheduling import specs

M, N, K = 37, 136, 56
"""Rows that nothing divides; strides that descriptors take."""
SMALL = Schedule(tile=(16, 64, 16), warps=4, pipeline_depth=3, group=2)
COPIED: dict[str, KnobValue] = {"a_indexing": "host_descriptor", "b_indexing": "host_descriptor"}
KNOBS: Mapping[str, dict[str, KnobValue]] = {
    "persistent": {"grid": "persistent"},
    "fused": {"grid": "fused"},
    "host descriptors": {**COPIED, "out_indexing": "host_descriptor"},
    "device descriptors": dict.fromkeys(("a_indexing", "b_indexing", "out_indexing"), "device_descriptor"),
    "walking descriptors": {**COPIED, "grid": "persistent", "epilogue_parts": 2, "out_indexing": "host_descriptor"},
    "two parts": {"epilogue_parts": 2},
    "four parts": {"epilogue_parts": 4, "grid": "fused"},
    "registers": {"max_registers": 96},
    "vectors": {"vector_bytes": 16},
    "evictions": {"pipeline_depth": 1, "a_eviction": "first", "b_eviction": "last", "out_eviction": "first"},
}
SPECIALIZED: Mapping[str, dict[str, KnobValue]] = {
    "specialized": {**COPIED, "tile": (128, 128, 64), "warp_specialize": True},
    "specialized walk": {**COPIED, "tile": (128, 128, 64), "warp_specialize": True, "grid": "persistent"},
}


def products(dtype: DType, knobs: Mapping[str, dict[str, KnobValue]]) -> None:
    """`gelu(A @ B + bias)` under every knob, and a batch of transposed operands by descriptors."""
    a, b, bias = (torch.randn(shape).to(dtype.torch) for shape in ((M, K), (K, N), (N,)))
    expected = torch.nn.functional.gelu(a.double() @ b.double() + bias.double())
    for name, changes in knobs.items():
        module = lower_contraction_gpu(specs.matmul(dtype, bias=True, activation="gelu"), SMALL.replace(**changes))
        printed.check(f"{dtype} {name}", module, [a, b, bias], expected, dtype.torch)
    batch = torch.randn(3, K, 40).to(dtype.torch)
    spec = specs.matmul(dtype, a_axes="km", batch=("b0",), b_batch=())
    copied = SMALL.replace(**COPIED, out_indexing="device_descriptor", grid="persistent")
    product = batch.double().transpose(1, 2) @ b.double()
    printed.check(f"{dtype} batch", lower_contraction_gpu(spec, copied), [batch, b], product, dtype.torch)


if __name__ == "__main__":
    torch.manual_seed(0)
    gpu = replace(printed.this_gpu(), cores=3)
    printed.this_gpu = lambda: gpu
    if printed.DEVICE == "cpu":  # bf16 products are wrong in the interpreter of Triton 3.6
        products(fp32, {**KNOBS, **SPECIALIZED})
        products(fp16, KNOBS)
    else:
        products(fp32, KNOBS)
        products(bf16, {**KNOBS, **SPECIALIZED})
    json.dump(printed.ERRORS, sys.stdout)
