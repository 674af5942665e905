"""What has been recorded of a problem so far, on disk before the next batch begins: JSON lines that are only appended.

The first line is the table's description, every further one a batch. A process that is killed loses the batch that it
was measuring; the next one goes on behind the last whole line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from bench.tuning.table import About, Record, Table
from tessera.errors import CacheFormatError
from tessera.scheduling.language.schedule import Schedule


class Journal:
    """The batches of one table. `records` are the schedules measured so far, each with the turns of all its batches."""

    def __init__(self, path: Path, about: About) -> None:
        """Goes on with the file where it is about the same, under the same versions; else begins it anew."""
        self.path = path
        self.about = about
        self.records: dict[Schedule, Record] = {}
        self.anchors: list[float | None] = []
        lines = path.read_text().splitlines() if path.exists() else []
        kept = self._resume(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(line + "\n" for line in kept or [json.dumps(about.to_json())]))

    def _resume(self, lines: list[str]) -> list[str]:
        """Takes over the whole lines of an interrupted recording; the lines kept."""
        if not lines or not _continues(lines[0], self.about):
            return []
        self.about = About.from_json(json.loads(lines[0]))
        kept = lines[:1]
        for line in lines[1:]:
            try:
                batch = json.loads(line)
            except ValueError:  # the process was killed while it wrote this one
                break
            self._take(batch["anchor_s"], [Record.from_json(one, self.about.knobs) for one in batch["records"]])
            kept.append(line)
        return kept

    @property
    def batches(self) -> int:
        """The number of batches measured."""
        return len(self.anchors)

    def append(self, anchor_s: float | None, records: Iterable[Record]) -> None:
        """Adds a batch; it is on disk when this returns. `anchor_s` is the anchor's median in it (`Table`)."""
        found = list(records)
        line = (
            json.dumps({"anchor_s": anchor_s, "records": [record.to_json(self.about.knobs) for record in found]}) + "\n"
        )
        with self.path.open("a") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        self._take(anchor_s, found)

    def _take(self, anchor_s: float | None, records: Iterable[Record]) -> None:
        self.anchors.append(anchor_s)
        for record in records:
            known = self.records.get(record.schedule)
            self.records[record.schedule] = record if known is None else _merged(known, record)

    def table(self) -> Table:
        """All that was recorded so far."""
        return Table(self.about, tuple(self.records.values()), tuple(self.anchors))


def _merged(known: Record, later: Record) -> Record:
    """A schedule measured twice: one that failed once has failed."""
    failed = next((record for record in (later, known) if record.outcome != "ok"), None)
    role = known.role if later.role == "space" else later.role
    if failed is not None:
        return replace(failed, role=role, turns=())
    return replace(later, turns=known.turns + later.turns, role=role)


def _continues(line: str, about: About) -> bool:
    """Whether the description in a journal is that of the table that is to be recorded now."""
    try:
        there = About.from_json(json.loads(line))
    except (ValueError, KeyError, TypeError, CacheFormatError):
        return False
    if there.provenance.stale_fields(about.provenance):
        return False
    return json.dumps(replace(there, provenance=about.provenance).to_json()) == json.dumps(about.to_json())
