"""How `tessera cache` shows entries to people."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tessera.cli.commands.doctor import PIPED_WIDTH, size
from tessera.tuning.store.database import Found
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.selection import Difference

_HEADINGS = ("key", "operator", "shape", "dtypes", "processor", "threads", "time", "layer", "schedule")


def entries(found: Sequence[Found], foreign: int = 0) -> None:
    """A table with one line an entry, which says how many `foreign` ones it leaves out."""
    left_out = f"{foreign} more are for other processors: --foreign lists them" if foreign else None
    table = Table(*_HEADINGS, title=f"{len(found)} winners", caption=left_out)
    for each in found:
        identity = each.entry.identity
        row = (
            identity.key(),
            identity.operator,
            identity.shape_name(),
            ",".join(dict.fromkeys(identity.dtypes)),
            identity.arch,
            str(identity.threads),
            _time(each.entry),
            each.layer,
            str(each.entry.schedule),
        )
        table.add_row(*map(Text, row))
    _console().print(table)


def details(records: Sequence[Mapping[str, Any]]) -> None:
    """All that is known of each entry, field by field; entries apart by an empty line."""
    for number, record in enumerate(records):
        if number:
            print()
        identity, provenance = record["identity"], record["provenance"]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in record["outcomes"].items())
        lines = {
            "key": record["key"],
            **identity,
            "shape": "x".join(map(str, identity["shape"])),
            "best": record["best"],
            "origin": record["origin"],
            "measured": _seconds(record["measured_s"]),
            "predicted": _seconds(record["predicted_s"]),
            "trials": f"{record['trials']} by the tuning that found it; logged: {outcomes or 'none'}",
            "layer": record["layer"],
            **{f"found with {name}": value for name, value in provenance.items()},
        }
        for name, value in lines.items():
            shown = ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
            print(f"{name:22} {shown}")


def differing(found: Sequence[Difference]) -> None:
    """A table with one line a difference."""
    if not found:
        print("no difference")
        return
    table = Table("key", "what", "difference", "left", "right", "right/left", title=f"{len(found)} differences")
    for each in found:
        ratio = "" if each.ratio is None else f"{each.ratio:.3f}"
        sides = [_side(entry) for entry in (each.left, each.right)]
        table.add_row(*map(Text, (each.identity.key(), str(each.identity), each.kind, *sides, ratio)))
    _console().print(table)


def pruned(records: Sequence[Mapping[str, Any]], dry_run: bool) -> None:
    """What was removed, or would be, by reason, and what could not be."""
    reasons: dict[str, list[int]] = {}
    for record in records:
        if record["error"]:
            print(f"cannot remove {record['file']}: {record['error']}", file=sys.stderr)
        else:
            reasons.setdefault(record["reason"], []).append(record["bytes"])
    for reason, sizes in reasons.items():
        print(f"{len(sizes)} files, {size(sum(sizes))}: {reason}")
    print("nothing to remove" if not records else "would be removed" if dry_run else "removed")


def merged(record: Mapping[str, Any], output: Path) -> None:
    """What `merge` wrote, and what it could not read."""
    print(f"{record['entries']} entries in {output}, the best of {record['of']}")
    for reason, names in record["refused"].items():
        print(f"{len(names)} left out, {reason}: {names[0]}")


def _side(entry: Entry | None) -> str:
    return "" if entry is None else f"{entry.schedule}; {_time(entry)}"


def _time(entry: Entry) -> str:
    return "not measured" if entry.measured_s is None else _seconds(entry.measured_s)


def _seconds(value: float | None) -> str:
    return "unknown" if value is None else f"{value * 1e6:.4g} us"


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else PIPED_WIDTH)
