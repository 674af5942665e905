"""What `trace=` takes: a path, a trace, or a session."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from tessera.profiling import trace
from tessera.profiling.recording import Recording
from tessera.profiling.table import Trace

Source: TypeAlias = str | Path | Trace | Recording


def open_trace(source: Source) -> Trace:
    """The trace that a user means; of a folder, rank by rank. Raises ProfileError for a file that is none."""
    if isinstance(source, Trace):
        return source
    if isinstance(source, Recording):
        return source.trace()
    return trace.read(source, ordered=False)
