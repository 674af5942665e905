"""What becomes of a session's trace at its end: exporters write their files, and nothing is lost where one cannot."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tessera import settings
from tessera.errors import ProfileError
from tessera.profiling.export.contract import Exporter
from tessera.system import files
from tessera.system.private import PrivateFolder

if TYPE_CHECKING:
    from tessera.profiling.session.options import SessionOptions
    from tessera.profiling.trace.table import Trace


def deliver(trace: Trace, options: SessionOptions, error: BaseException | None) -> None:
    """Has every exporter that is asked for write its file. Where one fails, whatever it raises, the others write
    theirs and all records are kept in the cache folder; ProfileError says where. With an `error` of the program's own,
    which goes on its way, that is a note on it.
    """
    exporters = list(options.exporters)
    if options.tensorboard_dir is not None:
        exporters.append(_log(options.tensorboard_dir))
    failures = []
    for exporter in exporters:
        try:
            exporter.export(trace)
        except Exception as failure:  # noqa: BLE001 - an exporter may be the user's own
            failures.append(failure)
    if not failures:
        return
    text = f"{'; '.join(map(_said, failures))}. {kept(trace)}"
    if error is not None:
        error.add_note(f"tessera: {text}")
    else:
        raise ProfileError(text, hints=["profile.read(path) reads it"]) from failures[0]


def _said(failure: Exception) -> str:
    return failure.message if isinstance(failure, ProfileError) else f"{type(failure).__name__}: {failure}"


def _log(folder: Path) -> Exporter:
    """The session's log for TensorBoard and `tessera-prof view`, which make the timeline of its columns."""
    from tessera.profiling.export.formats.parquet import ParquetExporter

    with contextlib.suppress(OSError):  # the exporter says that it cannot write there
        folder.mkdir(parents=True, exist_ok=True)
    return ParquetExporter(folder / f"{file_name()}.parquet")


def file_name() -> str:
    """A name that no other session's file has: host, process, and milliseconds."""
    return f"{files.host_name()}_{os.getpid()}.{time.time_ns() // 1_000_000}"


def kept(trace: Trace) -> str:
    """Keeps a trace in the cache folder, and says where, or why not."""
    from tessera.profiling.export.formats.parquet import write

    path = settings.current().profiles_dir / f"{file_name()}.parquet"
    try:
        PrivateFolder(path.parent).make()
        write(trace, path)
    except (ProfileError, OSError) as error:
        return f"The records could not be kept in {path} either ({error}); they are in the session as long as it lives"
    return f"All records are kept in {path}"
