"""Collectives: what all ranks of a job compute together, or the devices along an axis of a mesh."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Final
from typing import cast as typed

from tessera.doors.calls.nodes import node
from tessera.dtypes import fp32
from tessera.errors import ArgumentError, DTypeError, MeshError
from tessera.handle import Tensor
from tessera.ir.anchors import anchor
from tessera.lazy import issuing
from tessera.lazy.evaluation import check_versions, evaluate, refuse_mutated
from tessera.lazy.layouts import Layout, layout
from tessera.lazy.node import leaf_node
from tessera.ops.collective.steps import AxisStep, AxisStepKind
from tessera.runtime.streams.stream import Stream
from tessera.sharding.exchange import collectives
from tessera.sharding.exchange.communicator import COMBINING, Reduction
from tessera.sharding.regions.tracing import axis_size, is_stepped, stepped, trace_here
from tessera.typing import ArrayLike

_REDUCED: Final[Mapping[Reduction, anchor.Reduction]] = {
    **{by: name for name, by in COMBINING.items()},
    "avg": anchor.ADD,
}
"""How anchors call what values are reduced by."""


def all_reduce(x: ArrayLike, op: str = "sum", axis: str | None = None, *, stream: Stream | None = None) -> Tensor:
    """x reduced over all ranks of the job, element by element, the same on every rank: "sum", "avg", "min", "max" or
    "product". x itself in a process that is no rank. The job is joined at the first call: that of torch.distributed's
    default group, or the one that `tessera run` or torchrun started.

    It is issued at the call, in the order of the program, since every rank has to call the same collectives in the same
    order, with one shape and dtype; x is computed for it. Without `stream` the call returns when the result is there.
    16-bit floats in CPU memory are summed in fp32, in the order of ranks; on GPUs by the group's backend, in their own
    precision. Not differentiated: it reads values.

    With an `axis` it is an operator of a mesh: in a function of `dist.shard_map` what the devices along the axis have
    is reduced, for a tensor on a mesh the shards that lie along it. It is computed when it is needed, and
    differentiated: the cotangent of a sum goes to all devices as it is, that of a maximum to those that have it.

    Raises ArgumentError (E_ARGUMENT) for another reduction, DTypeError (E_DTYPE) for bools, 8-bit floats, averages of
    integers and all but sums and averages of complex numbers, MeshError (E_MESH) for an axis that there is not,
    RankLostError (E_RANK_LOST), CollectiveStalledError (E_COLLECTIVE_STALLED) and CollectiveMismatchError
    (E_COLLECTIVE_MISMATCH) for what other ranks do, LibraryError (E_LIBRARY) for what a backend refuses.

    Shapes: x of any shape; the result has it.

    >>> op.all_reduce(op.ones(2)).tolist()  # in a process that is no rank
    [1.0, 1.0]
    """
    operand, by = _reduced(x, op, "all_reduce")
    if axis is not None or is_stepped(operand):
        return issuing.on(_combined(operand, "AllReduce", axis, by), stream)
    if stream is not None:
        issuing.issue(operand, stream)
        refuse_mutated(operand.leaves)
        return typed(Tensor, leaf_node(collectives.all_reduce_on(operand.leaves[0], by, stream)))
    evaluate((operand,))
    check_versions(operand.leaves)
    return typed(Tensor, leaf_node(collectives.all_reduce(operand.leaves[0], by)))


def reduce_scatter(x: object, axis: str, dim: int = 0, op: str = "sum", *, stream: Stream | None = None) -> Tensor:
    """What `all_reduce` along an axis would give, of which every device keeps its part along a dimension. The gradient
    of a sum is `all_gather`. Raises as `all_reduce` does, and MeshError (E_MESH) where the devices do not divide the
    dimension.
    """
    operand, by = _reduced(x, op, "reduce_scatter")
    place = _dimension(operand, dim)
    return issuing.on(_combined(operand, "ReduceScatter", axis, by, place), stream)


def all_gather(x: object, axis: str, dim: int = 0, *, stream: Stream | None = None) -> Tensor:
    """What the devices along an axis of a mesh have, one behind the other along a dimension, the same on all of them.
    Its gradient is what `reduce_scatter` gives; nothing moves for it where the cotangent is the same on all devices.

    In a function of `dist.shard_map` of what each device has, for a tensor on a mesh of its shards, which lie on every
    device then. Raises MeshError (E_MESH) for an axis that there is not, ArgumentError (E_ARGUMENT) for a dimension.
    """
    operand = node(x)
    place = _dimension(operand, dim)
    made = stepped(operand, axis, lambda size: AxisStep("AllGather", axis, size, place), _split_by(axis))
    return issuing.on(typed(Tensor, made), stream)


def all_to_all(x: object, axis: str, split: int, concat: int, *, stream: Stream | None = None) -> Tensor:
    """Every device along an axis of a mesh cuts what it has along the dimension `split`, and sends each piece to the
    device of its number; the pieces come together along `concat`. Its gradient is the same the other way round.

    Raises MeshError (E_MESH) for an axis that there is not, and where the devices do not divide the dimension,
    ArgumentError (E_ARGUMENT) for dimensions that there are not.
    """
    operand = node(x)
    first, second = _dimension(operand, split), _dimension(operand, concat)
    if first == second:
        raise ArgumentError(f"all_to_all splits and concatenates along {first}", hints=["take two dimensions"])
    made = stepped(operand, axis, lambda n: AxisStep("AllToAll", axis, n, first, second), _split_by(axis, first))
    return issuing.on(typed(Tensor, made), stream)


def permute(x: object, axis: str, shift: int = 1, *, stream: Stream | None = None) -> Tensor:
    """What the device `shift` places before has along an axis of a mesh, the last one being before the first. Its
    gradient is the permutation back. (`op.permute` exchanges dimensions.)

    Raises MeshError (E_MESH) for an axis that there is not.
    """
    places = operator.index(shift)
    made = stepped(node(x), axis, lambda size: AxisStep("Permute", axis, size, by=places % size), lambda laid: laid)
    return issuing.on(typed(Tensor, made), stream)


def broadcast(x: object, axis: str, source: int = 0, *, stream: Stream | None = None) -> Tensor:
    """What one device along an axis of a mesh has, on all of them. The cotangent goes to that device alone.

    Raises MeshError (E_MESH) for an axis that there is not, ArgumentError (E_ARGUMENT) for a place.
    """
    operand = node(x)
    place, size = operator.index(source), axis_size(operand, axis)
    if not 0 <= place < size:
        raise ArgumentError(f"broadcast from place {place} along {axis!r}, which has {size} devices")
    made = stepped(operand, axis, lambda n: AxisStep("Broadcast", axis, n, by=place), _split_by(axis))
    return issuing.on(typed(Tensor, made), stream)


def axis_index(axis: str) -> Tensor:
    """In a function of `dist.shard_map`, each device's place along an axis of the mesh: an int64 without dimensions.

    Raises MeshError (E_MESH) outside of one, and for an axis that there is not.
    """
    trace = trace_here("axis_index")
    if axis not in trace.mesh.shape:
        raise MeshError(f"axis={axis!r} on {trace.mesh}", hints=[f"axis= is one of {', '.join(trace.mesh.axes)}"])
    return typed(Tensor, trace.number(axis)).reshape(())


def _reduced(x: object, op: str, name: str) -> tuple[Tensor, Reduction]:
    by = next((each for each in collectives.REDUCTIONS if each == op), None)
    if by is None:
        raise ArgumentError(f"{name}: op={op!r}", hints=[f"one of {', '.join(collectives.REDUCTIONS)}"])
    operand = node(x)
    dtype = operand.dtype
    if dtype.kind == "bool" or (dtype.kind == "float" and dtype.itemsize == 1):
        raise DTypeError(f"{name} of {dtype}", hints=["cast to a wider dtype"])
    if dtype.kind == "complex" and op not in ("sum", "avg"):
        raise DTypeError(f"{name}: {op} of {dtype}", hints=["complex numbers have sums and averages"])
    if dtype.kind not in ("float", "complex") and op == "avg":
        raise DTypeError(f"{name}: avg of {dtype}", hints=['averages are of floating-point numbers: x.to("fp32")'])
    return operand, by


def _combined(operand: Tensor, kind: AxisStepKind, axis: str | None, op: Reduction, dim: int | None = None) -> Tensor:
    """A reduction along an axis; averages are sums that are divided, of 16-bit floats in fp32."""
    dtype = operand.dtype
    wide = operand.to(fp32) if op == "avg" and dtype.kind == "float" and dtype.itemsize < 4 else operand

    def step(size: int) -> AxisStep:
        return AxisStep(kind, axis or "", size, dim or 0, reduction=_REDUCED[op])

    made = typed(Tensor, stepped(wide, axis, step, _split_by(axis, dim)))
    if op == "avg":
        made = made / axis_size(operand, axis)
    return made if made.dtype is dtype else made.to(dtype)


def _dimension(operand: Tensor, dim: int) -> int:
    number = operator.index(dim)
    if not -operand.ndim <= number < operand.ndim:
        raise ArgumentError(f"dimension {number} of a tensor of shape {operand.shape}")
    return number % operand.ndim


def _split_by(axis: str | None, dim: int | None = None) -> Callable[[Layout], Layout]:
    """The layout of shards after a step: the axis splits no dimension any more, or this one."""

    def after(laid: Layout) -> Layout:
        dims = [tuple(each for each in axes if each != axis) for axes in laid.dims]
        if dim is not None and axis is not None:
            dims[dim] += (axis,)
        return layout(laid.mesh, dims)

    return after
