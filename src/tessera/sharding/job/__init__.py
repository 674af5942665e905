"""Jobs: a program that several processes run together. `join` is the way in.

Names are imported when they are asked for, as those of `tessera` are: the launcher starts ranks before torch is there.

`join()` gives the `ProcessJob` of this rank. `joining.py` meets the others in torch's store, `members.py` says where
each runs, `communicator.py` numbers, describes and checks collectives (blocking, or `start_...` and `wait`, which end
in the order of starts), `patience.py` is asked ten times a second while one waits. `watcher.py` is the thread of each
rank that sees others end, answers their questions (`mail.py`: datagrams over abstract sockets, descriptors included)
and sets the fault word. `page.py` is what a rank last did, in memory that outlives it; `faults.py` what survivors
raise. `launcher.py` and `ranks.py` are `tessera run`. A wait looks at the fault word and comes back to Python, so that
signals are handled; nobody waits inside Gloo but the transport's thread.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tessera.sharding.job.job import ProcessJob, TransportName
    from tessera.sharding.job.joining import join

__all__ = ["ProcessJob", "TransportName", "is_rank", "join"]

_HOMES: Final = {
    "ProcessJob": "tessera.sharding.job.job",
    "TransportName": "tessera.sharding.job.job",
    "join": "tessera.sharding.job.joining",
}


def is_rank() -> bool:
    """Whether this process is a rank of a job that others take part in: of torch's process group, or of a launcher."""
    distributed = sys.modules.get("torch.distributed")
    grouped = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return bool(grouped or "RANK" in os.environ)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
