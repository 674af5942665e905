"""The summary file: one line of CSV per operator."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING

from tessera.profiling.aggregate import OperatorRow
from tessera.profiling.output import exported
from tessera.profiling.report import operator_rows

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session


@dataclass(frozen=True, slots=True)
class SummaryExporter:
    """Writes `aggregate.OperatorRow`s as CSV; an empty field stands for "not measured"."""

    path: Path

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(operator_rows(session), self.path)


def _plain(value: object) -> object:
    """A number without the last digits, which are those of its arithmetic."""
    return float(f"{value:.12g}") if isinstance(value, float) else value


def write(rows: Iterable[OperatorRow], path: Path) -> Path:
    """Writes rows and gives the file's path. Raises ProfileError when it cannot be written."""
    with exported(path, "summary") as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.DictWriter(text, [field.name for field in fields(OperatorRow)])
        writer.writeheader()
        writer.writerows({name: _plain(value) for name, value in asdict(row).items()} for row in rows)
        text.detach()  # which flushes, and leaves the file to its owner
    return path
