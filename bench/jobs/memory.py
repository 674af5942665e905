"""The memory a job needs while it is served: ``python -m bench.jobs.memory THEME NAME CONTENDER QUICK THREADS``.

Runs in a process of its own and prints one JSON object of bytes. Source: Linux, ``Documentation/filesystems/proc.rst``:
"5" written to ``clear_refs`` sets the peak resident set size (VmHWM) back to the present one.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from bench.environments import NotMeasuredError, environment

ROOT = Path(__file__).resolve().parents[2]
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
    variables = environment(environment_name, threads)
    command = [sys.executable, "-m", "bench.jobs.memory", theme, name, contender, str(int(quick)), str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NotMeasuredError(f"memory of '{contender}': code {done.returncode}: {lines[-1][:200] if lines else ''}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


def main(theme: str, name: str, contender: str, quick: bool, threads: int) -> None:
    """Measures and prints. Libraries that print to stdout print to stderr instead."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    print(json.dumps(peaks(theme, name, contender, quick)), file=answers, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4] == "1", int(sys.argv[5]))
