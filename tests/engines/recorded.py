"""A run of two streams of a GPU, a collective beside kernels, and host calls that launch, as tools for GPUs expect."""

from __future__ import annotations

from typing import Any, Final

from tessera.profiling.trace.table import Trace, frame

STEPS: Final = 40
COMPUTE: Final = {"sgemm_128x64": 61_237, "softmax_warp": 17_001, "layer_norm": 9_313}
COLLECTIVE: Final = "ncclDevKernel_AllReduce"


def trace() -> Trace:
    """The run: in each step three kernels on stream 7, and a collective on stream 20 that begins beside the second."""
    rows: list[dict[str, Any]] = []
    at, number = 1_003, 0
    for step in range(STEPS):
        begin = at
        for place, (name, taken) in enumerate(COMPUTE.items()):
            number += 1
            rows.append(_host("cudaLaunchKernel", at - 900, 411, number))
            rows.append(_device("kernel", name, 7, at, taken + 13 * step, number))
            if place == 1:
                number += 1
                rows.append(_device("collective", COLLECTIVE, 20, at + 5_003, 40_007, number))
            at += taken + 13 * step + 1_777
        rows.append(_host(f"step {step}", begin - 950, at - begin, None, kind="region"))
        at += 30_011
    rows.sort(key=lambda row: (row["start_ns"], -row["dur_ns"]))
    names = list(dict.fromkeys(name for row in rows for name in row))
    events = frame({name: [row.get(name) for row in rows] for name in names})
    return Trace(events.lazy(), {"source": "tessera", "ranks": {"0": {"pid": 77}}})


def _host(name: str, at: int, taken: int, number: int | None, kind: str = "operator") -> dict[str, Any]:
    place = {"device": "cpu", "thread_id": 5, "rank": 0, "pid": 77}
    return {"kind": kind, "kernel_name": name, "start_ns": at, "dur_ns": taken, "correlation": number, **place}


def _device(kind: str, name: str, stream: int, at: int, taken: int, number: int) -> dict[str, Any]:
    place = {"device": "cuda:0", "stream_id": stream, "rank": 0, "pid": 77}
    return {"kind": kind, "kernel_name": name, "start_ns": at, "dur_ns": taken, "correlation": number, **place}
