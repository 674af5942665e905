"""Tuners on a GPU: ours with few trials, `triton.autotune` over its tutorial's list, Helion at full effort.

``python -m bench.gpu.contest [--without NAME ...] [--json FILE] [--markdown FILE]``

Each tunes bf16 products from empty caches, one after the other; then the winners are timed in turn. A tuner's seconds
are those of the call that tunes, compiling counted; what Triton loads at its first compilation is loaded before.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from bench.gpu.running import relative_error
from bench.gpu.timing import Cache, Call, CudaTimer, Timer, interleaved
from bench.table import duration
from tessera import settings
from tessera.errors import TesseraError

OURS = "tessera"
TRITON, HELION = "triton.autotune, its tutorial's list", "helion, full effort"
TRIALS = 16
"""The most of ours; fewer where less of the space promises a gain."""
SHARE = 0.15
"""The most of a peer's wall-clock that our tuning may take."""
AS_FAST = 0.97
"""The least ratio of a peer's time to ours: within 3 %."""
TOLERANCE = 2e-2
SIZES = ((4096, 4096, 4096), (2048, 14336, 4096), (128, 4096, 4096))
"""(M, N, K): a square, and products of Llama 3 8B with many tokens and with few."""

Operands = tuple[torch.Tensor, torch.Tensor]
Tune = Callable[[Operands], Callable[[], torch.Tensor]]
"""Tunes the product of the operands, and gives the call of the winner."""


@dataclass
class Found:
    """One product: by contender the seconds of tuning, those of a call by the state of L2, and why others have none."""

    size: tuple[int, int, int]
    tuning_s: dict[str, float] = field(default_factory=dict)
    call_s: dict[str, dict[Cache, float]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)

    def share(self, peer: str) -> float | None:
        """Our wall-clock as a share of a peer's; None where one of them has none."""
        ours, theirs = self.tuning_s.get(OURS), self.tuning_s.get(peer)
        return None if ours is None or theirs is None else ours / theirs

    def ratio(self, peer: str, cache: Cache) -> float | None:
        """A peer's time over ours; None where one of them was not measured."""
        ours, theirs = self.call_s.get(OURS), self.call_s.get(peer)
        return None if ours is None or theirs is None else theirs[cache] / ours[cache]


def _tessera(operands: Operands) -> Callable[[], torch.Tensor]:
    from tessera import autotune, op

    a, b = operands
    shapes = [tuple(a.shape), tuple(b.shape)]
    autotune(op.matmul, shapes, "bf16", "on_device", max_trials=TRIALS, budget_s=600, device=str(a.device))
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)

    def call() -> torch.Tensor:
        op.matmul(a, b).eval(out)
        return out

    call()
    return call


def _triton(operands: Operands) -> Callable[[], torch.Tensor]:
    peer = importlib.import_module("bench.gpu.triton_peer")
    a, b = operands
    out = torch.empty(a.shape[0], b.shape[1], dtype=a.dtype, device=a.device)
    call = partial(peer.product, a, b, out)
    call()
    return call


def _helion(operands: Operands) -> Callable[[], torch.Tensor]:
    try:
        peer = importlib.import_module("bench.gpu.helion_peer")
    except ModuleNotFoundError as missing:
        if missing.name != "helion":
            raise
        raise NotHereError("helion is not installed") from None
    call = partial(peer.product, *operands)
    call()
    return call


class NotHereError(Exception):
    """A tuner that cannot run here; the text is the reason."""


TUNERS: Mapping[str, Tune] = {OURS: _tessera, TRITON: _triton, HELION: _helion}


def hold(
    size: tuple[int, int, int], tuners: Mapping[str, Tune], timer: Timer, device: str, wait: Callable[[], None]
) -> Found:
    """Has the tuners tune the product of `size`, checks the winners, and times them in turn."""
    found = Found(size)
    m, n, k = size
    a = torch.randn(m, k, device=device).bfloat16()
    b = (torch.randn(k, n, device=device) * k**-0.5).bfloat16()
    exact = a[:64].double() @ b.double()
    calls: dict[str, Call] = {}
    for name, tune in tuners.items():
        wait()
        start = time.perf_counter()
        try:
            call = tune((a, b))
        except (NotHereError, RuntimeError, TesseraError) as problem:
            found.missing[name] = str(problem) or type(problem).__name__
            continue
        wait()
        found.tuning_s[name] = time.perf_counter() - start
        error = relative_error(call(), exact)
        if error <= TOLERANCE:
            calls[name] = call
        else:
            found.missing[name] = f"wrong result: off by {error:.1e} of the largest value"
    caches: tuple[Cache, ...] = ("cold", "warm")
    for cache in caches:
        for name, seconds in interleaved(calls, cache, timer).items():
            found.call_s.setdefault(name, {})[cache] = seconds
    return found


