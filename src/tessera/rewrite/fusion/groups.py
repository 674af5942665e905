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

from tessera.ir.graph.operations import GraphOperation
from tessera.ops.counting import DEAR
from tessera.ops.families import MAP, REDUCTION, GroupKind, OperatorFamily
from tessera.ops.record import OPERATORS, family_of
from tessera.rewrite.engine import dims_of
from tessera.rewrite.fusion.alignment import (
    Alignment,
    joined_mapping,
    operand_alignment,
    reduced_mapping,
    reduced_range,
)
from tessera.rewrite.fusion.depth import DEPTH, instructions_of
from tessera.rewrite.fusion.siblings import TOGETHER, are_joined


@dataclass(eq=False)
class Group:
    """Operations of one kernel, in order. `mapping` says how each value made inside lies over `domain`.

    `depends` are the groups that must run before, however far back: a bit for each, at its `number`. `instructions`
    counts those per vector (`depth.py`). With `has_columns` it also reduces the dimensions before those that are
    `reduced` (`rows_and_columns.py`).
    """

    number: int
    kind: GroupKind
    domain: tuple[str, ...]
    reduced: tuple[int, int] | None = None
    operations: list[GraphOperation] = field(default_factory=list)
    mapping: dict[SSAValue, Alignment] = field(default_factory=dict)
    depends: int = 0
    instructions: int = 0
    has_columns: bool = False

    @property
    def bit(self) -> int:
        """The group in `depends` of others."""
        return 1 << self.number

    def room(self, depth: int) -> float:
        """The instructions that the group may have, where a kernel of maps may have `depth`."""
        return self.kind.share * depth

    def after(self, other: Group) -> bool:
        """Whether this group needs, directly or not, what `other` makes."""
        return bool(self.depends >> other.number & 1)


