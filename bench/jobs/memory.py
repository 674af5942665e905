"""The memory a job needs while it is served, in bytes.

Source: Linux, ``Documentation/filesystems/proc.rst``:
"5" written to ``clear_refs`` sets the peak resident set size (VmHWM) back to the present one.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from pathlib import Path

from bench.environments import NotMeasuredError, environment
from bench.jobs import alone

_STATUS = Path("/proc/self/status")
CLEAR = Path("/proc/self/clear_refs")
WARM_CALLS = 3
MEASURED_CALLS = 5


def resident(field: str) -> int:
    """Bytes in the line `field` of this process' status: ``VmRSS`` now, ``VmHWM`` at its peak."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{field}:"))
    return int(line.split()[1]) * 1024


def _release() -> None:
    """Gives back all that nobody uses: garbage, Tessera's reserve, and what malloc keeps."""
    gc.collect()
    if "tessera" in sys.modules:
        sys.modules["tessera"].empty_cache()
    ctypes.CDLL(None).malloc_trim(0)


def peaks(theme: str, name: str, contender: str, quick: bool) -> dict[str, float]:
    """Bytes of a process that serves calls: `serving`, its peak with weights, packed copies and interpreter;
    `call`, how much of it comes and goes with the calls, the reserve included.

    Raises NotMeasuredError where Linux does not say, or where the contender cannot run.
    """
    from bench.jobs import contenders, find

    if not CLEAR.exists():
        raise NotMeasuredError("the peak of the resident set is Linux's to say")
    job = find(theme, name, quick)
    module, inputs = job.module(), job.inputs()
    call = contenders.build(job, contender, module, inputs)
    for _ in range(WARM_CALLS):
        call()
    _release()
    floor = resident("VmRSS")
    CLEAR.write_text("5")
    for _ in range(MEASURED_CALLS):
        call()
    peak = resident("VmHWM")
    return {"serving": float(peak), "call": float(max(0, peak - floor))}


def measure(
    theme: str, name: str, contender: str, environment_name: str, quick: bool, threads: int
) -> dict[str, float]:
    """`peaks` of a fresh process in that environment. Raises NotMeasuredError when it fails, with its last words."""
    return alone.ask("memory", theme, name, contender, quick, threads, environment(environment_name, threads))


if __name__ == "__main__":
    alone.answer(peaks)
