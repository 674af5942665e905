"""What `trace=` takes: a path, a trace, or a session."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

from tessera.profiling.session.sessions import Session
from tessera.profiling.trace import reading
from tessera.profiling.trace.table import Trace

Source: TypeAlias = str | Path | Trace | Session


@contextlib.contextmanager
def opened(source: Source) -> Iterator[Trace]:
    """The trace that a user means; of a folder, rank by rank. Raises ProfileError for a file that is none, also where
    that shows only in the block.
    """
    if isinstance(source, Trace):
        yield source
    elif isinstance(source, Session):
        yield source.trace()
    else:
        with reading.reading(source, ordered=False) as found:
            yield found
