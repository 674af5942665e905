"""The report in one file, which any browser opens: the viewer with all that it would ask for."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Final

from tessera.profiling.export.contract import Format
from tessera.profiling.trace.table import Trace
from tessera.viewer import one_file
from tessera.viewer.runs import run_of

_MOST_FRAMED: Final = 100_000
"""Slices that a notebook keeps."""


@dataclass(frozen=True, slots=True)
class HtmlExporter:
    """Writes a trace as a report in one file; of more than `most_slices` the longest are in its timeline. `redact`
    leaves out host names, process numbers and Python stacks; `code` has the compiler make the kernels' code again.
    """

    path: Path
    redact: bool = False
    most_slices: int = one_file.MOST_SLICES
    code: bool = False
    needs_kernels: ClassVar[bool] = True

    def export(self, trace: Trace) -> Path:
        """Writes the file and gives its path. Raises ProfileError when it cannot be written."""
        run = run_of(trace, self.path.stem)
        return one_file.write([run], self.path, most_slices=self.most_slices, redact=self.redact, with_code=self.code)


def framed(trace: Trace) -> str:
    """A trace as the report in a frame, for a page that is somebody else's: a notebook. Its scripts cannot reach what
    is around it.
    """
    page = html.escape(one_file.text([run_of(trace, "session")], _MOST_FRAMED))
    style = "width:100%;height:760px;border:1px solid #c9ced6"
    return f'<iframe title="Tessera profile" sandbox="allow-scripts" style="{style}" srcdoc="{page}"></iframe>'


FORMAT: Final = Format(lambda path: HtmlExporter(Path(path)), (".html",))
