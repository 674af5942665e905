"""The summary file: one line of CSV per operator."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tessera.errors import ProfileError
from tessera.profiling.aggregate import OperatorRow
from tessera.profiling.report import operator_rows
from tessera.profiling.sessions import Session


@dataclass(frozen=True, slots=True)
class SummaryExporter:
    """Writes `aggregate.OperatorRow`s as CSV; an empty field stands for "not measured"."""

    path: Path

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return write(operator_rows(session), self.path)


def write(rows: Iterable[OperatorRow], path: Path) -> Path:
    """Writes rows and gives the file's path. Raises ProfileError when it cannot be written."""
    try:
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, [field.name for field in fields(OperatorRow)])
            writer.writeheader()
            writer.writerows(asdict(row) for row in rows)
    except OSError as error:
        raise ProfileError(f"the summary could not be written to {path}: {error.strerror}") from error
    return path
