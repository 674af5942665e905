"""Under which conditions a call is timed: what its caches hold, and how it is launched. Fixed by the user's case, and
recorded with every trial.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from tessera.errors import ArgumentError

Cache: TypeAlias = Literal["warm", "cold"]
LaunchMode: TypeAlias = Literal["call", "graph", "stream"]


@dataclass(frozen=True)
class Conditions:
    """`cache`: calls find their operands where the call before left them ("warm"), or in memory ("cold": the caches,
    on a GPU its L2 cache, are filled with other data before every call). `launch`: on a GPU a captured graph of calls
    ("graph": what the host takes is no part of a time) or one kernel after the other ("stream"). A CPU has one way, a
    call of its native driver, which is recorded as "call".

    Raises ArgumentError for other words.
    """

    cache: Cache = "warm"
    launch: LaunchMode = "graph"

    def __post_init__(self) -> None:
        for name, value, kind in (("cache", self.cache, Cache), ("launch", self.launch, LaunchMode)):
            if value not in get_args(kind):
                raise ArgumentError(f"{name}={value!r} is none of {', '.join(get_args(kind))}")

    def named(self, mode: str) -> str:
        """How times were had, for a winner's provenance: `mode`, and what is not as it is unless asked for."""
        changes = [f"{self.cache} caches"] * (self.cache != "warm") + [f"{self.launch} launches"] * (
            self.launch == "stream"
        )
        return ", ".join([mode, *changes])

    def to_json(self) -> dict[str, Any]:
        """Two fields of a trial's record."""
        return {"cache": self.cache, "launch": self.launch}
