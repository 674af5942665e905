"""Collectives: what all ranks of a job compute together."""

from __future__ import annotations

from typing import cast as typed

from tessera.doors.calls.nodes import node
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy import issuing
from tessera.lazy.evaluation import check_versions, evaluate, refuse_mutated
from tessera.lazy.node import leaf_node
from tessera.runtime.streams.stream import Stream
from tessera.sharding.exchange import collectives
from tessera.typing import ArrayLike


def all_reduce(x: ArrayLike, op: str = "sum", *, stream: Stream | None = None) -> Tensor:
    """x reduced over all ranks of the job, element by element, the same on every rank: "sum", "avg", "min", "max" or
    "product". x itself in a process that is no rank. The job is joined at the first call: that of torch.distributed's
    default group, or the one that `tessera run` or torchrun started.

    It is issued at the call, in the order of the program, since every rank has to call the same collectives in the same
    order, with one shape and dtype; x is computed for it. Without `stream` the call returns when the result is there.
    16-bit floats in CPU memory are summed in fp32, in the order of ranks; on GPUs by the group's backend, in their own
    precision. Not differentiated: it reads values.

    Raises ArgumentError (E_ARGUMENT) for another reduction, DTypeError (E_DTYPE) for bools, 8-bit floats, averages of
    integers and all but sums and averages of complex numbers, RankLostError (E_RANK_LOST), CollectiveStalledError
    (E_COLLECTIVE_STALLED) and CollectiveMismatchError (E_COLLECTIVE_MISMATCH) for what other ranks do, LibraryError
    (E_LIBRARY) for what a backend refuses.

    Shapes: x of any shape; the result has it.

    >>> op.all_reduce(op.ones(2)).tolist()  # in a process that is no rank
    [1.0, 1.0]
    """
    if op not in collectives.REDUCTIONS:
        raise ArgumentError(f"all_reduce: op={op!r}", hints=[f"one of {', '.join(collectives.REDUCTIONS)}"])
    operand = node(x)
    _check(operand, op)
    if stream is not None:
        issuing.issue(operand, stream)
        refuse_mutated(operand.leaves)
        return typed(Tensor, leaf_node(collectives.all_reduce_on(operand.leaves[0], op, stream)))
    evaluate((operand,))
    check_versions(operand.leaves)
    return typed(Tensor, leaf_node(collectives.all_reduce(operand.leaves[0], op)))


def _check(operand: Tensor, op: str) -> None:
    dtype = operand.dtype
    if dtype.kind == "bool" or (dtype.kind == "float" and dtype.itemsize == 1):
        raise DTypeError(f"all_reduce of {dtype}", hints=["cast to a wider dtype"])
    if dtype.kind == "complex" and op not in ("sum", "avg"):
        raise DTypeError(f"all_reduce: {op} of {dtype}", hints=["complex numbers have sums and averages"])
    if dtype.kind not in ("float", "complex") and op == "avg":
        raise DTypeError(f"all_reduce: avg of {dtype}", hints=['averages are of floating-point numbers: x.to("fp32")'])
