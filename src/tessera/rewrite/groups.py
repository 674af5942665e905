"""Fusion, first half: which graph operations make one kernel.

A group has a *domain*, the dimensions it iterates over, and at most one contiguous range of reduced dimensions. Groups
grow from producer to consumer: maps join what feeds them, reductions join the maps that they reduce, maps over the
result of a matrix product become its epilogue, cheap maps over its operands its prologue. A group stays convex: nothing
outside it lies on a path between two of its operations.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.func import ReturnOp
from xdsl.ir import Operation, SSAValue

from tessera.ir.graph import GraphOperation
from tessera.rewrite.engine import dims_of

MAPS = frozenset(
    "add sub mul div neg abs pow exp log sqrt rsqrt tanh sigmoid erf relu gelu silu minimum maximum clamp where cast "
    "eq ne lt le gt ge logical_and logical_or logical_not".split()
)
REDUCTIONS = frozenset("sum mean max min prod argmax".split())
ROWS = frozenset("softmax log_softmax layer_norm rms_norm".split())
CONTRACTIONS = frozenset(("matmul", "gemm"))
LAYOUTS = frozenset("reshape transpose broadcast_to slice concat".split())
CHEAP = frozenset("add sub mul neg abs relu minimum maximum clamp cast where".split())

Mapping_ = tuple[int | None, ...]
"""For each dimension of a value the domain dimension that it walks; None where it is 1 and the domain's is not."""


@dataclass(eq=False)
class Group:
    """Operations of one kernel, in order. `mapping` says how each value made inside lies over `domain`."""

    kind: str  # "map", "reduction" or "contraction"
    domain: tuple[str, ...]
    reduced: tuple[int, int] | None
    operations: list[GraphOperation]
    mapping: dict[SSAValue, Mapping_] = field(default_factory=dict)
    depends: set[Group] = field(default_factory=set)

    @property
    def anchor(self) -> GraphOperation | None:
        """The matrix product of a contraction."""
        return next((op for op in self.operations if op.operator in CONTRACTIONS), None)


def reduced_range(operation: GraphOperation) -> tuple[int, int] | None:
    """The range `[first, last)` of dimensions that an operation reduces; None when it reduces none."""
    rank = len(dims_of(operation.inputs[0]))
    if operation.operator in REDUCTIONS:
        axes = sorted(operation.integers("axes"))
        return axes[0], axes[-1] + 1
    if operation.operator in ("layer_norm", "rms_norm"):
        return rank - 1, rank
    if operation.operator in ROWS:
        axis = operation.attribute("axis")
        assert isinstance(axis, int)
        return axis % rank, axis % rank + 1
    return None


