"""The priority of work beside a program that runs: what is compiled to tune it leaves it its processors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_background: ContextVar[int] = ContextVar("niceness", default=0)


@contextmanager
def at_niceness(niceness: int) -> Iterator[None]:
    """What is compiled meanwhile, in this context, is compiled at a lower priority than the program has."""
    token = _background.set(niceness)
    try:
        yield
    finally:
        _background.reset(token)


def current_niceness() -> int:
    """That of the `at_niceness` in force, 0 without one."""
    return _background.get()
