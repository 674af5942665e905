"""Slices of Chrome traces whose begin and end are events of their own.

Source: "Trace Event Format", Duration Events (`B`, `E`: of a thread, the latest ends first) and Async Events (`b`, `e`:
told apart by category, scope and id, and where ends have names, by these).
"""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

import polars
from polars import col

PHASES: Final = ("B", "E", "b", "e")

Row = dict[str, Any]


class Pairs:
    """Begins that wait for their ends, over all tables of a file. `unmatched` counts, by reason, events of no pair."""

    def __init__(self) -> None:
        self.unmatched: Counter[str] = Counter()
        self._open: dict[tuple[Any, ...], list[Row]] = {}

    def joined(self, table: polars.DataFrame) -> polars.DataFrame:
        """The table with a complete event (phase `X`) for each pair that ends in it, and without begins and ends."""
        halves = table.filter(col("ph").is_in(PHASES))
        if halves.is_empty():
            return table
        whole = [row for half in halves.iter_rows(named=True) if (row := self._pair(half)) is not None]
        others = table.filter(~col("ph").is_in(PHASES))  # events without a phase are left out here, as later on
        return polars.concat([others, polars.DataFrame(whole, table.schema)])

    def close(self) -> None:
        """Counts the begins that are still open: the file has ended."""
        if count := sum(map(len, self._open.values())):
            self.unmatched["begin without end"] += count
        self._open.clear()

    def _pair(self, half: Row) -> Row | None:
        """The complete event that an end makes."""
        if half["ts"] is None:
            self.unmatched["without a time"] += 1
            return None
        on_thread = half["ph"] in "BE"
        key = (half["pid"], half["tid"]) if on_thread else ("async", half["cat"], half["scope"], half["id"])
        if half["ph"] in "Bb":
            self._open.setdefault(key, []).append(half)
            return None
        waiting = self._open.get(key, [])
        named = half["name"] is not None
        place = next(
            (at for at in reversed(range(len(waiting))) if not named or waiting[at]["name"] == half["name"]), None
        )
        if place is None:
            self.unmatched["end without begin"] += 1
            return None
        begin = waiting.pop(place)
        if on_thread and len(waiting) > place:  # what began inside it can end no more
            self.unmatched["begin without end"] += len(waiting) - place
            del waiting[place:]
        if not waiting:  # ids are seldom used again
            del self._open[key]
        if half["ts"] < begin["ts"]:
            self.unmatched["end before begin"] += 1
            return None
        told = {name: value for name, value in (half["args"] or {}).items() if value is not None}
        args = {**(begin["args"] or {}), **told} or None
        return {**begin, "ph": "X", "dur": half["ts"] - begin["ts"], "args": args}
