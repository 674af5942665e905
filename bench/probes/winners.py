"""Made-up winners in great numbers, and processes that write them: what the suite `tune-cache` works on.

``python -m bench.probes.winners FOLDER WRITER COUNT`` is one of the processes.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tessera.scheduling.language.schedule import Schedule
from tessera.tuning.store.database import TuningDatabase
from tessera.tuning.store.entry import Entry, dump
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.layer import Layer

PROVENANCE = Provenance("bench", "0", "0", "0", "unknown", "on_device", "2026-01-01T00:00:00+00:00")
SCHEDULE = Schedule(tile=(12, 32, 256), pack_a=False, pack_b="shared", unroll=4, order="ijk", pipeline_depth=2)
SHARED = (7, 7, 7)
"""The shape that all writers write, again and again."""


def identity(kernel: int, shape: tuple[int, ...]) -> Identity:
    """The identity of one of many kernels; each is a family, a folder of its own."""
    operator = f"matmul_bias_{kernel}"
    layouts = ("m,k1", "k,n1", "n1")
    arch = "x86-512x32-bf16-vnni-32k-1m-1fma"
    return Identity(operator, shape, ("fp32",) * 3, layouts, "ieee", "fp32", "fast", arch, 2)


def entry(kernel: int, shape: tuple[int, ...], measured_s: float = 1e-4) -> Entry:
    """A winner of such a kernel."""
    return Entry(identity(kernel, shape), SCHEDULE, "measured", PROVENANCE, 2e-4, measured_s, 16)


def shapes(count: int) -> Iterator[tuple[int, ...]]:
    """Shapes that differ, of extents as matrix products have them."""
    return ((16 * (1 + number % 32), 64, 64 * (1 + number // 32)) for number in range(count))


def fill(folder: Path, kernels: int, count: int) -> None:
    """Writes `count` winners of each of `kernels` kernels, without waiting for the disk: the files alone matter."""
    layer = Layer("filled", folder, lambda problem: None)
    for kernel in range(kernels):
        for shape in shapes(count):
            made = entry(kernel, shape)
            path = layer.path(made.identity, made.origin)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(dump(made.to_json()))


def write(folder: Path, writer: int, count: int) -> None:
    """What one of several processes does: `count` winners of its own, and after each the one that all write.

    Raises AssertionError where a winner could not be stored, or cannot be read back whole.
    """
    database = TuningDatabase(folder, shipped=None)
    for shape in shapes(count):
        for made in (entry(writer, shape), entry(-1, SHARED, 1e-4 + writer * 1e-6)):
            if not database.put(made):
                raise AssertionError(f"{made.identity} could not be stored: {database.problems}")
            if database.lookup(made.identity) is None or database.problems:
                raise AssertionError(f"{made.identity} cannot be read back: {database.problems}")


def main(arguments: Sequence[str]) -> None:
    """The command line."""
    folder, writer, count = arguments
    write(Path(folder), int(writer), int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
