"""What a window's reductions are made of: values of the image, and operands that vary from tap to tap."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeAlias

from xdsl.ir import SSAValue

from tessera.scheduling.language.expression import Value, post_order

Tap: TypeAlias = tuple[int, int]
"""A row and a column of the window."""


class TapOperands:
    """The largest values below some reductions that depend on the image alone (`own`: computed once for each vector
    that is loaded) and that do not depend on it, but on the tap (`free`: weights). `written` holds the latter where a
    loop further out has written them.
    """

    def __init__(self, reductions: Sequence[Value], window: Value) -> None:
        reads: set[Value] = set()
        for value in post_order(reductions):
            if value is window or any(argument in reads for argument in value.arguments):
                reads.add(value)
        varies = {value for value in post_order(reductions) if value.axes & {"ky", "kx"} and value not in reads}
        pure = _built_from(window, post_order(reductions), varies, reads)
        terms = [argument for reduction in reductions for argument in reduction.arguments]
        self.own = _largest(terms, pure)
        self.free = _largest(terms, varies)
        self.written: dict[tuple[Value, Tap], SSAValue] = {}


def _built_from(window: Value, values: Iterable[Value], varies: set[Value], reads: set[Value]) -> set[Value]:
    """Values of the image and of what is the same for all taps."""
    pure: set[Value] = {window}
    for value in values:
        if value is window or value.is_reduction or value not in reads:
            continue
        if all(argument in pure or argument not in reads | varies for argument in value.arguments):
            pure.add(value)
    return pure


def _largest(roots: Iterable[Value], members: set[Value]) -> list[Value]:
    """The members nearest to the roots, none below another, in a fixed order."""
    found: dict[Value, None] = {}
    stack, seen = list(roots)[::-1], set[Value]()
    while stack:
        value = stack.pop()
        if value in seen:
            continue
        seen.add(value)
        if value in members:
            found[value] = None
        else:
            stack.extend(reversed(value.arguments))
    return list(found)
