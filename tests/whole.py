"""How much is run: few examples and some cases in `make test`, more of both in `make whole`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

Case = TypeVar("Case")


class _Extent:
    is_whole = False


_extent: Final = _Extent()


def set_whole(is_whole: bool) -> None:
    """Has more examples drawn, by tests that are collected from now on."""
    _extent.is_whole = is_whole


def examples(few: int, many: int) -> int:
    """The examples of a test: `few`, or `many` where everything is run."""
    return many if _extent.is_whole else few


def some(cases: Iterable[Case], kind: Callable[[Case], Hashable] = lambda case: None) -> Sequence[Case]:
    """Every other case of each kind, from the first or the second on by turns, and at least one of each; all of them
    where everything is run.
    """
    cases = list(cases)
    if _extent.is_whole:
        return cases
    kinds: dict[Hashable, list[int]] = {}
    for place, case in enumerate(cases):
        kinds.setdefault(kind(case), []).append(place)
    kept = (places[turn % 2 :: 2] or places for turn, places in enumerate(kinds.values()))
    return [cases[place] for place in sorted(place for places in kept for place in places)]
