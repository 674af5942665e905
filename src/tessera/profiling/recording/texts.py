"""Texts and numbers that come from users and from other processes, as files and terminals can hold them."""

from __future__ import annotations

from typing import Final, SupportsFloat

from tessera.errors import ArgumentError


def text(name: str) -> str:
    """A name of the user's as files can hold it: half characters, as broken file names have them, become "?". Raises
    ArgumentError for what is no text.
    """
    if not isinstance(name, str):
        raise ArgumentError(f"a name in a profile is {name!r}", hints=["give a text"])
    return name if name.isascii() else name.encode("utf-8", "replace").decode()


_MOST: Final = 1000


def printed(told: object) -> str:
    """What a file or another process says, as a terminal may show it: without control characters, and not endless."""
    said = str(told)
    shown = "".join(each if each.isprintable() else "?" for each in said[:_MOST])
    return shown if len(said) <= _MOST else f"{shown}..."


def number(value: SupportsFloat) -> float:
    """A value of the user's. Raises ArgumentError for what is no number."""
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise ArgumentError(f"a value in a profile is {value!r}", hints=["give a number"]) from error
