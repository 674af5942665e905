"""All formats that traces are written in: the modules of `export/formats/`."""

from __future__ import annotations

from pathlib import Path

from tessera.errors import ArgumentError
from tessera.profiling.export import formats
from tessera.profiling.export.contract import Exporter, Format
from tessera.system.sources import members


def known_formats() -> dict[str, Format]:
    """Every format by the name of its module, in the order of the names."""
    return {module.__name__.rpartition(".")[2]: module.FORMAT for module in members(formats)}


def exporter_to(path: Path) -> Exporter:
    """The exporter that writes a file, in the format that its name's ending says. Raises ArgumentError for an ending
    that is none's.
    """
    by_ending = {ending: each for each in known_formats().values() for ending in each.endings}
    found = next((each for ending, each in by_ending.items() if path.name.endswith(ending)), None)
    if found is None:
        raise ArgumentError(f"{path}: the format is not known", hints=[f"endings are {', '.join(by_ending)}"])
    return found.exporter(str(path))
