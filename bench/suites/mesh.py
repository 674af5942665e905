"""Collectives between processes of this machine, ours against torch.distributed's over Gloo, and whole programs of two
ranks against DTensor, DDP, FSDP2, torch's pipelines and exchanges by hand: checked, then timed by turns in the same
ranks, and the same in one process; and on a slow link, where there are namespaces of networks, how much of what
travels is hidden. Ratios are the peer's time over ours, of the fastest rounds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

from bench import shaped_link
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
ONE_THREAD, TWO_THREADS = "one process, 1 thread", "one process, 2 threads"
LEAST_OF_PROGRAMS: Final = {
    ("decoding", "DTensor"): 4.0,
    ("decoding", ONE_THREAD): 1.4,
    ("decoding", TWO_THREADS): 0.9,
    ("training", "DTensor"): 1.2,
    ("training", "DDP"): 1.1,
    ("training", "FSDP2"): 2.5,
    ("training", "torch's GPipe"): 1.2,
    ("training", "torch's 1F1B"): 1.2,
    ("experts", "torch's all-to-all by hand"): 1.0,
}
"""The same by the first word of a program's name, and by what it is held against. What is not here has no bar."""
LINK: Final = "2gbit"
"""What the slow link carries."""
LEAST_ON_LINK: Final = {"training": 1.1, "transform": 1.7}
"""The ratio that is to be reached there, by the first word of a case's name."""
LEAST_HIDDEN: Final = 90.0
"""Per cent of what can be hidden there: of the shorter of computing alone and sending alone."""
AGAINST_ON_LINK: Final = {"training": "DDP", "transform": "one piece"}
MOST_MS: Final = {"planning a 4-D matmul on three axes": 20.0, "planning 96 layers on 72 devices": 1000.0}
"""Milliseconds that deciding may take."""


def measured(script: str, ranks: int, threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """What the ranks of a script found, case by case."""
    command = [sys.executable, "-m", "tessera", "run", "--ranks", str(ranks), "--threads", str(threads)]
    command += [f"bench/{script}.py", *(["--quick"] if quick else [])]
    for line in _printed(command, threads):
        if line.startswith("[0] {"):
            yield json.loads(line.removeprefix("[0] "))


def alone(what: str, threads: int, quick: bool) -> Iterator[dict[str, Any]]:
    """What a process that is no rank takes for programs (`--alone`) or planning (`--plan`), one by one."""
    command = [sys.executable, "-m", "bench.mesh_programs", what, *(["--quick"] if quick else [])]
    yield from map(json.loads, _printed(command, threads))


def _printed(command: list[str], threads: int) -> list[str]:
    variables = environment("tessera", threads)
    variables["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=variables, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr}")
    return done.stdout.splitlines()


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


def program_figure(case: dict[str, Any], threads: int) -> Figure:
    """A program's ratio, with both times."""
    ours, peer = min(case["ours"]), min(case["peer"])
    name, _, against = case["name"].partition(", against ")
    note = f"{1e3 * ours:.2f} ms, {against} {1e3 * peer:.2f} ms; fastest of {len(case['ours'])} rounds each"
    least = LEAST_OF_PROGRAMS.get((name.partition(",")[0].partition(" ")[0], against))
    return Figure(name, "tessera", threads, f"x {against}", peer / ours, note=note, least=least)


def on_link(threads: int, quick: bool) -> Iterator[Figure]:
    """What two ranks on a slow link found."""
    reason = shaped_link.why_not()
    if reason is not None:
        yield Figure(f"on a link of {LINK}", "tessera", threads, "x", reason=reason)
        return
    script = ["--rate", LINK, "--threads", str(threads), "bench/mesh_shaped.py", *(["--quick"] if quick else [])]
    for line in _printed(shaped_link.command(script), threads):
        if line.startswith("{"):
            yield from link_figures(json.loads(line), threads)


def link_figures(case: dict[str, Any], threads: int) -> Iterator[Figure]:
    """A case's ratio on the slow link, and what of it is hidden."""
    ours, peer, name = min(case["ours"]), min(case["peer"]), f"{case['name']}, on a link of {LINK}"
    first = case["name"].partition(",")[0].partition(" ")[0]
    against = AGAINST_ON_LINK[first]
    rounds = f"fastest of {len(case['ours'])} rounds each"
    note = f"{1e3 * ours:.0f} ms, {against} {1e3 * peer:.0f} ms; {rounds}"
    yield Figure(name, "tessera", threads, f"x {against}", peer / ours, note=note, least=LEAST_ON_LINK[first])
    if case["alone"]:
        alone = {what: min(times) for what, times in case["alone"].items()}
        hidden = 100 * (sum(alone.values()) - ours) / min(alone.values())
        told = ", ".join(f"{what} alone {1e3 * taken:.0f} ms" for what, taken in alone.items())
        note = f"{1e3 * ours:.0f} ms, {told}; {rounds}"
        yield Figure(f"{name}, hidden", "tessera", threads, "% of the shorter", hidden, note=note, least=LEAST_HIDDEN)


def run(pool: Pool, progress: Callable[[str], None], quick: bool = False) -> SuiteResult:
    """Runs the suite with the pool's thread count per rank."""
    figures = []
    for ranks in RANKS[:1] if quick else RANKS:
        progress(f"{NAME}, {ranks} ranks of {pool.threads} threads")
        figures += [figure(case, pool.threads) for case in measured("mesh_probe", ranks, pool.threads, quick)]
    progress(f"{NAME}, programs of 2 ranks of {pool.threads} threads")
    found = list(measured("mesh_programs", 2, pool.threads, quick))
    on_ranks = {case["name"].partition(", against ")[0]: case for case in found}
    for threads, against in ((1, ONE_THREAD), (2, TWO_THREADS)):
        for case in alone("--alone", threads, quick):
            name = case["name"]
            found.append(on_ranks[name] | {"name": f"{name}, against {against}", "peer": case["ours"]})
    figures += [program_figure(case, pool.threads) for case in found if case["peer"]]
    progress(f"{NAME}, 2 ranks of {pool.threads} threads on a link of {LINK}")
    figures += on_link(pool.threads, quick)
    for case in alone("--plan", pool.threads, quick):
        name, value = case["name"], 1e3 * min(case["ours"])
        figures.append(Figure(name, "tessera", pool.threads, "ms", value, limit=MOST_MS[name]))
    return SuiteResult(NAME, pool.threads, figures=figures)