COLUMNS = ("bf16 M x N x K", "tuner", "tuning", "ours / its tuning", "its call, warm L2", "cold L2", "its time / ours")


def rows(found: Found) -> list[tuple[str, ...]]:
    """The lines of a table for one product."""
    label = "x".join(map(str, found.size))
    lines: list[tuple[str, ...]] = []
    for name, seconds in found.tuning_s.items():
        share, times = found.share(name), found.call_s.get(name)
        ratios = [found.ratio(name, cache) for cache in ("warm", "cold")] if times else []
        shown = ", ".join("" if ratio is None else f"{ratio:.3f}" for ratio in ratios)
        ours = name == OURS
        lines.append(
            (
                label,
                name,
                duration(seconds),
                "" if ours or share is None else f"{100 * share:.1f} % ({_met(share <= SHARE)}: {100 * SHARE:g} %)",
                duration(times["warm"]) if times else "not measured",
                duration(times["cold"]) if times else "not measured",
                "" if ours or not times else f"{shown} ({_met(_as_fast(ratios))}: {AS_FAST:g})",
            )
        )
    lines += [(label, name, f"not measured: {reason}", "", "", "", "") for name, reason in found.missing.items()]
    return lines


def _as_fast(ratios: Sequence[float | None]) -> bool:
    return all(ratio is not None and ratio >= AS_FAST for ratio in ratios)


def _met(met: bool) -> str:
    return "met" if met else "NOT met"


def markdown(results: Sequence[Found], heading: str) -> str:
    """All results as Markdown."""
    lines = [f"# {heading}", "", f"| {' | '.join(COLUMNS)} |", f"| {' | '.join(['---'] * len(COLUMNS))} |"]
    lines += [f"| {' | '.join(row)} |" for found in results for row in rows(found)]
    return "\n".join(lines) + "\n"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.contest")
    parser.add_argument("--without", choices=["triton", "helion"], action="append", default=[], help="leave one out")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes after every product. Returns 1 without a GPU, 0 otherwise, also when a goal was
    missed.
    """
    options = parse(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    left_out = {"triton": TRITON, "helion": HELION}
    tuners = {name: tune for name, tune in TUNERS.items() if name not in {left_out[each] for each in options.without}}
    results: list[Found] = []
    with (
        tempfile.TemporaryDirectory(prefix="tessera-bench-") as folder,
        settings.override(cache_dir=Path(folder) / "tessera", tune_site_dir=None, tune_shipped=False),
    ):
        # For the processes that are started, and for libraries, which read these when they are first imported.
        os.environ.update(
            TESSERA_CACHE_DIR=f"{folder}/tessera",
            TRITON_CACHE_DIR=f"{folder}/triton",
            HELION_CACHE_DIR=f"{folder}/helion",
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor",
        )
        _load_triton()
        timer = CudaTimer()
        for size in SIZES:
            results.append(hold(size, tuners, timer, "cuda:0", torch.cuda.synchronize))
            print("\n".join("  ".join(cells) for cells in rows(results[-1])), flush=True)
            write(results, options)
    return 0


def _load_triton() -> None:
    """Compiles something small: what the first compilation loads is nobody's tuning."""
    from tessera import op

    op.exp(op.tensor(torch.zeros(16, device="cuda"), device="cuda:0")).eval()


def write(results: Sequence[Found], options: argparse.Namespace) -> None:
    """Writes the results so far to the files that were asked for."""
    device, date = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    if options.markdown:
        options.markdown.write_text(markdown(results, f"Tuners on {device}, torch {torch.__version__}, {date}"))
    if options.json:
        document = {"device": device, "date": date, "products": [asdict(found) for found in results]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
