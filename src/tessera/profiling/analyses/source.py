"""What `trace=` takes: a path, a trace, or a session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol, TypeAlias

from tessera.profiling.trace import reading
from tessera.profiling.trace.table import Trace


class Traced(Protocol):
    """What has a trace of its own, as sessions have; analyses of files do without the modules of sessions."""

    def trace(self) -> Trace:
        """All events so far."""


Source: TypeAlias = str | Path | Trace | Traced


@contextlib.contextmanager
def opened(source: Source) -> Iterator[Trace]:
    """The trace that a user means; of a folder, rank by rank. Raises ProfileError for a file that is none, also where
    that shows only in the block.
    """
    if isinstance(source, Trace):
        yield source
    elif isinstance(source, str | Path):
        with reading.reading(source, ordered=False) as found:
            yield found
    else:
        yield source.trace()
