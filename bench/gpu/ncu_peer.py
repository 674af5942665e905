"""Our counters of kernels beside those of Nsight Compute's `ncu`.

``python -m bench.gpu.ncu_peer [KERNEL ...] [--json FILE] [--markdown FILE]``

Each kernel is counted twice, in processes of their own, since only one can hold the counters: by our range profiling,
and by `ncu`, asked for the same metrics of Perfworks and told to leave clocks and caches alone, as we do.
"""

from __future__ import annotations

import argparse
import csv
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from bench.gpu.attention import _attention
from bench.gpu.cases import Made, Place, _fused_product, _product, _row_kernel
from tessera.profiling.counters.nvidia_metrics import RANGES, Metric

KERNELS: Final[Mapping[str, Callable[[Place], Made]]] = {
    "matmul": partial(_product, 4096, 4096, 4096),
    "matmul+bias+gelu": partial(_fused_product, 4096, 4096, 4096),
    "softmax": partial(_row_kernel, "softmax", (16384, 8192), "fp32"),
    "layer_norm": partial(_row_kernel, "layer_norm", (16384, 8192), "fp32"),
    "attention": partial(_attention, 4096, 128, False),
}
"""Each is one kernel that takes most of a millisecond: what is counted in less depends on what ran before."""
AS_NEAR: Final = 0.05
"""The most by which a counter may differ from `ncu`'s, as a share of it."""
LIMIT_S: Final = 120.0


class NotCountedError(Exception):
    """Counters that cannot be had here; the text is the reason."""


@dataclass(frozen=True)
class Row:
    """One column of one kernel's counters, by us and by `ncu`, in `unit`."""

    kernel: str
    column: str
    unit: str
    ours: float
    theirs: float

    @property
    def difference(self) -> float:
        """How far ours is from theirs, as a share of theirs; of a value below one hundredth, by as much itself."""
        return abs(self.ours - self.theirs) / max(abs(self.theirs), 0.01)


def columns(text: str, metrics: Mapping[str, Metric] = RANGES) -> list[dict[str, float]]:
    """Our columns of each kernel in `ncu`'s CSV of raw metrics: a line of names, a line of units, a line a kernel.

    Raises NotCountedError, with what `ncu` says, where there is no such table or a metric is not in it.
    """
    said = [line for line in text.splitlines() if line.startswith("==")]
    lines = list(csv.reader(line for line in text.splitlines() if line.startswith('"')))
    if len(lines) < 3:
        raise NotCountedError(next((line for line in said if "ERR" in line or "rror" in line), "ncu counted no kernel"))
    names, _, *kernels = lines
    asked, found = [metric.name for metric in metrics.values()], []
    for kernel in kernels:
        values = dict(zip(names, kernel, strict=True))
        missing = [name for name in asked if name not in values]
        if missing:
            raise NotCountedError(f"ncu gave no {', '.join(missing)}")
        numbers = {name: float(value.replace(",", "")) for name, value in values.items() if name in asked}
        found.append({column: metric.column_value(numbers[metric.name]) for column, metric in metrics.items()})
    return found


def by_ncu(kernel: str) -> dict[str, float]:
    """The columns of a kernel as `ncu` counts them. Raises NotCountedError."""
    ncu = shutil.which("ncu")
    if ncu is None:
        raise NotCountedError("ncu is not installed")
    asked = ",".join(metric.name for metric in RANGES.values())
    options = ["--csv", "--page", "raw", "--metrics", asked, "--profile-from-start", "off"]
    as_we = ["--print-units", "base", "--clock-control", "none", "--cache-control", "none"]
    (found, *more) = columns(_output([ncu, *options, *as_we, *_once(kernel, "--marked")]))
    if more:
        raise NotCountedError(f"{len(more) + 1} kernels ran where one was to be counted")
    return found


def by_us(kernel: str) -> dict[str, float]:
    """The columns of a kernel as we count them. Raises NotCountedError."""
    text = _output(_once(kernel, "--counted"))
    return {str(column): float(value) for column, value in json.loads(text.splitlines()[-1]).items()}


def _once(kernel: str, how: str) -> list[str]:
    return [sys.executable, "-m", "bench.gpu.ncu_peer", kernel, how]


def _output(command: Sequence[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        raise NotCountedError(f"not done within {LIMIT_S:.0f} s") from None
    if done.returncode:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
        refused = [line for line in lines if "ERR_" in line or "Error" in line]
        raise NotCountedError((refused or lines or [f"exit code {done.returncode}"])[-1].strip())
    return done.stdout


def _prepared(kernel: str) -> Callable[[], Any]:
    """A call of the kernel that waits for it; it was compiled and has run."""
    build = KERNELS[kernel](Place()).ours["default"]

    def call() -> None:
        build().eval()
        torch.cuda.synchronize()

    call()
    call()
    return call


def mark(kernel: str) -> None:
    """Runs a kernel once where `ncu` looks."""
    call = _prepared(kernel)
    torch.cuda.profiler.start()  # type: ignore[no-untyped-call]
    call()
    torch.cuda.profiler.stop()  # type: ignore[no-untyped-call]


def count(kernel: str) -> None:
    """Counts a kernel and prints its columns as JSON."""
    from tessera.profiling.counters.backends.pm_sampling import chip_of
    from tessera.profiling.counters.range_profiling import counted

    (found,) = counted(_prepared(kernel), chip_of(0), 1)
    print(json.dumps(found))


def compared(kernel: str) -> list[Row]:
    """Every column of a kernel, by both. Raises NotCountedError."""
    ours, theirs = by_us(kernel), by_ncu(kernel)
    return [Row(kernel, name, metric.unit, ours[name], theirs[name]) for name, metric in RANGES.items()]


def markdown(rows: Sequence[Row], missing: Mapping[str, str], heading: str) -> str:
    """All counters as Markdown."""
    lines = [f"# {heading}", "", "| kernel | counter | ours | ncu | apart |", "| --- | --- | --- | --- | --- |"]
    for row in rows:
        apart = f"{100 * row.difference:.1f} %{'' if row.difference <= AS_NEAR else f' (NOT within {AS_NEAR:.0%})'}"
        lines.append(f"| {row.kernel} | {row.column} {row.unit} | {row.ours:.4g} | {row.theirs:.4g} | {apart} |")
    lines += [f"| {kernel} | not measured: {reason} | | | |" for kernel, reason in missing.items()]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Compares the kernels named, or all. Returns 1 where one of them was not counted by both, else 0."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.ncu_peer")
    parser.add_argument("kernels", nargs="*", metavar="KERNEL", help=f"of {', '.join(KERNELS)}; all by default")
    parser.add_argument("--marked", action="store_true", help="run the kernel once, for ncu")
    parser.add_argument("--counted", action="store_true", help="count the kernel and print what was counted")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    if options.marked or options.counted:
        for kernel in options.kernels:
            (mark if options.marked else count)(kernel)
        return 0
    rows: list[Row] = []
    missing: dict[str, str] = {}
    for kernel in options.kernels or KERNELS:
        try:
            rows += compared(kernel)
        except NotCountedError as reason:
            missing[kernel] = str(reason)
    device, date = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    text = markdown(rows, missing, f"Counters on {device}, torch {torch.__version__}, {date}")
    print(text, end="")
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        found = {"device": device, "date": date, "counters": [asdict(row) for row in rows], "not measured": missing}
        options.json.write_text(json.dumps(found, indent=1) + "\n")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
