"""Reading the published tables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any


@dataclass(frozen=True)
class AllReduces:
    """Published all-reduces of one system: bytes of the tensor -> seconds."""

    topology: str
    devices: int
    software: str
    seconds: dict[int, float]
    source: str


@cache
def table(name: str) -> Any:
    """The JSON of a table: "all_reduce", "korthikanti" or "megatron_bridge"."""
    return json.loads((resources.files("tessera.sharding.published") / f"{name}.json").read_text())


def all_reduces() -> list[AllReduces]:
    """All-reduces of 64 H100, and of 72, 144 and 1,440 GB200."""
    read = table("all_reduce")
    return [
        AllReduces(
            row["topology"],
            row["devices"],
            row["software"],
            {int(size): 1e-6 * us for size, us in row["us"].items()},
            read["source"],
        )
        for row in read["systems"]
    ]
