"""Choosing and comparing entries: what `tessera cache list`, `export` and `diff` do, without the printing."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from tessera.tuning.store.entry import Entry, Origin
from tessera.tuning.store.exchange import place_of
from tessera.tuning.store.identity import Identity

_KEY = re.compile(r"[0-9a-f]{4,12}")


@dataclass(frozen=True)
class Selection:
    """Which entries are meant; what is empty or None leaves nothing out. `name` is a part of the operator's name, or
    the beginning of an identity's `key`.
    """

    name: str = ""
    shape: tuple[int, ...] | None = None
    dtype: str = ""
    arch: str = ""
    threads: int | None = None
    origin: Origin | None = None

    def __call__(self, entry: Entry) -> bool:
        identity = entry.identity
        return (
            self._names(identity)
            and self.shape in (None, identity.shape)
            and (not self.dtype or self.dtype in identity.dtypes)
            and self.arch in ("", identity.arch)
            and self.threads in (None, identity.threads)
            and self.origin in (None, entry.origin)
        )

    def _names(self, identity: Identity) -> bool:
        is_key = _KEY.fullmatch(self.name) is not None
        return self.name in identity.operator or (is_key and identity.key().startswith(self.name))


@dataclass(frozen=True)
class Difference:
    """One identity in which two collections differ; None where one has no such entry."""

    identity: Identity
    left: Entry | None
    right: Entry | None

    @property
    def kind(self) -> str:
        """ "only left", "only right", "schedule", "time" or "provenance": the first in which the entries differ."""
        if self.left is None or self.right is None:
            return "only right" if self.left is None else "only left"
        if self.left.schedule != self.right.schedule:
            return "schedule"
        return "provenance" if self.left.measured_s == self.right.measured_s else "time"

    @property
    def ratio(self) -> float | None:
        """The measured time on the right over that on the left; None unless both are measured."""
        if self.left is None or self.right is None or self.left.measured_s is None or self.right.measured_s is None:
            return None
        return self.right.measured_s / self.left.measured_s


def differences(left: Iterable[Entry], right: Iterable[Entry]) -> list[Difference]:
    """Where two collections differ in any field of an entry, in the order of exported files."""
    here, there = ({(entry.identity, entry.origin): entry for entry in side} for side in (left, right))
    keys = sorted(here.keys() | there.keys(), key=lambda key: place_of(here.get(key) or there[key]))
    return [Difference(key[0], here.get(key), there.get(key)) for key in keys if here.get(key) != there.get(key)]
