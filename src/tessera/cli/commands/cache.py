"""`tessera cache`: looks into the winners that tuning found, carries them elsewhere and tidies their folder."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from enum import StrEnum
from functools import cache as cache_once
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tessera.cli import cache_tables as tables
from tessera.cli.unwritten import require_written
from tessera.errors import ArgumentError, CacheIOError
from tessera.tuning.measure.trial import trial_of
from tessera.tuning.store import exchange, packs, pruning
from tessera.tuning.store.database import Found
from tessera.tuning.store.entry import Entry
from tessera.tuning.store.processors import names_of
from tessera.tuning.store.selection import Selection, differences

if TYPE_CHECKING:
    from tessera.tuning.autotuner import Autotune

cache = typer.Typer(
    help="List, show, export, import, merge, compare and tidy the winners that tuning found.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Name = Annotated[str, typer.Argument(help="A part of the operator's name, or the beginning of a key.")]
Shape = Annotated[str, typer.Option(help="The problem size, such as 1024x1024x64.")]
DType = Annotated[str, typer.Option(help="The dtype of an operand, such as bf16.")]
Arch = Annotated[str, typer.Option(help="The processor, as `tessera doctor` calls it.")]
Foreign = Annotated[bool, typer.Option("--foreign", help="Also list winners for processors that this machine lacks.")]
Threads = Annotated[int | None, typer.Option(min=1, help="The number of threads.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


class CacheLayer(StrEnum):
    """The layers that have a folder on every machine, or may have one."""

    USER = "user"
    SITE = "site"
    SHIPPED = "shipped"


@cache.command("list")
def list_entries(
    name: Name = "",
    shape: Shape = "",
    dtype: DType = "",
    arch: Arch = "",
    threads: Threads = None,
    foreign: Foreign = False,
    as_json: Json = False,
) -> None:
    """List winners: what each is for, its schedule, its time, and in which layer it lies. Those for processors that
    this machine lacks are listed with --foreign, and where --arch names theirs.
    """
    found = list(_found(_selection(name, shape, dtype, arch, threads)))
    here = found if foreign or arch else [each for each in found if each.entry.identity.arch in _archs()]
    _print(as_json, [_record(each) for each in here], lambda: tables.entries(here, len(found) - len(here)))


@cache.command()
def show(
    name: Name,
    shape: Shape = "",
    dtype: DType = "",
    arch: Arch = "",
    threads: Threads = None,
    as_json: Json = False,
) -> None:
    """Show winners in full: identity, schedule, times, where they come from, and what became of their trials."""
    found = list(_found(_selection(name, shape, dtype, arch, threads)))
    if not found:
        raise ArgumentError(f"there is no entry of {name!r}", hints=["`tessera cache list` shows all"])
    records = [_record(each) | {"outcomes": _outcomes(each.entry)} for each in found]
    _print(as_json, records, lambda: tables.details(records))


@cache.command()
def export(
    file: Annotated[Path, typer.Argument(help="Where to; with --packed a folder.")],
    name: Annotated[str, typer.Option(help="A part of the operator's name, or the beginning of a key.")] = "",
    arch: Arch = "",
    packed: Annotated[
        bool, typer.Option("--packed", help="Write a folder for TESSERA_TUNE_SITE_DIR, a file for each kind of kernel.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write winners to one file, for `import` on another machine of the same kind."""
    chosen = [each.entry for each in _found(_selection(name, "", "", arch, None))]
    if packed:
        files = _packed(exchange.best_of(entry for entry in chosen if entry.origin == "measured"), file)
        _print(as_json, {"files": [str(path) for path in files]}, lambda: print(f"{len(files)} files below {file}"))
        return
    count = exchange.export(chosen, file)
    _print(as_json, {"entries": count}, lambda: print(f"{count} entries in {file}"))


@cache.command("import")
def import_entries(
    file: Annotated[Path, typer.Argument(help="An exported file, or a folder of winners.")], as_json: Json = False
) -> None:
    """Take winners over where they are better than what is here, and say which do not apply, and why."""
    done = _autotune().load_cache(file)
    record = {"applied": done.applied, "declined": done.declined, "refused": done.refused}
    _print(as_json, record, lambda: print(done))
    require_written()


@cache.command()
def merge(
    files: Annotated[list[Path], typer.Argument(help="Exported files, or folders of winners.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.")],
    as_json: Json = False,
) -> None:
    """Join files into one: of several winners for the same the fastest measured one stays. The cache is not touched."""
    found = [exchange.collect(file) for file in files]
    best = exchange.best_of(entry for collection in found for entry in collection.entries)
    exchange.export(best, output)
    refused = {
        f"{file}: {reason}": names
        for file, each in zip(files, found, strict=True)
        for reason, names in each.refused.items()
    }
    record = {"entries": len(best), "of": sum(len(each.entries) for each in found), "refused": refused}
    _print(as_json, record, lambda: tables.merged(record, output))


