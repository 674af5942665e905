"""The viewer as a plugin of TensorBoard: runs are the folders below `--logdir` that hold traces.

Nothing here is imported while recording, and no event files are written: `tensorboard_dir` of a session is enough.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import polars
from polars.exceptions import PolarsError
from tensorboard.plugins import base_plugin

from tessera.errors import ProfileError
from tessera.profiling.export.formats.parquet import KEY
from tessera.viewer.app import WAITED_S, Viewer
from tessera.viewer.runs import PARQUET, Run, runs_at

_EVERY_S: Final = 5.0
"""How often the folder is looked through, at most: TensorBoard asks whether there is anything every few seconds."""


class TesseraPlugin(base_plugin.TBPlugin):  # type: ignore[misc]
    """The tab "Tessera"."""

    plugin_name = "tessera"

    def __init__(self, context: Any) -> None:
        super().__init__(context)
        self._folder = str(context.logdir or "")
        self._active = False
        self._looked = -_EVERY_S
        self._looking = threading.Lock()

    def get_plugin_apps(self) -> Mapping[str, Callable[..., Any]]:
        """The application, below `/data/plugin/tessera`."""
        viewer = Viewer(self._runs, limit_s=WAITED_S)
        return {"/static/*": viewer, "/api/*": viewer}

    def is_active(self) -> bool:
        """Whether there are traces, as far as the last look told; a new one is taken beside."""
        if not self._active and time.monotonic() - self._looked > _EVERY_S and self._looking.acquire(blocking=False):
            self._looked = time.monotonic()
            threading.Thread(target=self._look, daemon=True).start()
        return self._active

    def frontend_metadata(self) -> Any:
        """Where the front end begins."""
        return base_plugin.FrontendMetadata(es_module_path="/static/tensorboard.js", tab_name="Tessera")

    def _runs(self) -> list[Run]:
        if not self._folder or "://" in self._folder:
            hint = "tensorboard --logdir with one folder of this machine"
            raise ProfileError("traces are read from a local --logdir alone", hints=[hint])
        return runs_at(Path(self._folder))

    def _look(self) -> None:
        try:
            self._active = any(map(_is_trace, Path(self._folder).rglob(f"*{PARQUET}"))) if self._folder else False
        finally:
            self._looking.release()


def _is_trace(path: Path) -> bool:
    try:
        return KEY in polars.read_parquet_metadata(path)
    except (OSError, PolarsError):
        return False
