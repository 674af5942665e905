"""The report in one file, which any browser opens: the viewer with all that it would ask for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tessera.profiling.export.contract import Format
from tessera.profiling.trace.table import Trace
from tessera.viewer import one_file
from tessera.viewer.runs import run_of


@dataclass(frozen=True, slots=True)
class HtmlExporter:
    """Writes a trace as a report in one file; of more than `most_slices` the longest are in its timeline. `redact`
    leaves out host names, process numbers and Python stacks.
    """

    path: Path
    redact: bool = False
    most_slices: int = one_file.MOST_SLICES
    needs_kernels: ClassVar[bool] = True

    def export(self, trace: Trace) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        run = run_of(trace, self.path.stem)
        return one_file.write([run], self.path, most_slices=self.most_slices, redact=self.redact)


FORMAT: Final = Format(lambda path: HtmlExporter(Path(path)), (".html",))
