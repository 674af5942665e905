"""Collectives between processes of this machine, ours against torch.distributed's over Gloo: checked, then timed by
turns in the same ranks. Ratios are torch's time over ours, of the fastest rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench.environments import environment
from bench.pool import Pool
from bench.results import Figure, SuiteResult

ROOT = Path(__file__).resolve().parents[2]
NAME = "mesh"
RANKS = (2, 4)

LEAST: Final = {
    ("all-reduce one host", 4096, 2): 30.0,
    ("all-reduce one host", 4096, 4): 30.0,
    ("all-reduce one host", 64 << 20, 2): 5.0,
    ("all-reduce one host", 64 << 20, 4): 8.0,
    **{("reduce-scatter Gloo", size << 20, ranks): 2.3 for size in (1, 16, 64) for ranks in RANKS},
    **{("all-gather Gloo", size << 20, ranks): 2.0 for size in (1, 16, 64) for ranks in RANKS},
}
"""By case, bytes and ranks, the ratio that is to be reached."""


def measured(ranks: int, threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """What the ranks of `bench.mesh_probe` found, case by case."""
    command = [sys.executable, "-m", "tessera", "run", "--ranks", str(ranks), "--threads", str(threads)]
    command += ["bench/mesh_probe.py", *(["--quick"] if quick else [])]
    variables = environment("tessera", threads)
    variables["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    for line in done.stdout.splitlines():
        if line.startswith("[0] {"):
            yield json.loads(line.removeprefix("[0] "))


def figure(case: dict[str, Any], threads: int) -> Figure:
    """A case's ratio, with both times."""
    ours, peer, size = min(case["ours"]), min(case["peer"]), case["bytes"]
    told = f"{size // 1024} KiB" if size < 1 << 20 else f"{size >> 20} MiB"
    note = f"{1e6 * ours:.1f} us, torch {1e6 * peer:.1f} us; fastest of {len(case['ours'])} rounds each"
    least = LEAST.get((case["name"], size, case["ranks"]))
    return Figure(
        f"{case['name']} {told}, {case['ranks']} ranks",
        "tessera",
        threads,
        "x torch",
        peer / ours,
        note=note,
        least=least,
    )


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count per rank."""
    figures = []
    for ranks in RANKS[:1] if quick else RANKS:
        progress(f"{NAME}, {ranks} ranks of {pool.threads} threads")
        figures += [figure(case, pool.threads) for case in measured(ranks, pool.threads, quick)]
    return SuiteResult(NAME, pool.threads, figures=figures)
