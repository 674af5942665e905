"""A process that measures what profiling costs it: blocks with and without a profiler take turns, so that both meet the
same machine; times are those of the thread's CPU. Prints one JSON object.

    python -m bench.probes.profiling [--quick]
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, Final

import torch

from tessera import op, profile
from tessera.lazy.node import Node
from tessera.profiling.report.operators import by_operator
from tessera.profiling.ring import recorder
from tessera.runtime.plans import native

CALLS: Final = 2000
"""Of an operator in a block."""

_CELL_WORD: Final = 3
"""Of a frame: where the driver finds whether it records (`runtime/plans/native.py`)."""


def cpu_ns(call: Callable[[], object], calls: int) -> float:
    """The thread's CPU time of a call."""
    begin = time.thread_time_ns()
    for _ in range(calls):
        call()
    return (time.thread_time_ns() - begin) / calls


def added_ns(
    call: Callable[[], object], profiler: Callable[[], AbstractContextManager[object]], pairs: int
) -> list[float]:
    """By pair of blocks: what a call costs more with the profiler than right before without it."""
    cpu_ns(call, CALLS)
    found = []
    for _ in range(pairs):
        off = cpu_ns(call, CALLS)
        with profiler():
            found.append(cpu_ns(call, CALLS) - off)
    return found


@contextmanager
def torch_profiler() -> Iterator[None]:
    """torch's profiler as it is usually turned on, with shapes."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True):
        yield


def overheads(pairs: int) -> dict[str, list[float]]:
    """Added nanoseconds per operator."""
    x = torch.randn(16)
    lazy = op.tensor(x)

    def one() -> object:
        return op.exp(lazy).eval()

    def ten() -> object:
        y = lazy
        for _ in range(10):
            y = op.exp(y)
        return y.eval()

    def session() -> AbstractContextManager[object]:
        return profile.session(record_shapes=True)

    def with_torch() -> AbstractContextManager[object]:
        return profile.session(activities=["cpu", "torch"], record_shapes=True)

    return {
        "operator": added_ns(one, session, pairs),
        "operator of a chain": [each / 10 for each in added_ns(ten, session, pairs)],
        "operator, summary": added_ns(one, lambda: profile.session(mode="summary"), pairs),
        "torch operator, torch.profiler": added_ns(lambda: torch.exp(x), torch_profiler, pairs),
        "torch operator, Tessera": added_ns(lambda: torch.exp(x), with_torch, pairs),
        "nothing, control": added_ns(one, nullcontext, pairs),
    }


def without_session(pairs: int) -> list[float]:
    """What asking whether to record costs the native driver, in nanoseconds a kernel: a frame that asks against one
    that never does.
    """
    result: Node = op.exp(op.tensor(torch.randn(16)))
    plan: Any = result.structure
    result.eval()  # type: ignore[attr-defined]  # keeps the memory that the frame writes to
    plan = plan.plan
    frame = plan.frames.take()
    cell = ctypes.c_int64.from_address(frame.address + 8 * _CELL_WORD)
    run, address = native.driver().run, frame.address
    found = []
    for _ in range(pairs):
        cell.value = 0
        never = cpu_ns(lambda: run(address), CALLS)
        cell.value = recorder.CELL_ADDRESS
        found.append(cpu_ns(lambda: run(address), CALLS) - never)
    plan.frames.idle.append(frame)
    return found


def resident_bytes() -> int:
    """This process's resident memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def at_the_end(events: int) -> dict[str, float]:
    """What a session of so many kernels takes at its end, in nanoseconds and bytes an event."""
    lazy = op.tensor(torch.randn(16))
    op.exp(lazy).eval()
    before = resident_bytes()
    session = profile.session(record_shapes=True)
    with session:
        for _ in range(events):
            op.exp(lazy).eval()
    held = resident_bytes() - before
    found = {"launched": session.launched, "recorded": session.recorded, "memory": held / session.recorded}
    with tempfile.TemporaryDirectory() as folder:
        for name, exporter in {
            "json": profile.chrome(Path(folder) / "trace.json"),
            "parquet": profile.parquet(Path(folder) / "trace.parquet"),
        }.items():
            found[name] = _shortest_ns(lambda: exporter.export(session.trace())) / session.recorded  # noqa: B023
            path = next(Path(folder).glob(f"*.{name}"))
            found[f"{name} bytes"] = path.stat().st_size / session.recorded
    found["report"] = _shortest_ns(lambda: by_operator(session.recording.totals(), None)) / session.recorded
    return found


def _shortest_ns(call: Callable[[], object]) -> float:
    """Processor time of the shortest of three calls."""
    return min(_process_ns(call) for _ in range(3))


def _process_ns(call: Callable[[], object]) -> float:
    begin = time.process_time_ns()
    call()
    return time.process_time_ns() - begin


def sampling(seconds: float) -> dict[str, float]:
    """The share of a processor that sampling every 10 ms takes, in percent."""
    with profile.session(activities=["cpu", "power"], sample_interval_ms=10) as session:
        time.sleep(seconds)
    told = session.metadata()["sampling"]
    return {"ticks": told["ticks"], "missed": told["missed"], "share_pct": 100 * told["cpu_s"] / seconds}


def conservation(sessions: int) -> dict[str, int]:
    """Sessions with three threads, in every second one of which bursts overflow the ring: kernels launched, recorded,
    dropped, and sessions of which the sum is wrong.
    """
    lazy = op.tensor(torch.randn(16))
    op.exp(lazy).eval()

    def burst(count: int) -> None:
        for _ in range(count):
            op.exp(lazy).eval()

    small, usual = recorder.Ring(64), recorder.ring()
    total = {"launched": 0, "recorded": 0, "dropped": 0, "expected": 0, "wrong": 0}
    for number in range(sessions):
        recorder._ring = small if number % 2 else usual
        with profile.session() as session:
            threads = [threading.Thread(target=burst, args=(200,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        for name in ("launched", "recorded", "dropped"):
            total[name] += getattr(session, name)
        total["expected"] += 600
        total["wrong"] += session.launched != 600 or session.launched != session.recorded + session.dropped
    recorder._ring = usual
    return total


def main() -> None:
    """Measures all of it."""
    quick = "--quick" in sys.argv
    torch.set_num_threads(1)
    pairs = 3 if quick else 20
    found = {
        "overheads_ns": overheads(pairs),
        "without_session_ns": without_session(pairs),
        "at_the_end": at_the_end(5_000 if quick else 200_000),
        "sampling": sampling(0.5 if quick else 5.0),
        "conservation": conservation(4 if quick else 100),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
