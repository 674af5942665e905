"""The exporter of a session that writes a report in one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tessera.viewer import one_file
from tessera.viewer.runs import run_of

if TYPE_CHECKING:
    from tessera.profiling.sessions import Session


@dataclass(frozen=True, slots=True)
class HtmlExporter:
    """Writes a session as a report in one file."""

    path: Path
    redact: bool = False
    needs_kernels: ClassVar[bool] = True

    def export(self, session: Session) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        return one_file.write([run_of(session.trace(), self.path.stem)], self.path, redact=self.redact)
