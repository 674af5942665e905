"""What a session has taken up so far, on disk: a process that is killed loses only what came since the last part.

A part is a Parquet file with the events since the part before. All lie in one folder of the cache, which
`profile.read` reads like a file, and which is removed when the session has ended.
"""

from __future__ import annotations

import itertools
import shutil
import time
from pathlib import Path
from typing import Any, Final

from tessera import settings
from tessera.errors import ProfileError
from tessera.profiling.recording import regions
from tessera.profiling.recording.recording import Recording, Watermark
from tessera.profiling.session.delivery import file_name
from tessera.system.private import PrivateFolder

AFTER_S: Final = 10.0
"""Age from which on sessions spill where nobody says otherwise: a shorter run is soon repeated."""

_OFTEN_S: Final = 1.0
_SELDOM_S: Final = 10.0
_YOUNG_S: Final = 60.0
"""A part a second in the first minute, then one every ten, so that a day makes some 8,700 files."""


_numbers = itertools.count()  # of the sessions of this process: two may begin in one millisecond


class Spill:
    """The parts of one session."""

    def __init__(self, recording: Recording, after_s: float) -> None:
        self._recording = recording
        self._due_ns = recording.start_ns + int(after_s * 1e9)
        self._told = Watermark()
        self._told_plans: frozenset[int] = frozenset()
        self._parts = 0
        self.folder: Path = settings.current().profiles_dir / f"{file_name()}-{next(_numbers)}.spill"
        self.failed: str | None = None

    def write_if_due(self) -> None:
        """Writes a part when it is time. Where the disk refuses, it gives up, and `failed` says why."""
        now = time.monotonic_ns()
        if now < self._due_ns or self.failed is not None:
            return
        young = now - self._recording.start_ns < _YOUNG_S * 1e9
        self._due_ns = now + int((_OFTEN_S if young else _SELDOM_S) * 1e9)
        from tessera.profiling.export.formats import parquet
        from tessera.profiling.trace import conversion

        part = self._recording.part(self._told)
        if not part.anything:
            return
        part.told_plans, self._told_plans = self._told_plans, self._told_plans | part.ran()
        try:
            PrivateFolder(self.folder.parent).make()
            self.folder.mkdir(mode=0o700, exist_ok=True)
            trace = conversion.trace_of(part)
            trace.metadata["part"] = self._parts
            trace.metadata["open_regions"] = self._open_regions(now)
            parquet.write(trace, self.folder / f"part-{self._parts:06}.parquet")
        except (ProfileError, OSError) as error:
            self.failed = str(error)
            return
        self._parts += 1

    def _open_regions(self, now_ns: int) -> list[dict[str, Any]]:
        """Those that have not ended: whoever reads takes those of the last part for events."""
        zero = self._recording.start_ns
        begins = [(each, max(each.start_ns, zero)) for each in regions.still_open()]
        return [
            {"name": each.name, "thread": each.thread, "start_ns": begin - zero, "end_ns": now_ns - zero}
            for each, begin in begins
            if begin <= now_ns
        ]

    def remove(self) -> None:
        """The session has ended: it holds everything itself."""
        shutil.rmtree(self.folder, ignore_errors=True)
