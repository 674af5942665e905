"""What a program may communicate: the switch of `dist.communication`."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Final, Literal, TypeAlias, get_args

from tessera.errors import ArgumentError, ImplicitCommunicationError
from tessera.sharding.partitioning.chunking import ChunkCount
from tessera.sharding.partitioning.program import LocalProgram
from tessera.sharding.partitioning.schedule import USUAL, OverlapLimits

Implicit: TypeAlias = Literal["allow", "error"]

_MOST_SHOWN: Final = 5

MOST_PIECES: Final = 64


@dataclass(frozen=True)
class CommunicationOptions:
    """What holds in a context: see `communication`."""

    implicit: Implicit = "allow"
    limits: OverlapLimits = USUAL


_USUAL: Final = CommunicationOptions()

_options: Final[ContextVar[CommunicationOptions]] = ContextVar("communication", default=_USUAL)


def current() -> CommunicationOptions:
    """What holds here."""
    return _options.get()


@contextmanager
def communication(
    *,
    implicit: Implicit | None = None,
    overlap: bool | None = None,
    chunk: ChunkCount | None = None,
    bucket_bytes: int | None = None,
) -> Iterator[None]:
    """What expressions over tensors of a mesh may communicate while they are evaluated in this context, and how. What
    is left out stays as it is around it. Every rank of a job says the same.

    With `implicit="error"` an expression is refused with ImplicitCommunicationError (E_LAYOUT_IMPLICIT) whose operands
    have to be brought together, or into another layout, where no `reshard` or `constrain` asks for it. Sums that the
    algebra forms over devices, and cuts, which move nothing, are always allowed.

    Exchanges begin as soon as there is something to send, and are waited for where it is read; with `overlap=False`
    each is waited for at once. With `chunk=4` a product before a sum over devices, or behind a gather, and what is
    computed before parts are exchanged, a transform for one, is computed in 4 pieces, of which one travels while the
    next is computed; where devices cannot be given equal pieces it stays whole. With `chunk="auto"` there are 1, 2, 4
    or 8 pieces, by what the mesh's topology carries and its devices compute in a second; with `chunk="tune"` the first
    calls of an expression try each in turn, and what was fastest on the slowest rank stays while the process lives.
    Sums of less than `bucket_bytes` travel together: so do the gradients of a step, bucket
    by bucket, while the backward pass goes on. Sums over devices are the same bits in any case; the kernels of
    smaller products may sum in another order.

    Raises ArgumentError (E_ARGUMENT) for other values.
    """
    if implicit not in (None, *get_args(Implicit)):
        raise ArgumentError(f"implicit={implicit!r}", hints=[f"one of {', '.join(get_args(Implicit))}"])
    if bucket_bytes is not None and bucket_bytes < 0:
        raise ArgumentError(f"bucket_bytes={bucket_bytes!r}", hints=["bytes; 0 sends every sum by itself"])
    before = _options.get()
    limits = replace(
        before.limits,
        chunk=before.limits.chunk if chunk is None else _pieces(chunk),
        overlap=before.limits.overlap if overlap is None else bool(overlap),
        bucket_bytes=before.limits.bucket_bytes if bucket_bytes is None else bucket_bytes,
    )
    with using(CommunicationOptions(implicit or before.implicit, limits)):
        yield


def _pieces(chunk: ChunkCount) -> ChunkCount:
    if isinstance(chunk, str) and chunk in ("auto", "tune"):
        return chunk
    if isinstance(chunk, str | bool) or not 1 <= operator.index(chunk) <= MOST_PIECES:
        raise ArgumentError(f"chunk={chunk!r}", hints=[f'pieces, 1 to {MOST_PIECES}, or "auto", or "tune"'])
    return operator.index(chunk)


@contextmanager
def using(options: CommunicationOptions) -> Iterator[None]:
    """Has these hold in the context."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


def check(program: LocalProgram) -> None:
    """Raises ImplicitCommunicationError where a program moves what nobody asks for, and that is refused here."""
    if current().implicit == "allow":
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
