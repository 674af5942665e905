"""Reading logs of trials: one JSON object a line, some of which a crash, a full disk or a stranger may have spoiled."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tessera.errors import CacheFormatError
from tessera.system.files import open_regular
from tessera.tuning.store.untrusted import ENTRY_BYTES, decode


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a log, line by line, so that a long one takes no memory; a spoiled line costs itself alone.

    Raises OSError where the file cannot be read, E_CACHE_FORMAT where it is a link or no regular file.
    """
    with open_regular(path) as stream:
        while line := stream.readline(ENTRY_BYTES):
            try:
                record = decode(line, str(path))
            except CacheFormatError:
                continue
            if isinstance(record, dict):
                yield record
