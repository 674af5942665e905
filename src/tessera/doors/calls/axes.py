"""Axes by either of their names: `axis` and `keepdims`, as in the array API, or `dim` and `keepdim`, as in torch."""

from __future__ import annotations

from typing import TypeVar

from tessera.errors import ArgumentError

T = TypeVar("T")


def along(axis: T, dim: T | None, default: object = None) -> T:
    """The axis that was given. Raises ArgumentError (E_ARGUMENT) where both names are."""
    if dim is None:
        return axis
    if axis != default:
        raise ArgumentError(f"axis={axis!r} and dim={dim!r} are two names of one argument", hints=["give one of them"])
    return dim


def kept(keepdims: bool, keepdim: bool) -> bool:
    """Whether reduced dimensions stay, by either name."""
    return keepdims if keepdim is False else keepdim