class Partition:
    """Groups the operations of one function body; `limit` bounds the operations of a group (1: no fusion)."""

    def __init__(self, operations: Iterable[Operation], limit: int) -> None:
        self.limit = limit
        self.groups: list[Group] = []
        self.group_of: dict[SSAValue, Group] = {}
        self.outputs: set[SSAValue] = set()
        for operation in operations:
            if isinstance(operation, ReturnOp):
                self.outputs.update(operation.operands)
        for operation in operations:
            if isinstance(operation, GraphOperation):
                self._place(operation)

    def _place(self, operation: GraphOperation) -> None:
        if operation.operator == "constant" and operation.result not in self.outputs:
            return  # copied into each kernel that uses it
        if operation.operator in CONTRACTIONS:
            group = self._new(operation, "contraction", dims_of(operation.result))
            self._absorb_prologues(group, operation)
        elif operation.operator in MAPS or operation.operator == "constant":
            group = self._place_map(operation)
        elif operation.operator in REDUCTIONS or operation.operator in ROWS:
            group = self._place_reduction(operation)
        else:
            group = self._new(operation, "layout", dims_of(operation.result))
        self._finish(operation, group)

    def _new(self, operation: GraphOperation, kind: str, domain: tuple[str, ...]) -> Group:
        group = Group(kind, domain, None, [])
        self.groups.append(group)
        group.mapping[operation.result] = tuple(range(len(domain)))
        return group

    def _finish(self, operation: GraphOperation, group: Group) -> None:
        group.operations.append(operation)
        self.group_of[operation.result] = group
        for operand in operation.inputs:
            producer = self.group_of.get(operand)
            if producer is not None and producer is not group:
                group.depends |= {producer, *producer.depends}

    # -- maps -----------------------------------------------------------------------------------------------------

    def _place_map(self, operation: GraphOperation) -> Group:
        dims = dims_of(operation.result)
        for operand in operation.inputs:
            group = self.group_of.get(operand)
            if group is None or not self._accepts(group, operation):
                continue
            mapping = self._map_mapping(group, operation, operand, dims)
            if mapping is not None:
                group.mapping[operation.result] = mapping
                self._merge_producers(group, operation)
                return group
        return self._new(operation, "map", dims)

    def _map_mapping(
        self, group: Group, operation: GraphOperation, operand: SSAValue, dims: tuple[str, ...]
    ) -> Mapping_ | None:
        """How the result of a map would lie over the group's domain, or None when it does not."""
        if group.kind == "contraction":
            # The product itself must not be needed elsewhere: it stays in registers.
            others = [use for use in operand.uses if use.operation is not operation]
            if dims != group.domain or others or operand in self.outputs:
                return None
            return group.mapping[operand]
        if dims == group.domain:
            return tuple(range(len(dims)))
        return group.mapping[operand] if dims == dims_of(operand) else None

    def _accepts(self, group: Group, operation: GraphOperation) -> bool:
        """Whether `operation` may join without a path leaving and re-entering the group."""
        if group.kind == "layout" or len(group.operations) >= self.limit:
            return False
        for operand in operation.inputs:
            other = self.group_of.get(operand)
            if other is not None and other is not group and group in other.depends:
                return False
        return not any(group in later.depends and self._feeds(later, operation) for later in self.groups)

    def _feeds(self, group: Group, operation: GraphOperation) -> bool:
        return any(self.group_of.get(operand) is group for operand in operation.inputs)

    def _merge_producers(self, group: Group, operation: GraphOperation) -> None:
        """Other map groups over the same domain that feed a fused map become part of its group."""
        for operand in operation.inputs:
            other = self.group_of.get(operand)
            if other is None or other is group or other.kind not in ("map", "reduction") or group.kind == "contraction":
                continue
            compatible = other.domain == group.domain and (
                other.reduced is None or group.reduced is None or other.reduced == group.reduced
            )
            if not compatible or other in group.depends or len(group.operations) + len(other.operations) >= self.limit:
                continue
            if any(other in later.depends for later in self.groups if later is not group):
                continue
            self._merge(group, other)

    def _merge(self, group: Group, other: Group) -> None:
        order = {op: i for i, op in enumerate(_in_block(group.operations + other.operations))}
        group.operations = sorted(order, key=order.__getitem__)
        group.mapping.update(other.mapping)
        group.depends = (group.depends | other.depends) - {other, group}
        group.reduced = group.reduced or other.reduced
        group.kind = "reduction" if group.reduced else group.kind
        self.groups.remove(other)
        for value in other.mapping:
            self.group_of[value] = group
        for later in self.groups:
            if other in later.depends:
                later.depends = (later.depends - {other}) | {group, *group.depends}

    # -- reductions -----------------------------------------------------------------------------------------------

    def _place_reduction(self, operation: GraphOperation) -> Group:
        domain = dims_of(operation.inputs[0])
        reduced = reduced_range(operation)
        assert reduced is not None
        producer = self.group_of.get(operation.inputs[0])
        identity: Mapping_ = tuple(range(len(domain)))
        fits = (
            producer is not None
            and producer.kind in ("map", "reduction")
            and producer.domain == domain
            and producer.mapping[operation.inputs[0]] == identity
            and producer.reduced in (None, reduced)
            and self._accepts(producer, operation)
        )
        if fits:
            assert producer is not None
            group = producer
        else:
            group = Group("reduction", domain, None, [])
            self.groups.append(group)
        group.kind, group.reduced = "reduction", reduced
        group.mapping[operation.result] = self._reduced_mapping(operation, identity, reduced)
        return group

    def _reduced_mapping(self, operation: GraphOperation, identity: Mapping_, reduced: tuple[int, int]) -> Mapping_:
        if operation.operator in ROWS:
            return identity
        first, last = reduced
        if operation.attribute("keepdims", False):
            return tuple(None if first <= i < last else axis for i, axis in enumerate(identity))
        return tuple(axis for i, axis in enumerate(identity) if not first <= i < last)

    # -- matrix products ------------------------------------------------------------------------------------------

    def _absorb_prologues(self, group: Group, operation: GraphOperation) -> None:
        """Chains of cheap maps over an operand, used by nothing else, are computed while the operand is packed."""
        for operand in operation.inputs[:2]:
            producer = self.group_of.get(operand)
            if (
                producer is None
                or producer.kind != "map"
                or operand in self.outputs
                or len(list(operand.uses)) != 1
                or len(producer.operations) >= self.limit
                or any(op.operator not in CHEAP for op in producer.operations)
                or any(self._leaks(value, producer, operation) for value in producer.mapping)
                or any(producer in later.depends for later in self.groups)
            ):
                continue
            self.groups.remove(producer)
            group.operations.extend(producer.operations)
            group.depends |= producer.depends
            for value in producer.mapping:
                self.group_of[value] = group

    def _leaks(self, value: SSAValue, group: Group, consumer: GraphOperation) -> bool:
        members = {*group.operations, consumer}
        return value in self.outputs or any(use.operation not in members for use in value.uses)


def _in_block(operations: Sequence[GraphOperation]) -> list[GraphOperation]:
    """The operations in the order of their block."""
    block = operations[0].parent_block()
    assert block is not None
    wanted = set(operations)
    return [op for op in block.ops if isinstance(op, GraphOperation) and op in wanted]
