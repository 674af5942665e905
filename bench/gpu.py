"""Printed kernels on this machine's GPU against torch: ``python -m bench.gpu [--json FILE] [--markdown FILE]``.

Each result is checked against torch's (a sample of rows) before it is timed. Times are medians of
`triton.testing.do_bench`, which empties the L2 cache before every call; ours and torch's are taken in turn, three times
each, and the median of those medians is reported.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch

from tessera import op, target
from tessera.backend.triton.static import Candidate, StaticFacts, static_facts
from tessera.compiler.gpu import divisible, lower
from tessera.compiler.kernels import Launch
from tessera.compiler.tuning import launches_of_operator
from tessera.scheduling import gpu_space
from tessera.scheduling.gpu import contraction_gpu_problem, lower_contraction_gpu
from tessera.scheduling.gpu_space import GpuContractionProblem
from tessera.scheduling.knobs import Space
from tessera.scheduling.schedule import Schedule
from tessera.scheduling.spec import ContractionSpec
from tessera.target import Target

ROUNDS = 3
SQUARES = (1024, 2048, 4096, 8192)
SAMPLED_ROWS = 64


@dataclass(frozen=True)
class Row:
    """One case: seconds of ours and of torch, what ours moved or computed a second, registers and spills."""

    case: str
    schedule: str
    seconds: float
    torch_seconds: float
    rate: float
    unit: str
    registers: int
    spill_bytes: int
    error: float

    @property
    def ratio(self) -> float:
        """Torch's time over ours."""
        return self.torch_seconds / self.seconds


def this_gpu() -> Target:
    """The target of the device that torch sees."""
    major, minor = torch.cuda.get_device_capability()
    name = torch.cuda.get_device_name()
    known = (each for each in target.GPUS.values() if each.name.split("-")[0] in name)
    return next(known, target.gpu(f"sm{major}{minor}"))


def load(facts: StaticFacts) -> Callable[..., None]:
    """`launch` of a printed kernel."""
    described = importlib.util.spec_from_file_location(Path(facts.source).stem, facts.source)
    assert described is not None
    assert described.loader is not None
    module = importlib.util.module_from_spec(described)
    described.loader.exec_module(module)
    launch: Callable[..., None] = module.launch
    return launch


def interleaved(ours: Callable[[], object], peer: Callable[[], object]) -> tuple[float, float]:
    """Median seconds of both, taken in turn."""
    from triton.testing import do_bench

    rounds = [(do_bench(ours, return_mode="median"), do_bench(peer, return_mode="median")) for _ in range(ROUNDS)]
    return statistics.median(a for a, _ in rounds) / 1e3, statistics.median(b for _, b in rounds) / 1e3


def products(gpu: Target) -> Iterator[Row]:
    """bf16 squares, the best of the known starts that are legal, against cuBLAS."""
    for size in SQUARES:
        (kernel,) = launches_of_operator(op.matmul, (size, size, size), "bf16")
        spec = kernel.kernel.subject.spec
        assert isinstance(spec, ContractionSpec)
        extents = {"m": size, "n": size, "k": size}
        space = gpu_space.space(contraction_gpu_problem(spec, extents, gpu))
        a, b = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        rows = [
            measured(
                f"matmul bf16 {size}",
                schedule,
                facts,
                (a, b),
                partial(torch.matmul, a, b),
                2 * size**3,
                "TFLOP/s",
            )
            for schedule, facts in compiled(kernel, spec, space, gpu)
        ]
        yield min(rows, key=lambda row: row.seconds)


