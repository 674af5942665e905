"""Snippets run in a folder of their own with empty caches, and leave no setting behind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tessera import autotune, settings
from tessera.ops import record


@pytest.fixture(autouse=True)
def own_operators() -> Iterator[None]:
    """Operators that a page registers are gone after it."""
    known = set(record.OPERATORS)
    yield
    for name in record.OPERATORS.keys() - known:
        del record._registry[name]


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A current folder that nobody else uses; tuning is brief, of high priority, and off afterwards."""
    monkeypatch.chdir(tmp_path)
    with settings.override(tune_budget_s=0.5, tune_share=1.0):
        yield
    autotune.enable(False)
