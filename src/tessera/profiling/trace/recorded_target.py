"""The CPU that a trace was recorded on, as the trace tells it, with the ceilings that were known of it then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict
from typing import Any

from tessera.errors import CacheFormatError
from tessera.target import Ceilings, MemoryLevel, Target, detect
from tessera.target.cpu import machine_name
from tessera.target.stored_ceilings import any_stored, stored_ceilings


def told() -> dict[str, Any]:
    """What a trace says of this CPU: `target`, the `threads` that kernels may use, and `ceilings` where they have been
    measured.
    """
    from tessera.lazy.threads import worker_count  # which loads torch; what only reads traces does without

    own = detect()
    known = stored_ceilings(own)
    target = {"kind": own.kind, "arch": own.arch, "name": own.name, "cores": own.cores, "processors": own.processors}
    levels = [asdict(level) for level in own.memory]
    ceilings = {} if known is None else {"ceilings": json.loads(known.to_json())}
    return {"target": {**target, "memory": levels}, "threads": worker_count(), **ceilings}


def recorded_target(metadata: Mapping[str, Any]) -> Target | None:
    """The CPU of a trace with the ceilings that the trace holds; where it holds none and was recorded on such a CPU as
    this, with those that have been measured here, if any. None for another CPU.

    LLVM, which takes a moment to load, is asked what this CPU is only where that decides.
    """
    told = metadata.get("target")
    found = told if isinstance(told, Mapping) else {}
    recorded: Target | None = None
    with suppress(KeyError, TypeError, ValueError, CacheFormatError):  # older traces, those of others, and damaged ones
        recorded = _described(found)
        return recorded.with_ceilings(Ceilings.from_json(json.dumps(metadata["ceilings"])))
    if found and machine_name() not in ("", found.get("name")):
        return None
    if recorded is not None and recorded.name == machine_name() and not any_stored(recorded.arch):
        return recorded
    own = detect()
    if found and (found.get("arch"), found.get("name")) != (own.arch, own.name):
        return None
    known = stored_ceilings(own)
    return own if known is None else own.with_ceilings(known)


def _described(found: Mapping[str, Any]) -> Target:
    """The CPU that a trace tells of, as far as analyses ask. Raises KeyError, TypeError or ValueError where it tells
    none.
    """
    return Target(
        kind="cpu",
        arch=str(found["arch"]),
        name=str(found["name"]),
        features=frozenset(),
        vector_bits=0,
        vector_registers=0,
        cores=int(found["cores"]),
        processors=int(found["processors"]),
        memory=tuple(MemoryLevel(**level) for level in found["memory"]),
    )
