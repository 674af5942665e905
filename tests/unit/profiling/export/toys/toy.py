"""An exporter in a file: the names of what ran, a line each."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars

from tessera.profiling.export.contract import Format
from tessera.profiling.export.output import exported
from tessera.profiling.trace.table import Trace


@dataclass(frozen=True)
class ToyExporter:
    path: Path

    def export(self, trace: Trace) -> Path:
        names = trace.events.select(polars.col("kernel_name").cast(polars.String)).collect()["kernel_name"]
        with exported(self.path, "list of names") as file:
            file.writelines(f"{name}\n".encode() for name in names)
        return self.path


FORMAT: Final = Format(lambda path: ToyExporter(Path(path)), (".toy",))
