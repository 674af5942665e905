"""What torch.profiler (Kineto) writes into Chrome traces, as columns of a trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import polars
from polars import col

from tessera.profiling.readers import nccl

KINDS: Final = {
    "gpu_memcpy": "memcpy",
    "gpu_memset": "memcpy",
    "cpu_op": "operator",
    "cuda_runtime": "operator",
    "cuda_driver": "operator",
    "hip_runtime": "operator",
}
"""Categories of slices; `kernel` is called so by both, and the others are regions."""

IGNORED: Final = ("Trace", "overhead", "ac2g", "fwdbwd")
"""Categories that tell nothing of the program: the profiler's own time, and arrows."""

ARGUMENTS: Final[Mapping[str, Any]] = {
    "device": polars.String(),
    "stream": polars.String(),
    "dtype": polars.String(),
    "bytes": polars.Float64(),
    "Collective name": polars.String(),
    "Input Dims": polars.String(),
    "In msg nelems": polars.Float64(),
    "memory bandwidth (GB/s)": polars.Float64(),
    "est. achieved occupancy %": polars.Float64(),
    "Total Allocated": polars.Float64(),
}

_ON_DEVICE: Final = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")
_BYTES: Final = {
    "Double": 8, "Long": 8, "Float": 4, "Int": 4, "BFloat16": 2, "Half": 2, "Short": 2, "Byte": 1, "Char": 1, "Bool": 1,
}  # fmt: skip


def wrote(others: Mapping[str, Any]) -> bool:
    """Whether Kineto wrote a file with these keys before its events."""
    return "schemaVersion" in others


def is_collective() -> polars.Expr:
    """Whether a kernel is one of NCCL's."""
    named = col("args.Collective name").is_not_null() | nccl.is_collective(col("name"))
    return (col("cat") == "kernel") & named


def is_memory() -> polars.Expr:
    """Whether an instant tells of memory that was taken or given back (`profile_memory=True`)."""
    return col("args.Total Allocated").is_not_null()


def columns() -> dict[str, polars.Expr]:
    """Columns by what Kineto's arguments say; null for events of others."""
    device = col("args.device").str.extract(r"^(\d+)$")
    on_device = col("cat").is_in(_ON_DEVICE)
    return {
        "device": polars.when(on_device & device.is_not_null()).then(polars.concat_str(polars.lit("cuda:"), device)),
        "stream_id": polars.when(on_device).then(col("args.stream").cast(polars.Int32, strict=False)),
        "shapes": col("args.Input Dims"),
        "memcpy_dir": col("name").str.extract(r"^Memcpy ([HD]to[HD])").str.to_lowercase().str.replace("to", "2"),
        "memcpy_gbps": col("args.memory bandwidth (GB/s)"),
        "sm_occupancy": col("args.est. achieved occupancy %") / 100,
        "collective_type": polars.when(is_collective()).then(
            nccl.collective_type(col("name"), col("args.Collective name"))
        ),
        "collective_algorithm": polars.when(is_collective()).then(nccl.algorithm(col("name"))),
        "value": col("args.Total Allocated"),
        "unit": polars.when(is_memory()).then(polars.lit("B")),
        "collective_bytes": col("args.In msg nelems")
        * col("args.dtype").replace_strict(_BYTES, default=None, return_dtype=polars.Float64),
    }


def metadata(others: Mapping[str, Any]) -> dict[str, Any]:
    """What the keys beside the events say of the source."""
    distributed = others.get("distributedInfo")
    rank = distributed.get("rank") if isinstance(distributed, dict) else None
    told: dict[str, Any] = {
        "source": "kineto" if wrote(others) else "chrome",
        "ranks": {str(rank if isinstance(rank, int) else 0): {"host": others.get("host_name")}},
    }
    devices = others.get("deviceProperties")
    if isinstance(devices, list) and devices:
        told["target"] = {"devices": devices}
    return told
