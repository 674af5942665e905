"""Jobs: a program that several processes run together. `join` is the way in.

Names are imported when they are asked for, as those of `tessera` are: the launcher starts ranks before torch is there.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tessera.sharding.job.job import Job, TransportName
    from tessera.sharding.job.joining import join

__all__ = ["Job", "TransportName", "join"]

_HOMES: Final = {
    "Job": "tessera.sharding.job.job",
    "TransportName": "tessera.sharding.job.job",
    "join": "tessera.sharding.job.joining",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
