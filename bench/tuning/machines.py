"""The machine that tables were recorded on, beside them: `target.json` in their folder.

With it a table's problem is posed for that machine on any other one, under today's rules, defaults and cost model.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tessera.errors import CacheFormatError
from tessera.target import CoreFacts, MemoryLevel, Target

NAME = "target.json"
_PLAIN = ("kind", "arch", "name", "vector_bits", "vector_registers", "cores", "processors", "machine")


def save(target: Target, folder: Path) -> None:
    """Writes a CPU's facts into the folder of its tables; its ceilings stand in each of these."""
    record = {name: getattr(target, name) for name in _PLAIN}
    record["features"] = sorted(target.features)
    record["memory"] = [[level.name, level.size_bytes, level.line_bytes, level.shared_by] for level in target.memory]
    if target.core is not None:
        record["core"] = asdict(target.core)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / NAME).write_text(json.dumps(record, indent=1) + "\n")


def load(folder: Path) -> Target | None:
    """The CPU whose tables are in a folder; None where it does not say. Raises CacheFormatError (E_CACHE_FORMAT) for a
    file that says nothing of the kind.
    """
    path = folder / NAME
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text())
        plain = {name: record[name] for name in _PLAIN}
        memory = tuple(MemoryLevel(*level) for level in record["memory"])
        core = CoreFacts.from_record(record["core"]) if "core" in record else None
        return Target(**plain, features=frozenset(record["features"]), memory=memory, core=core)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CacheFormatError(f"{path.name} describes no CPU: {type(error).__name__} {error}") from error