def compiled(
    launch: Launch, spec: ContractionSpec, space: Space[GpuContractionProblem], gpu: Target
) -> Iterator[tuple[Schedule, StaticFacts]]:
    """The legal starts that compile without spills."""
    starts = [
        Schedule(tile=tile, warps=warps, pipeline_depth=stages, group=8) for tile, stages, warps in gpu_space.STARTS[:5]
    ]
    legal = [schedule for schedule in starts if not space.violations(schedule)]
    modules = [lower_contraction_gpu(spec, schedule) for schedule in legal]
    candidates = [
        Candidate(module, divisible(launch, module), f"schedule: {schedule}")
        for module, schedule in zip(modules, legal, strict=True)
    ]
    for schedule, facts in zip(legal, static_facts(candidates, gpu), strict=True):
        if isinstance(facts, StaticFacts) and not facts.spill_bytes:
            yield schedule, facts


def rows(gpu: Target) -> Iterator[Row]:
    """Row-wise kernels at 8192 x 8192 against eager torch, in bytes read and written."""
    peers: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "softmax": lambda x: torch.softmax(x, -1),
        "gelu": torch.nn.functional.gelu,
        "layer_norm": lambda x: torch.nn.functional.layer_norm(x, (x.shape[-1],)),
    }
    for dtype in ("fp32", "bf16"):
        x = torch.randn(8192, 8192, device="cuda", dtype=torch.float32 if dtype == "fp32" else torch.bfloat16)
        for name, peer in peers.items():
            (kernel,) = launches_of_operator(getattr(op, name), tuple(x.shape), dtype)
            schedule, module = lower(kernel, gpu)
            (facts,) = static_facts([Candidate(module, divisible(kernel, module), f"schedule: {schedule}")], gpu)
            assert isinstance(facts, StaticFacts), facts
            traffic = 2 * x.numel() * x.element_size()
            yield measured(f"{name} {dtype} 8192x8192", schedule, facts, (x,), partial(peer, x), traffic, "GB/s")


def measured(
    case: str,
    schedule: Schedule,
    facts: StaticFacts,
    inputs: Sequence[torch.Tensor],
    peer: Callable[[], torch.Tensor],
    work: float,
    unit: str,
) -> Row:
    """Checks a kernel, and times it against `peer`. Raises RuntimeError for a wrong result."""
    launch, expected = load(facts), peer()
    out = torch.full_like(expected, float("nan"))
    launch(*inputs, out)
    error = float(
        (out[:SAMPLED_ROWS].double() - expected[:SAMPLED_ROWS].double()).abs().max()
        / expected[:SAMPLED_ROWS].abs().max()
    )
    if not error <= (1e-5 if out.dtype == torch.float32 else 2e-2):  # NaN, where nothing was written, is wrong too
        raise RuntimeError(f"{case}: error {error:.1e}")
    seconds, other = interleaved(lambda: launch(*inputs, out), peer)
    rate = work / seconds / (1e12 if unit == "TFLOP/s" else 1e9)
    return Row(case, str(schedule), seconds, other, rate, unit, facts.registers, facts.spill_bytes, error)


def markdown(found: Sequence[Row], heading: str) -> str:
    """The results as a table."""
    columns = ("case", "schedule", "ours", "torch's time / ours", "rate", "registers", "error")
    cells = [
        (
            row.case,
            row.schedule,
            f"{row.seconds * 1e6:.1f} us",
            f"{row.ratio:.2f}",
            f"{row.rate:.1f} {row.unit}",
            str(row.registers),
            f"{row.error:.0e}",
        )
        for row in found
    ]
    lines = [f"| {' | '.join(line)} |" for line in (columns, ("---",) * len(columns), *cells)]
    return "\n".join([f"# {heading}", "", *lines]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    import triton

    gpu = this_gpu()
    found = [*products(gpu), *rows(gpu)]
    device, date = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    heading = f"{device}, torch {torch.__version__}, triton {triton.__version__}, {date}"
    print(markdown(found, heading))
    if options.markdown:
        options.markdown.write_text(markdown(found, heading))
    if options.json:
        rows_ = [asdict(row) | {"ratio": row.ratio} for row in found]
        options.json.write_text(
            json.dumps(
                {
                    "device": device,
                    "torch": torch.__version__,
                    "triton": triton.__version__,
                    "date": date,
                    "rows": rows_,
                },
                indent=1,
            )
            + "\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
