"""Where programs that `tessera-prof` runs call: each process, when its first plan is about to run, and waits for its
session to begin, so that nothing is missing.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from tessera.errors import AttachError
from tessera.profiling.attach import credentials, places, wire
from tessera.profiling.attach.client import Attachment

VARIABLE: Final = "TESSERA_PROFILE_HOME"
"""The environment variable that tells programs where to call."""

REPLAY: Final = "TESSERA_PROFILE_REPLAY"
"""The one that tells whether kernels of GPUs are counted by replay: "1" or "0"."""


class Home:
    """A socket that takes calls while the `with` block lasts. `joined` gets an attachment for each process that called,
    on a thread of the home's own; what it raises as AttachError goes to `refused`.
    """

    def __init__(self, joined: Callable[[Attachment], None], refused: Callable[[AttachError], None]) -> None:
        self._joined = joined
        self._refused = refused
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._thread = threading.Thread(target=self._answer, name="tessera-prof-home", daemon=True)
        self.path: Path

    def __enter__(self) -> Self:
        """Raises OSError where no folder serves."""
        mine = places.process(os.getpid())
        name = f"home-{mine.socket_name}" if mine is not None else f"home-{os.getpid()}.sock"
        self.path = places.folder_for(name) / name
        self._socket.bind(str(self.path))
        self.path.chmod(0o600)
        self._socket.listen(64)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread, which closing alone does not
        self._socket.close()
        self._thread.join()
        self.path.unlink(missing_ok=True)

    def _answer(self) -> None:
        for connection in wire.connections(self._socket):
            if not credentials.may_attach(credentials.peer(connection).uid):
                connection.close()
                continue
            try:
                self._joined(Attachment(connection))
            except AttachError as error:
                connection.close()
                self._refused(error)
