"""``python -m bench.tuning.ship [TABLE_OR_FOLDER ...] [--folder FOLDER]``: the winners that ship with the package, from
recorded tables.

The winner of a table is its fastest schedule, of all that were recorded: of those within the noise of it the one that
the cost model likes best, as the tuner chooses. What ships already stays where it is faster.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.tuning.table import BUSY, SUFFIX, TABLES, Record, Table, read
from tessera.tuning.measure.trial import Timing
from tessera.tuning.store import packs
from tessera.tuning.store.database import SHIPPED
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.exchange import best_of, collect

WITHIN = 0.01
"""Schedules that are slower by no more than this are as good: the tuner stops at such steps, too."""


def winner(table: Table) -> Entry:
    """The winner of a table. Raises ValueError where no schedule of it runs."""
    timed = [(statistics.median(samples), each) for each in table.records if (samples := table.samples(each.schedule))]
    if not timed:
        raise ValueError(f"no schedule of {table.about.name} runs")
    best = Timing.of(table.samples(min(timed, key=_seconds)[1].schedule))
    limit = max(best.high_s, best.median_s * (1 + WITHIN))
    seconds, record = min((each for each in timed if each[0] <= limit), key=_liking)
    about = table.about
    return Entry(
        about.identity, record.schedule, "measured", about.provenance, record.estimated_s, seconds, len(table.records)
    )


def _seconds(timed: tuple[float, Record]) -> float:
    return timed[0]


def _liking(timed: tuple[float, Record]) -> tuple[float, str]:
    """The order in which schedules that are as fast as each other are taken."""
    expected = timed[1].estimated_s
    return math.inf if expected is None else expected, str(timed[1].schedule)


def tables(places: Sequence[Path]) -> Iterator[tuple[Path, Table]]:
    """The tables in files, and in all files below folders. Raises CacheFormatError for a file that is none."""
    for place in places:
        for path in sorted(place.rglob(f"*{SUFFIX}")) if place.is_dir() else [place]:
            yield path, read(path)


def main(arguments: Sequence[str]) -> int:
    """Writes the packs. Returns the exit code: 1 where a table gives no winner."""
    parser = argparse.ArgumentParser(prog="python -m bench.tuning.ship", description=__doc__)
    parser.add_argument("tables", nargs="*", type=Path, default=[TABLES], help="files or folders (bench/tables)")
    parser.add_argument("--folder", type=Path, default=SHIPPED, help="where packs go (the package's shipped layer)")
    parser.add_argument("--busy", action="store_true", help="also take tables that were recorded on a busy machine")
    asked = parser.parse_args(arguments)
    entries, failed = [], 0
    for path, table in tables(asked.tables):
        if table.busy_share > BUSY and not asked.busy:
            print(f"left out {path.name}: {table.busy_share:.0%} of its samples were disturbed", file=sys.stderr)
            continue
        try:
            entries.append(winner(table))
        except ValueError as error:
            print(f"left out {path.name}: {error}", file=sys.stderr)
            failed = 1
    there = collect(asked.folder).entries if any(asked.folder.glob("v[0-9]*")) else ()
    written = packs.write_packs(best_of([*there, *entries]), asked.folder)
    print(f"{len(entries)} winners of tables, {len(there)} that were there: {len(written)} files below {asked.folder}")
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
