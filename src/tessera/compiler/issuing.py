"""Expressions for streams: planned at the call, run by the stream, with results whose values are on their way."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import copy_context
from functools import partial

from tessera.compiler import pipeline
from tessera.compiler.tune.warming import running
from tessera.errors import ArgumentError, DeviceError, user_location
from tessera.lazy.devices import CPU, is_cpu_memory, is_mesh
from tessera.lazy.evaluation import refuse_mutated
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.leaves.writes import Watch
from tessera.lazy.node import Node, joined
from tessera.lazy.policy import is_current
from tessera.lazy.promise import KEPT, Promise
from tessera.lazy.structures.structure import Plan, Structure
from tessera.runtime.plans.plan import BoundPlan
from tessera.runtime.streams.operations import Operation
from tessera.runtime.streams.stream import StreamCore, core_of, cores
from tessera.sharding.exchange.order import collective_order
from tessera.sharding.tensors.shards import shards_of


def issue(nodes: Sequence[Node], stream: object) -> None:
    """Enqueues the computation of nodes, together; each then holds a result that is on its way. What exists already
    stays as it is.
    """
    core = core_of(stream)
    pending = list(dict.fromkeys([node for node in nodes if node.is_pending]))
    states = [node.state for node in pending]
    if not states:
        return
    structure, leaves = states[0] if len(states) == 1 else joined([Node(state) for state in states])
    for own, _ in states:
        _check(core, own.device or CPU, leaves)
    plan = _plan_of(structure)
    with core.queue.entered():
        results = plan.reserve(leaves)

    def promised(operation: Operation) -> Sequence[Leaf]:
        promises = {id(leaf.owner): Promise(leaf.owner, operation) for leaf in results}
        for leaf in results:
            leaf.owner, leaf.version = promises[id(leaf.owner)], KEPT
        operation.promises = list(promises.values())
        return results

    shards: list[Leaf] = []
    if is_mesh(structure.device):
        shards = [shard for leaf in leaves if leaf.structure.layout is not None for shard in shards_of(leaf).held]
        refuse_mutated(shards)
    name, fill = _name(states[0][0]), partial(_fill, plan, leaves, results, _watch(core, [*leaves, *shards]))
    if is_mesh(structure.device):
        fill = partial(copy_context().run, fill)  # what holds at the call of `dist.communication`
        reads = [*leaves, *shards]
        collective_order.enqueue(
            lambda after: core.enqueue(name, fill, reads=reads, results=promised, after=after, place=user_location())
        )
    else:
        core.enqueue(name, fill, reads=leaves, results=promised)
    for node, leaf in zip(pending, results, strict=True):
        node.store(leaf)


def issue_into(node: Node, target: Leaf, stream: object) -> None:
    """Enqueues the computation of a node into memory of the user, of the node's shape and dtype."""
    core = core_of(stream)
    structure, leaves = node.state
    if is_mesh(structure.device):
        raise DeviceError(
            f"a tensor on {structure.device} is not written to memory of one device on a stream",
            hints=["x.full() brings it together", "stream= without out= computes it where it lies"],
        )
    _check(core, structure.device or CPU, leaves)
    plan = None if structure.is_leaf else _plan_of(structure)
    core.enqueue(
        _name(structure), partial(_write, plan, leaves, target, _watch(core, leaves)), reads=leaves, writes=[target]
    )


def _check(core: StreamCore, device: str, leaves: Sequence[Leaf]) -> None:
    if any(isinstance(leaf, Placeholder) for leaf in leaves):
        raise ArgumentError(
            "stream= inside a function that is being traced: nothing runs there",
            hints=["pass stream= where the kernel is called"],
        )
    refuse_mutated(leaves)
    if core.device != (CPU if is_mesh(device) else device):
        raise DeviceError(
            f"stream {core.name!r} is on {core.device}, and the operands are on {device}",
            hints=[f"stream.create(device={device!r}) makes a stream for them"],
        )


def _plan_of(structure: Structure) -> Plan:
    known = structure.plan
    return known if known is not None and is_current(known.threads) else pipeline.plan(structure)


def _threads(plan: Plan) -> AbstractContextManager[None]:
    """The threads of the CPU that a plan uses, for itself."""
    runs = running(plan)
    return cores.taken(runs.workers) if isinstance(runs, BoundPlan) else nullcontext()


def _watch(core: StreamCore, leaves: Sequence[Leaf]) -> Watch:
    """Sees writes of the program to what a worker thread reads; a GPU has not read it yet when its launch returns."""
    return Watch(leaves if is_cpu_memory(core.device) else ())


def _fill(plan: Plan, leaves: tuple[Leaf, ...], results: tuple[Leaf, ...], watch: Watch) -> None:
    with _threads(plan):
        plan.fill(leaves, results)
    watch.refuse_mutated()


def _write(plan: Plan | None, leaves: tuple[Leaf, ...], target: Leaf, watch: Watch) -> None:
    _write_value(plan, leaves, target)
    watch.refuse_mutated()


def _write_value(plan: Plan | None, leaves: tuple[Leaf, ...], target: Leaf) -> None:
    if plan is None:
        memory_of(target).copy_(memory_of(leaves[0]))
        return
    with _threads(plan):
        if target.overlaps(leaves) or not plan.run_into(leaves, (target,)):
            (result,) = plan.run(leaves)
            memory_of(target).copy_(memory_of(result))


def _name(structure: Structure) -> str:
    return structure.operator.name if structure.operator is not None else "copy"
