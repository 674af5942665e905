"""Options that follow a script's name on a page are the script's."""

from __future__ import annotations

import pytest

from tests.docs.test_names import _wrong


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("tessera run --ranks 2 --no-pin train.py --steps 7", []),
        ("tessera run --rank 2 train.py --ranks 4", ["--rank"]),
        ("tessera run - --arg 4x5", []),
        ("tessera run - --steps 7", ["--steps"]),
    ],
)
def test_options_of_scripts_are_not_looked_up(line: str, wrong: list[str]) -> None:
    assert _wrong(line) == wrong
