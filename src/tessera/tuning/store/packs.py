"""Many winners of one family in one file, for layers that nobody writes to while they are read.

A pack says once what its entries share: thousands of winners take few files, and none is read before a kernel of its
family is asked for. One line is one winner, in the order of their shapes, so that packs can be compared with diff.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tessera.errors import CacheFormatError
from tessera.system.files import read_regular, write_atomically
from tessera.tuning.store.entry import VERSION, Entry, Origin, check_version, winner
from tessera.tuning.store.identity import Identity, Provenance
from tessera.tuning.store.untrusted import FAMILY_BYTES, decode, listed, whole

NAME = "pack.json"
"""The file in the folder of a family; no shape has this name."""

FORMAT = "tessera-autotune-pack"


@dataclass(frozen=True)
class Pack:
    """The winners of one family. They are decoded when they are asked for: `records` is what stands in the file."""

    path: str
    family: Identity
    provenances: Sequence[Provenance]
    records: dict[tuple[tuple[int, ...], Origin], dict[str, Any]]

    def get(self, shape: tuple[int, ...], origin: Origin) -> Entry | None:
        """The entry of a shape; None where there is none. Raises E_CACHE_FORMAT for a damaged one."""
        record = self.records.get((shape, origin))
        if record is None:
            return None
        identity = replace(self.family, shape=shape)
        try:
            return winner(record, identity, self.provenances[whole(record["provenance"])])
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise CacheFormatError(f"{self.path}: {identity.shape_name()} is damaged: {error}") from error


def read_pack(path: str, family: str) -> Pack:
    """The pack in a file of the folder `family`. Raises E_CACHE_FORMAT as `entry.parse`, and OSError."""
    content = decode(read_regular(path, FAMILY_BYTES), path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CacheFormatError(f"{path} is no pack of a tuning cache")
    check_version(content, path)
    try:
        identity = Identity.from_json({**content["identity"], "shape": []})
        provenances = [Provenance.from_json(record) for record in listed(content["provenance"])]
        records = {
            (tuple(listed(record["shape"])), _origin(record["origin"])): record for record in listed(content["entries"])
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CacheFormatError(f"{path} is damaged: {type(error).__name__} {error}") from error
    if any(type(extent) is not int or not 0 <= extent < 1 << 63 for shape, _ in records for extent in shape):
        raise CacheFormatError(f"{path} is damaged: a shape is none")
    if identity.family() != family:
        raise CacheFormatError(f"{path} holds winners of {identity.family()}, which belong elsewhere")
    return Pack(path, identity, provenances, records)


def write_packs(entries: Iterable[Entry], folder: Path) -> list[Path]:
    """Writes entries to `folder`, a layer's, one file a family; the files. Raises OSError.

    Of several entries of one identity and origin the best stays. A pack that is there already is replaced.
    """
    families: dict[str, dict[tuple[Identity, Origin], Entry]] = {}
    for entry in entries:
        family = families.setdefault(entry.identity.family(), {})
        known = family.get((entry.identity, entry.origin))
        if known is None or entry.beats(known):
            family[entry.identity, entry.origin] = entry
    paths = []
    for name, family in sorted(families.items()):
        path = folder / f"v{VERSION}" / name / NAME
        write_atomically(path, _dump(sorted(family.values(), key=lambda entry: (entry.identity.shape, entry.origin))))
        paths.append(path)
    return paths


def _dump(entries: Sequence[Entry]) -> bytes:
    identity = entries[0].identity.to_json()
    del identity["shape"]
    provenances = list(dict.fromkeys(entry.provenance for entry in entries))
    head = {"format": FORMAT, "version": VERSION, "identity": identity}
    head["provenance"] = [provenance.to_json() for provenance in provenances]
    lines = ",\n".join(_lines(entries, provenances))
    return f'{json.dumps(head, allow_nan=False)[:-1]}, "entries": [\n{lines}\n]}}\n'.encode()


def _lines(entries: Iterable[Entry], provenances: Sequence[Provenance]) -> Iterator[str]:
    number = {provenance: place for place, provenance in enumerate(provenances)}
    for entry in entries:
        record = {
            "shape": list(entry.identity.shape),
            "schedule": entry.schedule.to_json(),
            "origin": entry.origin,
            "measured_s": entry.measured_s,
            "predicted_s": entry.predicted_s,
            "trials": entry.trials,
            "provenance": number[entry.provenance],
        }
        yield json.dumps(record, allow_nan=False)


def _origin(value: object) -> Origin:
    if value == "measured":
        return "measured"
    if value == "model":
        return "model"
    raise ValueError(f"origin {str(value)[:20]!r}")
