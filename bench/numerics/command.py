"""``python -m bench numerics [--write]``: the table of errors, printed or written into ``docs/numerics.md``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch

from bench.machine import cpu_name
from bench.numerics import functions, kernels
from bench.numerics.measures import ErrorRow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "numerics.md"
BEGIN, END = "<!-- begin of the table -->", "<!-- end of the table -->"
COLUMNS = ("kernel", "dtype", "operands", "counted in", "Tessera", "torch", "nearer")


def figure(value: float) -> str:
    """An error with two digits behind the point below ten, without any above."""
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def table(rows: Iterable[ErrorRow]) -> str:
    """The rows as Markdown."""
    lines = ["| " + " | ".join(COLUMNS) + " |", "| " + " | ".join("---" for _ in COLUMNS) + " |"]
    for row in rows:
        cells = (row.kernel, row.dtype, row.operands, row.unit, figure(row.ours), figure(row.torch), row.verdict)
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(text: str, page: Path = PAGE) -> None:
    """Replaces what stands between the marks of `page`. Raises ValueError where they are missing."""
    before, begun, rest = page.read_text().partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise ValueError(f"{page} lacks the marks {BEGIN} and {END}")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main(arguments: Sequence[str]) -> int:
    """Measures, prints, and writes the page if asked to."""
    parser = argparse.ArgumentParser(prog="python -m bench numerics", description="Errors against float64.")
    parser.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    options = parser.parse_args(arguments)
    with torch.no_grad():
        found = [*functions.rows(), *kernels.rows()]
    text = f"{cpu_name()}, torch {torch.__version__}, {torch.get_num_threads()} threads.\n\n{table(found)}"
    print(text)
    if options.write:
        write(text)
    return 0
