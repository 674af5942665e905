"""Comparisons and what joins them: tensors of bools, element by element."""

from __future__ import annotations

from tessera.doors.calls.nodes import binary, call, on, unary
from tessera.handle import Tensor
from tessera.lazy.leaves.conversion import as_pair
from tessera.runtime.streams.stream import Stream


def eq(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a == b, elementwise."""
    return binary("eq", a, b, stream)


def ne(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a != b, elementwise."""
    return binary("ne", a, b, stream)


def lt(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a < b."""
    return binary("lt", a, b, stream)


def le(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a <= b."""
    return binary("le", a, b, stream)


def gt(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a > b."""
    return binary("gt", a, b, stream)


def ge(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """a >= b."""
    return binary("ge", a, b, stream)


def logical_and(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """Both; numbers count as true where they are not 0."""
    return binary("logical_and", a, b, stream)


def logical_or(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """Either; numbers count as true where they are not 0."""
    return binary("logical_or", a, b, stream)


def logical_xor(a: object, b: object, stream: Stream | None = None) -> Tensor:
    """One of both, not the other; numbers count as true where they are not 0."""
    first, second = as_pair(a, b)
    return on(call("ne", call("ne", first, 0), call("ne", second, 0)), stream)


def logical_not(x: object, stream: Stream | None = None) -> Tensor:
    """The opposite; numbers count as true where they are not 0."""
    return unary("logical_not", x, stream)
