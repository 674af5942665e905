"""What compiling costs: first use, disk cache, growing lengths, imports. Every figure comes from fresh processes."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.environments import NotMeasuredError, environment
from bench.pool import Pool
from bench.results import Figure, SuiteResult

ROOT = Path(__file__).resolve().parents[2]
REPEATS = 5
MILLI = 1e3


def probe(name: str, threads: int, environment_name: str, caches: Path) -> dict[str, float]:
    """Runs `bench.probes.compiling` in a fresh process whose Tessera and torch caches lie under `caches`.

    Raises:
        NotMeasuredError: the environment cannot be had, or the process failed.
    """
    variables = environment(environment_name, threads)
    variables.update(TESSERA_CACHE_DIR=str(caches / "tessera"), TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"))
    command = [sys.executable, "-m", "bench.probes.compiling", name]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        raise NotMeasuredError(f"probe '{name}' ended with code {done.returncode}: {lines[-1][:200] if lines else ''}")
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


@dataclass(frozen=True)
class Row:
    """One figure: its name, who is measured, by which probe, which field of the answer it is, and the most allowed."""

    name: str
    contender: str
    probe: str
    field: str = "seconds"
    limit: float | None = None
    keeps_cache: bool = False
    """Whether the processes find the caches that a first one filled, rather than empty ones."""

    @property
    def environment(self) -> str:
        """The environment of the processes."""
        return "tessera" if self.contender == "tessera" else "compile"

    def measure(self, threads: int, repeats: int) -> float:
        """Median of `field` over `repeats` fresh processes. Raises `NotMeasuredError` when one fails."""
        with tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder:
            caches = [Path(folder) / ("0" if self.keeps_cache else str(index)) for index in range(repeats)]
            if self.keeps_cache:
                probe(self.probe, threads, self.environment, caches[0])
            return statistics.median(probe(self.probe, threads, self.environment, each)[self.field] for each in caches)


ROWS = (
    Row("import beyond torch's", "tessera", "imports", limit=150.0),
    Row("first matmul, imports done", "tessera", "first_matmul", limit=150.0),
    Row("first matmul, imports done", "torch.compile", "torch_first_matmul"),
    Row("first matmul, from disk cache", "tessera", "first_matmul", limit=10.0, keeps_cache=True),
    Row("first matmul, from disk cache", "torch.compile", "torch_first_matmul", keeps_cache=True),
    Row("first evaluation, imports included", "tessera", "first_evaluation"),
    Row("512 growing lengths of a product: kernels", "tessera", "lengths", "product", limit=4.0),
    Row("512 growing lengths of a softmax: kernels", "tessera", "lengths", "softmax", limit=4.0),
    Row("512 growing lengths of both: all calls", "tessera", "lengths"),
)

BLOCKS = ("gpt2_block_fp32", "gpt2_block_bf16", "llama_block_fp32", "llama_block_bf16")
BLOCK_ROWS = (
    *[Row(f"{name.replace('_', ' ')}, imports done", "tessera", name, limit=1500.0) for name in BLOCKS],
    Row("gpt2 block fp32, imports done", "torch.compile", "torch_gpt2_block"),
    *[
        Row(f"{name.replace('_', ' ')}, from disk cache", "tessera", name, limit=50.0, keeps_cache=True)
        for name in BLOCKS
    ],
    Row("gpt2 block fp32, from disk cache", "torch.compile", "torch_gpt2_block", keeps_cache=True),
    Row("gpt2 block fp32, packing its weights", "tessera", "gpt2_block_fp32", "packing", keeps_cache=True),
)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count."""
    result = SuiteResult("compile", pool.threads)
    for row in (*ROWS, *BLOCK_ROWS[: 1 if quick else None]):
        progress(f"compile, {pool.threads} threads: {row.name}, {row.contender}")
        timed = row.field in ("seconds", "packing")
        value, reason = None, None
        try:
            measured = row.measure(pool.threads, 1 if quick else REPEATS)
            value = MILLI * measured if timed else measured
        except NotMeasuredError as failure:
            reason = str(failure)
        unit = "ms" if timed else ""
        result.figures.append(Figure(row.name, row.contender, pool.threads, unit, value, row.limit, reason))
    return result