class Grouping:
    """Groups the operations of one function body; `limit` bounds the operations of a group (1: no fusion), `depth` its
    instructions, `products` the matrix products that share a first operand and meet in one map. With `staged` dear maps
    are not in one group with reductions of what they make, nor of the same rows.
    """

    def __init__(
        self,
        operations: Iterable[Operation],
        limit: int,
        depth: int = DEPTH,
        staged: bool = False,
        products: int = TOGETHER,
    ) -> None:
        self.limit, self.depth, self.staged, self.products = limit, depth, staged, products
        self.groups: list[Group] = []
        self.group_of: dict[SSAValue, Group] = {}
        self.outputs: set[SSAValue] = set()
        self._count = 0
        ordered = list(operations)
        self._position = {operation: position for position, operation in enumerate(ordered)}
        for operation in ordered:
            if isinstance(operation, ReturnOp):
                self.outputs.update(operation.operands)
        for operation in ordered:
            if isinstance(operation, GraphOperation):
                self._place(operation)
        if limit > 1:
            self._merge_siblings()

    def _place(self, operation: GraphOperation) -> None:
        family = family_of(operation.operator)
        if operation.operator == "constant" and not self._is_stored(operation):
            return  # copied into each kernel that uses it
        if family.group is MAP:
            group = self._place_map(operation)
        elif family.group is REDUCTION:
            group = self._place_reduction(operation)
        elif family.group.joins:
            group = self._place_joined(operation, family)
        else:
            group = self._new(family.group, dims_of(operation.result))
            if not family.has_run_time_geometry:
                group.mapping[operation.result] = tuple(range(len(group.domain)))
            self._absorb_prologues(group, operation, family.prologues)
        self._finish(operation, group)

    def _is_stored(self, constant: GraphOperation) -> bool:
        """Whether a constant must lie in memory: as a result, or for an operator that does not compute."""
        return constant.result in self.outputs or any(
            isinstance(use.operation, GraphOperation)
            and not family_of(use.operation.operator).is_counted
            and use.index not in family_of(use.operation.operator).numbers
            for use in constant.result.uses
        )

    def _new(self, kind: GroupKind, domain: tuple[str, ...]) -> Group:
        group = Group(self._count, kind, domain)
        self._count += 1
        self.groups.append(group)
        return group

    def _finish(self, operation: GraphOperation, group: Group) -> None:
        """Enters an operation into its group, and keeps `depends` of all groups transitive."""
        group.operations.append(operation)
        group.instructions += instructions_of(operation)
        self.group_of[operation.result] = group
        needed = group.depends
        for operand in operation.inputs:
            producer = self.group_of.get(operand)
            if producer is not None and producer is not group:
                needed |= producer.bit | producer.depends
        if needed == group.depends:
            return
        group.depends = needed
        for later in self.groups:
            if later.after(group):
                later.depends |= needed

    def _place_joined(self, operation: GraphOperation, family: OperatorFamily) -> Group:
        """The group of the operations over the same operands; those make no path between them."""
        domain = family.domain([dims_of(operand) for operand in operation.inputs], dims_of(operation.result))
        near = (group for group in self.groups if group.kind is family.group and self.limit > 1)
        group = next((group for group in near if _are_of_one(operation, group.operations)), None)
        group = group or self._new(family.group, domain)
        group.mapping[operation.result] = joined_mapping(operation, len(domain))
        return group

    # -- maps ---------------------------------------------------------------------------------------------------------

    def _place_map(self, operation: GraphOperation) -> Group:
        dims = dims_of(operation.result)
        for operand in operation.inputs:
            group = self.group_of.get(operand)
            if group is None or not self._accepts(group, operation):
                continue
            mapping = self._map_mapping(group, operation, operand, dims)
            if mapping is not None and reads_in_place(operation, mapping, group) and self._in_stage(group, mapping):
                group.mapping[operation.result] = mapping
                self._merge_producers(group, operation)
                return group
        group = self._new(MAP, dims)
        group.mapping[operation.result] = tuple(range(len(dims)))
        return group

    def _map_mapping(
        self, group: Group, operation: GraphOperation, operand: SSAValue, dims: tuple[str, ...]
    ) -> Alignment | None:
        """How the result of a map would lie over the group's domain, or None when it does not."""
        if group.kind.sums_in_registers:
            # The product, or the sums over windows, must not be needed elsewhere: they stay in registers.
            others = [use for use in operand.uses if use.operation is not operation]
            if dims != group.domain or others or operand in self.outputs:
                return None
            return group.mapping[operand]
        if dims == group.domain:
            return tuple(range(len(dims)))
        return group.mapping[operand] if dims == dims_of(operand) else None

    def _accepts(self, group: Group, operation: GraphOperation) -> bool:
        """Whether `operation` may join: the group has room for it, and no path leaves the group and comes back.

        An empty group has room for any operation, so that one with more instructions than fit is a kernel of its own.
        """
        if not group.kind.share or len(group.operations) >= self.limit:
            return False
        if group.operations and group.instructions + instructions_of(operation) > group.room(self.depth):
            return False
        producers = (self.group_of.get(operand) for operand in operation.inputs)
        return not any(producer is not None and producer.after(group) for producer in producers)

    def _merge_producers(self, group: Group, operation: GraphOperation) -> None:
        """Other map groups over the same domain that feed a fused map become part of its group."""
        for operand in operation.inputs:
            other = self.group_of.get(operand)
            if other is not None and other is not group and self._is_sibling(group, other, operand, operation):
                self.merge(group, other)
                continue
            if other is None or other is group or group.kind.sums_in_registers or not self._fit(group, other):
                continue
            if self.staged and other.kind is not group.kind:
                continue
            readers = [*group.operations, operation]
            if all(reads_in_place(reader, group.mapping[reader.result], other) for reader in readers):
                self.merge(group, other)

    def _in_stage(self, group: Group, mapping: Alignment) -> bool:
        """Whether a map whose result lies as `mapping` is in the stage of a group. Reductions are a stage, with maps of
        what is left of a row.
        """
        if not self.staged or group.reduced is None:
            return True
        return not any(axis is not None and group.reduced[0] <= axis < group.reduced[1] for axis in mapping)

    def _fit(self, group: Group, other: Group) -> bool:
        """Whether two groups of maps and reductions may be one, `group` reading what `other` makes."""
        return (
            other.kind.is_walk
            and other.domain == group.domain
            and (other.reduced is None or group.reduced is None or other.reduced == group.reduced)
            and len(group.operations) + len(other.operations) < self.limit
            and group.instructions + other.instructions <= group.room(self.depth)
            and not any(later.after(other) for later in self.groups if later is not group)
        )

    def _is_sibling(self, group: Group, other: Group, operand: SSAValue, operation: GraphOperation) -> bool:
        """Whether `other` is a product beside that of `group`, whose result `operation` alone reads."""
        return (
            group.kind is other.kind
            and group.kind.takes_siblings
            and group.domain == other.domain
            and operand not in self.outputs
            and all(use.operation is operation for use in operand.uses)
            and dims_of(operand) == group.domain
            and are_joined(group.operations, other.operations, self.products)
            and len(group.operations) + len(other.operations) < self.limit
            and group.instructions + other.instructions <= group.room(self.depth)
        )

    def merge(self, group: Group, other: Group) -> None:
        """Adds the operations of `other` to `group`."""
        group.operations = sorted(group.operations + other.operations, key=self._position.__getitem__)
        group.mapping.update(other.mapping)
        group.depends = (group.depends | other.depends) & ~(other.bit | group.bit)
        group.instructions += other.instructions
        group.reduced = group.reduced or other.reduced
        group.kind = REDUCTION if group.reduced else group.kind
        self.groups.remove(other)
        for value in other.mapping:
            self.group_of[value] = group
        for later in self.groups:
            if later.after(group) or later.after(other):
                later.depends = (later.depends | group.bit | group.depends) & ~other.bit

    # -- maps and reductions side by side -----------------------------------------------------------------------------

    def _merge_siblings(self) -> None:
        """Groups of maps and reductions over one domain that read the same tensor along all of it, and nothing of each
        other, become one, which reads that tensor once.

        Together they may have a quarter of the room that a group has otherwise: longer kernels are not bound by what
        they read, so that reading it once gains nothing. Groups are looked at in the order of the function, each joined
        with the first that fits of those before it, and with no more than that one for each tensor.
        """
        readers: dict[SSAValue, list[Group]] = {}
        for group in list(self.groups):
            if not group.kind.is_walk or group not in self.groups:
                continue
            for operand in self.whole_operands(group):
                near = readers.setdefault(operand, [])
                sibling = next((other for other in near if self._are_siblings(group, other)), None)
                if sibling is not None:
                    self.merge(group, sibling)
                    for others in readers.values():
                        if sibling in others:
                            others.remove(sibling)
                near.append(group)

    def whole_operands(self, group: Group) -> list[SSAValue]:
        """What a group reads along its whole domain."""
        operands = dict.fromkeys(operand for operation in group.operations for operand in operation.inputs)
        return [x for x in operands if x not in group.mapping and group.domain and dims_of(x) == group.domain]

    def _are_siblings(self, group: Group, other: Group) -> bool:
        return (
            other is not group
            and other in self.groups
            and other.domain == group.domain
            and other.reduced == group.reduced
            and not (self.staged and other.kind is not group.kind)
            and not group.after(other)
            and not other.after(group)
            and len(group.operations) + len(other.operations) <= self.limit
            and group.instructions + other.instructions <= group.room(self.depth) / 4
        )

    # -- reductions ---------------------------------------------------------------------------------------------------

    def _place_reduction(self, operation: GraphOperation) -> Group:
        domain = dims_of(operation.inputs[0])
        reduced = reduced_range(operation)
        assert reduced is not None
        mapping = reduced_mapping(operation, len(domain), reduced)
        group = self.group_of.get(operation.inputs[0])
        if (
            group is None
            or not group.kind.is_walk
            or group.domain != domain
            or group.reduced not in (None, reduced)
            or not reads_in_place(operation, mapping, group)
            or not self._accepts(group, operation)
            or (self.staged and (group.kind is REDUCTION or group.instructions >= DEAR))
        ):
            group = self._new(REDUCTION, domain)
        group.kind, group.reduced = REDUCTION, reduced
        group.mapping[operation.result] = mapping
        return group

    # -- matrix products ----------------------------------------------------------------------------------------------

    def _absorb_prologues(self, group: Group, operation: GraphOperation, count: int) -> None:
        """Cheap maps over one of the first operands, used by nothing else, run while it is packed, and norms of the
        first one's.
        """
        for place, operand in enumerate(operation.inputs[:count]):
            producer = self.group_of.get(operand)
            if (
                producer is None
                or not (producer.kind is MAP or (place == 0 and self._has_rows_of_product(producer, operation)))
                or operand in self.outputs
                or [use.operation for use in operand.uses] != [operation]
                or len(group.operations) + len(producer.operations) >= self.limit
                or any(not OPERATORS[op.operator].cheap for op in producer.operations)
                or group.instructions + producer.instructions > group.room(self.depth)
                or any(self._leaks(value, producer) for value in producer.mapping if value is not operand)
                or any(later.after(producer) for later in self.groups)
            ):
                continue
            self.groups.remove(producer)
            group.operations.extend(producer.operations)
            group.instructions += producer.instructions
            group.depends |= producer.depends
            for value in producer.mapping:
                self.group_of[value] = group

    def _has_rows_of_product(self, producer: Group, product: GraphOperation) -> bool:
        """Whether a group reduces the rows that a product multiplies, and gives rows."""
        rank = len(producer.domain)
        lies = product.operator == "matmul" and not product.attribute("transpose_a", False) and not self.staged
        return lies and producer.reduced == (rank - 1, rank) and producer.domain == dims_of(product.inputs[0])

    def _leaks(self, value: SSAValue, group: Group) -> bool:
        """Whether something outside the group needs `value`; the consumer of another of its values is outside too."""
        return value in self.outputs or any(use.operation not in group.operations for use in value.uses)


