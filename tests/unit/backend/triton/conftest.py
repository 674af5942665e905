"""For which GPUs `make test` compiles kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

LEFT_TO_WHOLE = frozenset(("sm80", "sm100"))
"""Hopper and AMD's CDNA 3 differ in what their compilers do; Ampere and Blackwell add little that breaks alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the cases of the other GPUs."""
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        if item.path.parent == Path(__file__).parent and not LEFT_TO_WHOLE.isdisjoint(map(str, params.values())):
            item.add_marker(pytest.mark.whole)
