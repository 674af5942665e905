"""How long the first call of a compiled model takes, of which a process knows nothing yet but its imports.

Inductor compiles as it does by itself (`mode="default"`), with as many processes as it likes.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import tessera.torch  # noqa: F401
from bench.environments import environment
from bench.jobs import alone, contenders, find

SETS_THREADS = "TORCHINDUCTOR_COMPILE_THREADS"


def seconds(theme: str, name: str, contender: str, quick: bool) -> dict[str, float]:
    """`seconds` of the first call, model and inputs made before. Raises NotMeasuredError where it cannot run."""
    import torch._inductor.compile_fx  # before the clock starts, and only where it does

    job = find(theme, name, quick)
    module, inputs = job.module(), job.inputs()
    began = time.perf_counter()
    if contender == contenders.COMPILED:
        torch.compile(module, dynamic=False)(*inputs)
    else:
        contenders.build(job, contender, module, inputs)()
    return {"seconds": time.perf_counter() - began}


def measure(
    theme: str, name: str, contender: str, environment_name: str, quick: bool, threads: int
) -> dict[str, float]:
    """Seconds of the first call of two fresh processes: `cold` finds empty caches, `warm` what that one left. Raises
    NotMeasuredError as `seconds`.
    """
    variables = environment(environment_name, threads)
    variables.pop(SETS_THREADS, None)
    with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
        for key in ("TESSERA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
            variables[key] = str(Path(folder) / key)
        return {
            found: alone.ask("first_call", theme, name, contender, quick, threads, variables)["seconds"]
            for found in ("cold", "warm")
        }


if __name__ == "__main__":
    alone.answer(seconds)
