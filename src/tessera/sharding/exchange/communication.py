"""What a program may communicate: the switch of `dist.communication`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeAlias, get_args

from tessera.errors import ArgumentError, ImplicitCommunicationError
from tessera.sharding.partitioning.program import LocalProgram

Implicit: TypeAlias = Literal["allow", "error"]

_implicit: Final[ContextVar[Implicit]] = ContextVar("implicit communication", default="allow")

_MOST_SHOWN: Final = 5


@contextmanager
def communication(*, implicit: Implicit = "allow") -> Iterator[None]:
    """What expressions over tensors of a mesh may communicate while they are evaluated in this context.

    With `implicit="error"` an expression is refused with ImplicitCommunicationError (E_LAYOUT_IMPLICIT) whose operands
    have to be brought together, or into another layout, where no `reshard` or `constrain` asks for it. Sums that the
    algebra forms over devices, and cuts, which move nothing, are always allowed. Raises ArgumentError (E_ARGUMENT) for
    another value.
    """
    if implicit not in get_args(Implicit):
        raise ArgumentError(f"implicit={implicit!r}", hints=[f"one of {', '.join(get_args(Implicit))}"])
    token = _implicit.set(implicit)
    try:
        yield
    finally:
        _implicit.reset(token)


def check(program: LocalProgram) -> None:
    """Raises ImplicitCommunicationError where a program moves what nobody asks for, and that is refused here."""
    if _implicit.get() == "allow":
        return
    found = [move for move in program.moves if move.implicit]
    if not found:
        return
    shown = [f"{move.step} of {move.step.nbytes:,} bytes: {move.reason}" for move in found[:_MOST_SHOWN]]
    more = f", and {len(found) - _MOST_SHOWN} more" if len(found) > _MOST_SHOWN else ""
    raise ImplicitCommunicationError(
        f"{'; '.join(shown)}{more}",
        hints=["x.reshard(layout) asks for a layout", "graph.explain(y) shows the program of each device"],
    )
