"""A run made by hand: 200 kernels of 5 kinds of work in 3 regions on 2 ranks, with collectives, marks and counters."""

from __future__ import annotations

import json
from typing import Any

from tessera.profiling.trace.table import Trace, frame
from tessera.target import Ceilings, ComputeCeiling, MemoryCeiling

HOSTILE = [
    "<img src=x onerror=\"document.title='hit'\">",
    "</script><script>document.title='hit'</script>",
    '"><b id=hit>bold</b>',
    "\x1b[31mred\u202egnirts\u2028line",
    "n" * 10_000,
]
WORK = [("matmul", 2e6, 3e4), ("matmul", 4e6, 6e4), ("softmax", 1e5, 4e4), ("gelu", 2e5, 8e4), ("norm", 3e5, 9e4)]
STACKS = ("train.py:3 <module>;model.py:7 forward", "train.py:3 <module>;model.py:9 forward")
CEILINGS = Ceilings(
    arch="test",
    name="a machine",
    source="measured",
    date="2026-01-01",
    compute=(ComputeCeiling("fp32", 2, 200e9), ComputeCeiling("bf16", 2, 210e9)),
    memory=(MemoryCeiling("L2", 2, 300e9), MemoryCeiling("DRAM", 2, 20e9)),
)


def whole_run(names: list[str] | None = None) -> Trace:
    """The run; `names` take the place of the operators' names."""
    events: list[dict[str, Any]] = []
    for rank in range(2):
        at = 1000 + 500 * rank
        for step in range(20):
            begin = at
            for region in range(3):
                opened = at
                for _ in range(5 if region == 0 else 0):
                    events.append({**_kernel(len(events), rank, at, names), "region": f"part {region}"})
                    at += 9_000
                events.append(_slice("region", f"part {region}", rank, opened, at - opened + 100))
                at += 500
            events.append(_slice("region", "step", rank, begin - 10, at - begin + 20))
            events.append(
                {
                    **_slice("collective", "all_reduce", rank, at + 100, 5_000),
                    "collective_type": "all_reduce",
                    "collective_bytes": float(1 << (10 + step % 4)),
                    "correlation": step,
                }
            )
            at += 6_000
            events.append({**_slice("mark", f"step {step}", rank, at, 0), "dur_ns": None})
            at += 1_000
        events.append({**_slice("counter", "loss", rank, at, 0), "dur_ns": None, "value": 0.5, "unit": ""})
    names_of = list(dict.fromkeys(name for event in events for name in event))
    rows = sorted(events, key=lambda event: (event["start_ns"], -(event["dur_ns"] or 0)))
    table = frame({name: [row.get(name) for row in rows] for name in names_of})
    last = max(row["start_ns"] + (row["dur_ns"] or 0) for row in rows)
    levels = [("L2", 1 << 20), ("DRAM", 1 << 34)]
    memory = [{"name": name, "size_bytes": size, "line_bytes": 64, "shared_by": 1} for name, size in levels]
    metadata = {
        "source": "tessera",
        "start_unix_ns": 1_700_000_000_000_000_000,
        "duration_ns": last + 2_000,
        "launched": 200,
        "recorded": 200,
        "dropped_reasons": {},
        "ranks": {"0": {"host": "node7", "pid": 1, "uncertainty_ns": 900}, "1": {"host": "node8", "pid": 2}},
        "target": {"kind": "cpu", "arch": "test", "name": "a machine", "cores": 2, "processors": 2, "memory": memory},
        "ceilings": json.loads(CEILINGS.to_json()),
        "plans": {},
    }
    return Trace(table.lazy(), metadata, {"tc_util_pct": "CPUs have no tensor cores"})


def _kernel(index: int, rank: int, at: int, names: list[str] | None) -> dict[str, Any]:
    name, flops, nbytes = WORK[index % len(WORK)]
    shown = names[index % len(names)] if names else name
    work = {"flops": flops, "bytes": nbytes, "dtype": "fp32", "workers": 2, "fused": name, "stack": STACKS[index % 2]}
    return {**_slice("kernel", f"{shown} kernel", rank, at, 3_000 + 37 * (index % 50)), "operator": shown, **work}


def _slice(kind: str, name: str, rank: int, at: int, taken: int) -> dict[str, Any]:
    place = {"rank": rank, "pid": rank + 1, "device": "cpu", "thread_id": 7 + rank}
    return {"kind": kind, "kernel_name": name, "start_ns": at, "dur_ns": taken, **place}
