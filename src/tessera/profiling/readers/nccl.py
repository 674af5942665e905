"""What names of NCCL's kernels tell: `ncclDevKernel_AllReduce_Sum_bf16_RING_LL(...)`."""

from __future__ import annotations

from typing import Final

import polars

_TYPE: Final = r"^nccl\w*?Kernel_?([A-Za-z]+?)_"
_TYPES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "sendrecv": "send_recv",
    "reduce": "reduce",
}


def is_collective(name: polars.Expr) -> polars.Expr:
    """Whether a kernel of that name is NCCL's."""
    return name.str.starts_with("nccl").fill_null(False)


def collective_type(name: polars.Expr, told: polars.Expr | None = None) -> polars.Expr:
    """The collective, as the specification writes it; `told` is what the source calls it, where it does."""
    found = name.str.extract(_TYPE) if told is None else polars.coalesce(told, name.str.extract(_TYPE))
    lower = found.str.to_lowercase()
    plain = lower.str.replace_all("[^a-z]|base|coalesced|into|tensor", "")
    return plain.replace_strict(_TYPES, default=lower, return_dtype=polars.String)


def algorithm(name: polars.Expr) -> polars.Expr:
    """`ring`, `tree` and so on; null where the name does not say."""
    return name.str.extract("_(RING|TREE|COLLNET|NVLS|PAT)").str.to_lowercase()
