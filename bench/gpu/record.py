"""Times of many schedules of one kernel on a GPU, for the cost model to be held against.

``python -m bench.gpu.record [PROBLEM ...] [--build I/N] [--limit-s SECONDS] [--json FILE]``

Every schedule is sampled in turn with a cold L2, and again while it is near the best. Schedules that are not legal, or
that the compiler refuses, are left out. ``--build I/N`` only compiles every Nth, so that N processes compile all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from bench.gpu.attention import _attention
from bench.gpu.cases import MOVED, Made, Place, _product
from bench.gpu.timing import Call, CudaTimer, Timer
from tessera.errors import DeviceFaultError, MemoryLimitError, TesseraError
from tessera.scheduling.families.product.gpu.choice import STARTS
from tessera.scheduling.language.schedule import Schedule

NEAR: Final = ((2.0, 4), (1.2, 8))
"""(factor, samples): what is at most so much slower than the best so far is sampled so often."""
FIRST_STARTS: Final = 24
"""How many of a product's likely starts are recorded: the rest are for operands that are no bf16 matrices."""

Build = Callable[..., Any]


def _product_knobs(m: int) -> Iterator[Mapping[str, Any]]:
    yield {}
    for (tile, stages, warps), moved in itertools.product(STARTS[:FIRST_STARTS], MOVED):
        knobs = {"tile": tile, "pipeline_depth": stages, "warps": warps, **moved}
        yield knobs
        if m <= 1024 and "grid" not in moved:  # few tiles: parts of K fill the multiprocessors
            yield {**knobs, "split_k": 4}


def _attention_knobs() -> Iterator[Mapping[str, Any]]:
    yield {}
    choices = ((64, 128, 256), (32, 64, 128), (4, 8), (2, 3))
    for queries, keys, warps, stages in itertools.product(*choices):
        yield {"tile": (queries, keys), "warps": warps, "pipeline_depth": stages}


SIZES: Final = (
    *((size, size, size) for size in (1024, 2048, 4096, 8192)),
    *((128, n, k) for n, k in ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336))),
    *((2048, n, k) for n, k in ((4096, 4096), (28672, 4096))),
)

PROBLEMS: Final[Mapping[str, tuple[Callable[[Place], Made], Callable[[], Iterator[Mapping[str, Any]]]]]] = {
    **{f"matmul {m}x{n}x{k}": (partial(_product, m, n, k), partial(_product_knobs, m)) for m, n, k in SIZES},
    **{
        f"attention d={head} length={length}{' causal' if causal else ''}": (
            partial(_attention, length, head, causal),
            _attention_knobs,
        )
        for head, length, causal in itertools.product((64, 128), (4096,), (False, True))
    },
}
"""Name -> the case, of which the call under the default schedule is taken, and what is tried, as knobs; bf16."""


def _call(build: Build, knobs: Mapping[str, Any]) -> Any:
    pending = build()
    return (pending.pin(**knobs) if knobs else pending).eval()


def _legal(build: Build, knobs: Mapping[str, Any]) -> str | None:
    """The schedule as text, after one call; None where there is no such kernel."""
    try:
        _call(build, knobs)
    except (DeviceFaultError, MemoryLimitError):
        raise
    except TesseraError:
        return None
    return str(Schedule(knobs)) if knobs else "default"


def built(build: Build, tried: Iterable[Mapping[str, Any]]) -> dict[str, Call]:
    """Schedules that are legal and compile, by their text, each as a call."""
    named = ((_legal(build, knobs), knobs) for knobs in tried)
    return {name: partial(_call, build, knobs) for name, knobs in named if name is not None}


def measured(calls: Mapping[str, Call], timer: Timer) -> dict[str, list[float]]:
    """The samples of each call, in seconds, with a cold L2."""
    samples = {name: timer.prepared(call, "cold") for name, call in calls.items()}
    found = {name: [sample(), sample()] for name, sample in samples.items()}
    for factor, count in NEAR:
        best = min(map(statistics.median, found.values()), default=0.0)
        near = [name for name, seconds in found.items() if statistics.median(seconds) <= factor * best]
        for _ in range(count):
            for name in near:
                found[name].append(samples[name]())
    return found


def main(arguments: Sequence[str]) -> int:
    """Records the problems named, or all, until the limit. Returns 1 without a GPU."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.record")
    parser.add_argument("problems", nargs="*", metavar="PROBLEM", help=f"of {', '.join(PROBLEMS)}; all by default")
    parser.add_argument("--build", metavar="I/N", help="compile every Nth schedule from the Ith on, and measure none")
    parser.add_argument("--limit-s", type=float, default=600.0, help="begin no further problem after this")
    parser.add_argument("--json", type=Path, help="written after every problem")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    begin, place = time.monotonic(), Place()
    found: dict[str, dict[str, list[float]]] = {}
    first, step = map(int, (options.build or "0/1").split("/"))
    timer = None if options.build else CudaTimer()
    for name in options.problems or PROBLEMS:
        if time.monotonic() - begin > options.limit_s:
            print(f"not measured: {name}: out of time", file=sys.stderr)
            continue
        make, tried = PROBLEMS[name]
        calls = built(make(place).ours["default"], itertools.islice(tried(), first, None, step))
        if timer is None:
            print(f"{name}: {len(calls)} kernels, {time.monotonic() - begin:.0f} s", flush=True)
            continue
        found[name] = measured(calls, timer)
        best = min(found[name], key=lambda each: statistics.median(found[name][each]))
        seconds = statistics.median(found[name][best])
        print(
            f"{name}: {seconds * 1e6:.1f} us, {torch.cuda.clock_rate()} MHz, best of {len(calls)}: {best}", flush=True
        )
        if options.json is not None:
            about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
            about["date"] = datetime.now(UTC).isoformat(timespec="seconds")
            options.json.write_text(json.dumps({**about, "seconds": found}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
