"""How many examples are drawn: few in `make test`, more in `make whole`."""

from __future__ import annotations

from typing import Final


class _Extent:
    is_whole = False


_extent: Final = _Extent()


def set_whole(is_whole: bool) -> None:
    """Has more examples drawn, by tests that are collected from now on."""
    _extent.is_whole = is_whole


def examples(few: int, many: int) -> int:
    """The examples of a test: `few`, or `many` where everything is run."""
    return many if _extent.is_whole else few
