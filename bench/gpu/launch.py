"""What launching costs the host, for straight lines of 1 to 1000 kernels.

``python -m bench.gpu.launch [--json FILE] [--markdown FILE]``

Kernels are tiny, so that the device is done before the host asks again. Each way is called until the clock is fine
enough, and waited for in between outside of the time; medians are reported. A graph whose addresses did not change is
one call of the driver whatever its length; updating it is reported apart.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tessera import op
from tessera.backend.contract import GpuKernelObject
from tessera.backend.registry import gpu_backend
from tessera.compiler.device.gpu import gpu_sites
from tessera.runtime.devices.device import Driver, LaunchOf, Loaded, driver_of

LENGTHS = (1, 10, 100, 1000)
GOAL_US = 10.0
"""Most host time of launching an unchanged graph, of any of the lengths."""
ELEMENTS = 1024
REPEATS = 30
UNCHANGED = "graph, nothing changed"


@dataclass(frozen=True)
class Row:
    """Host microseconds (median, and the least seen) of one way to launch `kernels` kernels."""

    way: str
    kernels: int
    median_us: float
    least_us: float


def measured(way: str, kernels: int, call: Callable[[], object], wait: Callable[[], None]) -> Row:
    """Times `call`, with the device idle before each."""
    call()
    wait()
    times = []
    for _ in range(REPEATS):
        begin = time.perf_counter()
        call()
        times.append(time.perf_counter() - begin)
        wait()
    return Row(way, kernels, statistics.median(times) * 1e6, min(times) * 1e6)


def lines(device: Driver, kernel: Loaded, arguments: Sequence[Sequence[int | float]]) -> Iterator[Row]:
    """Launches of one kernel by its driver; `arguments` are two sets to change between."""
    for count in LENGTHS:
        yield from _line(device, kernel, arguments, count)


def _line(device: Driver, kernel: Loaded, arguments: Sequence[Sequence[int | float]], count: int) -> Iterator[Row]:
    stream = device.stream()
    launches = [LaunchOf(kernel, (1, 1, 1), arguments[0])] * count
    graph = device.record(launches)
    turns = itertools.cycle([arguments[1], arguments[0]])

    def wait() -> None:
        device.synchronize(stream)

    def one_by_one() -> None:
        for launch in launches:
            device.launch(launch.kernel, launch.grid, launch.arguments, stream)

    yield measured("one by one", count, one_by_one, wait)
    if graph is None:
        return

    def update() -> None:
        given = next(turns)
        for index in range(count):
            graph.update(index, (1, 1, 1), given)

    yield measured(UNCHANGED, count, lambda: graph.launch(stream), wait)
    yield measured("update of all addresses", count, update, wait)


def plans(device: str) -> Iterator[Row]:
    """Expressions of matrix products, one kernel each, by `eval()`: what a user calls."""
    driver = driver_of(device)
    place = "cpu" if device == "interpreter" else device
    x, w = (torch.eye(64, device=place).to(torch.bfloat16) for _ in range(2))

    def expression(count: int) -> Any:
        y = op.tensor(x, device=device)
        for _ in range(count):
            y = op.matmul(y, op.tensor(w, device=device))
        return y

    for count in LENGTHS:
        pending = [expression(count) for _ in range(REPEATS + 3)]
        for _ in range(2):  # the second call records the graph
            pending.pop().eval()
        yield measured("eval() of a known expression", count, partial(_evaluate, pending), partial(_wait, driver))


def _evaluate(pending: list[Any]) -> None:
    pending.pop().eval()


def _wait(driver: Driver) -> None:
    driver.synchronize(driver.stream())


def small_kernel(device: Driver) -> GpuKernelObject:
    """exp of a vector, printed and compiled for the device. Raises CompileError where Triton refuses it."""
    (site,) = gpu_sites(op.exp, (ELEMENTS,), "fp32", device.target)
    return gpu_backend().compile(site.module, device.target)


def vectors(kernel: GpuKernelObject, tensors: Sequence[torch.Tensor]) -> list[int | float]:
    """The arguments of a launch of `small_kernel` over contiguous vectors of `ELEMENTS`."""
    sizes = {"size": ELEMENTS, "stride": 1}
    return [sizes.get(each.role) or tensors[each.argument].data_ptr() for each in kernel.parameters]


def markdown(rows: Sequence[Row], heading: str) -> str:
    """The rows as a table, and whether the goal was met."""
    table = ["| launched | kernels | host, median | host, least |", "|---|---|---|---|"]
    table += [f"| {row.way} | {row.kernels} | {row.median_us:.1f} us | {row.least_us:.1f} us |" for row in rows]
    worst = max((row.median_us for row in rows if row.way == UNCHANGED), default=None)
    reached = "not measured" if worst is None else f"{worst:.1f} us: {'met' if worst <= GOAL_US else 'NOT met'}"
    return "\n".join([f"# {heading}", "", *table, "", f"Goal: {UNCHANGED}, at most {GOAL_US:g} us; {reached}."]) + "\n"


def main(arguments: Sequence[str]) -> int:
    """Measures, prints and writes. Returns 1 without a GPU, 0 otherwise, also when the goal was missed."""
    parser = argparse.ArgumentParser(prog="python -m bench.gpu.launch")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("not measured: torch sees no CUDA device", file=sys.stderr)
        return 1
    device = driver_of("cuda:0")
    kernel = small_kernel(device)
    pairs = [[torch.zeros(ELEMENTS, device="cuda") for _ in range(2)] for _ in range(2)]
    rows = [*lines(device, device.load(kernel), [vectors(kernel, pair) for pair in pairs]), *plans("cuda:0")]
    name, date = torch.cuda.get_device_name(), datetime.now(UTC).isoformat(timespec="seconds")
    text = markdown(rows, f"Host time of launches, {name}, torch {torch.__version__}, {date}")
    print(text)
    if options.markdown:
        options.markdown.write_text(text)
    if options.json:
        document = {"device": name, "torch": torch.__version__, "date": date, "rows": [asdict(row) for row in rows]}
        options.json.write_text(json.dumps(document, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
