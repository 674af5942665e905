"""Places where users meet."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def meeting_place() -> Iterator[Path]:
    """A folder that every user can enter and write, as /tmp is; `tmp_path` lies where nobody else can enter."""
    with tempfile.TemporaryDirectory(prefix="tessera-hostile-") as name:
        folder = Path(name)
        folder.chmod(0o1777)
        yield folder