def _are_of_one(operation: GraphOperation, others: Sequence[GraphOperation]) -> bool:
    """Whether an operation is beside others of a kernel: of the same operands and attributes, each another result."""
    shared, own = _attributes_of(operation)
    return all(
        tuple(operation.inputs) == tuple(other.inputs)
        and shared == _attributes_of(other)[0]
        and (operation.operator, own) != (other.operator, _attributes_of(other)[1])
        for other in others
    )


def _attributes_of(operation: GraphOperation) -> tuple[dict[str, object], dict[str, object]]:
    """The attributes that operations of a kernel share, and those that say which result an operation is."""
    apart = family_of(operation.operator).group.apart
    named: dict[str, object] = {name: operation.attribute(name) for name in OPERATORS[operation.operator].attributes}
    own: dict[str, object] = {name: named.pop(name) for name in apart & named.keys()}
    return named, own


def reads_in_place(operation: GraphOperation, mapping: Alignment, group: Group) -> bool:
    """Whether an operation whose result lies as `mapping` reads the group's values just as they lie.

    A vector of row sums, added to the rows of a square matrix, walks the columns: such values go through memory.
    """
    for index, operand in enumerate(operation.inputs):
        made = group.mapping.get(operand)
        if made is None:
            continue
        wanted = operand_alignment(operation, index, mapping, len(group.domain))
        places = zip(dims_of(operand), made, wanted, strict=True)
        if any(name != "1" and own != read for name, own, read in places):
            return False
    return True