@cache.command()
def diff(
    left: Annotated[Path, typer.Argument(help="An exported file, or a folder of winners.")],
    right: Annotated[Path | None, typer.Argument(help="Another one; the cache of this machine unless given.")] = None,
    as_json: Json = False,
) -> None:
    """Compare two collections of winners. The exit status is 1 where they differ."""
    there = list(_autotune().database.entries()) if right is None else exchange.collect(right).entries
    found = differences(exchange.collect(left).entries, there)
    records = [
        {
            "key": each.identity.key(),
            "identity": each.identity.to_json(),
            "kind": each.kind,
            "left": each.left and each.left.to_json(),
            "right": each.right and each.right.to_json(),
            "time_ratio": each.ratio,
        }
        for each in found
    ]
    _print(as_json, records, lambda: tables.differing(found))
    if found:
        raise typer.Exit(1)


@cache.command()
def prune(
    name: Annotated[str, typer.Option(help="Also remove winners of which this is a part of the operator's name.")] = "",
    arch: Annotated[str, typer.Option(help="Also remove winners for this processor.")] = "",
    older_than: Annotated[
        float | None, typer.Option(min=0, metavar="DAYS", help="Also remove winners older than this.")
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Also remove the logs of all trials.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be removed, and remove nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Remove what nothing needs from the user's layer: left-overs of killed processes, replaced files that were kept
    aside, damaged entries, guesses beside a measured winner. Winners go only where an option names them; where several
    do, those that all name.
    """
    layer = _autotune().database.user
    found = {item.path: item for item in pruning.waste(layer)}
    if name or arch or older_than is not None:
        chosen, old = Selection(name, arch=arch), pruning.older_than(older_than or 0.0)
        items = pruning.winners(layer, lambda entry: chosen(entry) and (older_than is None or old(entry)), "as asked")
        found |= {item.path: item for item in items}
    if logs:
        found |= {item.path: item for item in pruning.logs(layer)}
    done = [(item, None) for item in found.values()] if dry_run else list(pruning.remove(found.values()))
    records = [
        {"file": str(item.path), "reason": item.reason, "bytes": item.size, "error": error and str(error)}
        for item, error in done
    ]
    _print(as_json, records, lambda: tables.pruned(records, dry_run))
    if any(error is not None for _, error in done):
        raise typer.Exit(1)


@cache.command()
def path(
    layer: Annotated[CacheLayer, typer.Argument(help="Which layer.")] = CacheLayer.USER,
    as_json: Json = False,
) -> None:
    """Print the folder of a layer; with --json of all, with the number of entries in each."""
    database = _autotune().database
    records = [
        {
            "layer": each.name,
            "folder": str(each.root),
            "entries": each.count(),
            "writable": each is database.user and database.writable(),
        }
        for each in database.layers
    ]
    folders = [record["folder"] for record in records if record["layer"] == layer]
    if not folders and not as_json:
        raise ArgumentError(f"there is no {layer.value} layer", hints=["TESSERA_TUNE_SITE_DIR names the site's"])
    _print(as_json, records, lambda: print(*folders, sep="\n"))


def _autotune() -> Autotune:
    from tessera.compiler.entry import autotune  # which loads torch: --help does not wait for it

    return autotune


def _selection(name: str, shape: str, dtype: str, arch: str, threads: int | None) -> Selection:
    try:
        extents = tuple(map(int, shape.replace(",", "x").split("x"))) if shape else None
    except ValueError:
        raise ArgumentError(f"--shape {shape} is no shape", hints=["write it as 1024x1024x64"]) from None
    return Selection(name, extents, dtype, arch, threads)


@cache_once
def _archs() -> tuple[str, ...]:
    """The processors of this machine, under all names that identities may have for them."""
    from tessera.compiler.tune.tuning import CompilerBackend  # which loads torch

    return tuple(name for arch in CompilerBackend().archs for name in names_of(arch))


def _found(wanted: Callable[[Entry], bool]) -> Iterator[Found]:
    """The entries of this machine's cache that are wanted, in the order of exported files."""
    return (each for each in sorted(_autotune().database.located(), key=_place) if wanted(each.entry))


def _place(found: Found) -> Any:
    return found.entry.identity.operator, *exchange.place_of(found.entry)


def _record(found: Found) -> dict[str, Any]:
    return {"key": found.entry.identity.key(), "layer": found.layer} | found.entry.to_json()


def _outcomes(entry: Entry) -> dict[str, int]:
    """How many of the logged trials of an entry's identity had which outcome."""
    counts: dict[str, int] = {}
    for record in _autotune().database.trials(entry.identity):
        trial = trial_of(record)
        outcome = "unreadable" if trial is None else trial.outcome
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts


def _packed(entries: list[Entry], folder: Path) -> list[Path]:
    try:
        return packs.write_packs(entries, folder)
    except OSError as error:
        raise CacheIOError(f"cannot write below {folder}: {error.strerror or error}") from error


def _print(as_json: bool, record: object, show_text: Callable[[], None]) -> None:
    if as_json:
        json.dump(record, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        show_text()
