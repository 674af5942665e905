"""What an exporter is: the seam of `export/formats/`, and what programs may write themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tessera.profiling.trace.table import Trace


class Exporter(Protocol):
    """Writes a trace to a file, or sends it away; `profile.chrome(...)` and its like make them. A session gives its
    trace to its exporters when it ends. One whose attribute `needs_kernels` is true is warned of in a session that
    keeps none.
    """

    def export(self, trace: Trace) -> Path | str:
        """Writes the trace and says where it is. Raises ProfileError when it cannot be written."""


@dataclass(frozen=True)
class Format:
    """A format that traces are written in: the constant `FORMAT` of a module of `export/formats/`."""

    exporter: Callable[[str], Exporter]
    """Makes an exporter that writes to a path, or sends to an address."""

    endings: tuple[str, ...] = ()
    """Of the names of files in this format, by which `tessera-prof --export` knows it; none where it is no file, or
    another format has the ending.
    """
