"""The rewrite engine: tables of rules over Graph IR, applied until none fires, each firing logged."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from xdsl.dialects.builtin import ArrayAttr, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue

from tessera.dtypes import DType
from tessera.errors import CompileError
from tessera.ir.attributes import ELEMENT_TYPES, Value, dimension_names, names_of, tensor_type
from tessera.ir.graph import operations as graph
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.pins import KNOBS, SEEN_OTHERWISE
from tessera.ops.record import family_of
from tessera.rewrite.provenance import inherit, replaced

MOST_FIRINGS: Final = 64
"""Firings on one operation and on all that was made in its place: rules that end need a few."""


class Rewriter:
    """What a rule may use to build its replacement: new operations go before the one that is being rewritten."""

    def __init__(self, target: GraphOperation) -> None:
        self.target = target
        self.made: list[GraphOperation] = []

    def create(
        self,
        operator: str,
        operands: Sequence[SSAValue],
        attributes: Mapping[str, Value] | None = None,
        like: SSAValue | None = None,
    ) -> SSAValue:
        """A new operation with the type and extents of `like`, by default those of the operation being rewritten."""
        model = self.target.result if like is None else like
        assert isinstance(model.type, TensorType)
        made = graph.create(operator, operands, model.type, attributes)
        made.attributes["dims"] = dims_attribute(model)
        self.made.append(made)
        return made.result

    def make(
        self,
        operator: str,
        operands: Sequence[SSAValue],
        dims: tuple[str, ...],
        dtype: DType,
        attributes: Mapping[str, Value] | None = None,
    ) -> SSAValue:
        """A new operation with extents and an element type of its own; an extent that is called "1" is static."""
        kind = tensor_type(tuple(1 if name == "1" else None for name in dims), ELEMENT_TYPES[dtype.name])
        made = graph.create(operator, operands, kind, attributes)
        made.attributes["dims"] = dimension_names(dims)
        self.made.append(made)
        return made.result


Rule = Callable[[GraphOperation, Rewriter], SSAValue | None]
"""Gives the value that replaces an operation's result, or None where it does not apply."""


@dataclass(frozen=True)
class Measure:
    """What rules leave less of: its name, and the share of one operation, never negative, from what it is and what is
    above it. A function's measure is the sum of the shares.
    """

    name: str
    share: Callable[[GraphOperation], int]

    def around(self, operations: Iterable[GraphOperation]) -> int:
        """The shares of these operations, each once."""
        return sum(self.share(operation) for operation in dict.fromkeys(operations))


@dataclass(frozen=True)
class NamedRule:
    """A rule with the name that its firings are logged under, the operators that it looks at, those named and all of a
    family, and what each of its firings lessens.

    The rules of a table end together where their measures can be put in an order in which no rule adds to a measure
    that stands before its own (`tests/unit/rewrite/test_termination.py` has the orders).
    """

    name: str
    operators: tuple[str, ...]
    apply: Rule
    lessens: Measure
    family: str | None = None

    def concerns(self, operator: str) -> bool:
        """Whether the rule looks at operations of this operator."""
        return operator in self.operators or (self.family is not None and family_of(operator).name == self.family)


@dataclass(frozen=True)
class Firing:
    """One application of a rule: what stood there before, and after."""

    rule: str
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.before} -> {self.after}"


def dims_attribute(value: SSAValue) -> Attribute:
    """The `dims` attribute of a value, read from its operation or from the function's `argument_dims`."""
    if isinstance(value, BlockArgument):
        function = value.block.parent_op()
        assert function is not None
        names = function.attributes["argument_dims"]
        assert isinstance(names, ArrayAttr)
        attribute = names.data[value.index]
        assert isinstance(attribute, Attribute)
        return attribute
    assert isinstance(value.owner, Operation)
    return value.owner.attributes["dims"]


def dims_of(value: SSAValue) -> tuple[str, ...]:
    """The names of a value's extents."""
    return names_of(dims_attribute(value))


def describe(value: SSAValue, depth: int = 2) -> str:
    """A value as a term, a few operators deep: `mul(cast(a), 2.0)`."""
    if isinstance(value, BlockArgument):
        return f"arg{value.index}"
    owner = value.owner
    assert isinstance(owner, GraphOperation)
    if owner.operator == "constant":
        return str(owner.attribute("value"))
    if depth == 0:
        return "..."
    flags = [name for name in ("transpose_a", "transpose_b") if owner.attribute(name, False)]
    return f"{owner.operator}({', '.join([describe(v, depth - 1) for v in owner.inputs] + flags)})"


def rewrite_function(function: FuncOp, rules: Iterable[NamedRule]) -> list[Firing]:
    """Applies the rules until none fires, then removes what nothing uses. Gives the log.

    Raises CompileError (E_COMPILE) where a rule does not lessen what it says, and where rules chase each other.
    """
    ordered, table, lines = tuple(rules), dict[str, list[NamedRule]](), _Lines()
    log: list[Firing] = []
    worklist = [op for op in function.body.block.ops if isinstance(op, GraphOperation)]
    worklist.reverse()
    while worklist:
        operation = worklist.pop()
        if operation.parent is None:
            continue
        name = operation.operator
        if name not in table:
            table[name] = [rule for rule in ordered if rule.concerns(name)]
        replacement = _fire(operation, table[name], log, lines)
        if replacement is not None:
            worklist.extend(replacement)
    remove_dead(function.body.block, log)
    return log


@dataclass
class _Lines:
    """For each operation what it was made in place of, at first, and the rules that fired on each such line."""

    origins: dict[GraphOperation, GraphOperation] = field(default_factory=dict)
    fired: dict[GraphOperation, list[str]] = field(default_factory=dict)

    def add(self, rule: NamedRule, operation: GraphOperation, made: Iterable[GraphOperation]) -> None:
        """Notes a firing. Raises CompileError where there were too many on one line."""
        origin = self.origins.get(operation, operation)
        self.origins.update(dict.fromkeys(made, origin))
        fired = self.fired.setdefault(origin, [])
        fired.append(rule.name)
        if len(fired) > MOST_FIRINGS:
            names = " and ".join(name for name, _ in Counter(fired[MOST_FIRINGS // 2 :]).most_common(2))
            raise CompileError(
                f"rewriting does not end: {names} fired {len(fired)} times in place of one {operation.operator}, on "
                f"{describe(operation.result)} last",
                hints=["a rule has to leave less of something than it found, and none may undo what another did"],
            )


def _fire(
    operation: GraphOperation, rules: Iterable[NamedRule], log: list[Firing], lines: _Lines
) -> list[GraphOperation] | None:
    """Tries the rules on one operation; gives the operations to look at again if one fired."""
    for rule in rules:
        rewriter = Rewriter(operation)
        value = rule.apply(operation, rewriter)
        if value is None:
            continue
        lines.add(rule, operation, rewriter.made)
        before = describe(operation.result)
        users = [use.operation for use in operation.result.uses if isinstance(use.operation, GraphOperation)]
        found = rule.lessens.around([operation, *users])
        block = operation.parent
        assert block is not None
        for made in rewriter.made:
            block.insert_op_before(made, operation)
        _keep_knobs(operation, value, rewriter.made)
        operation.result.replace_all_uses_with(value)
        _keep_rules(rule, operation, value, rewriter.made, users)
        block.erase_op(operation, safe_erase=False)
        log.append(Firing(rule.name, before, describe(value)))
        _check_measure(rule, log[-1], found, rule.lessens.around([*rewriter.made, *users]))
        return [*users, *rewriter.made]
    return None


def _check_measure(rule: NamedRule, firing: Firing, found: int, left: int) -> None:
    """Refuses a firing that did not lessen its rule's measure over what it changed: the operation, what was made in its
    place, and what reads the result.
    """
    if left >= found:
        raise CompileError(
            f"the rule {rule.name} is to lessen {rule.lessens.name}; it found {found} and left {left}: {firing}",
            hints=["state a measure that each firing lessens, or fire only where it does"],
        )


def _keep_rules(
    rule: NamedRule,
    operation: GraphOperation,
    value: SSAValue,
    made: Sequence[GraphOperation],
    users: Sequence[GraphOperation],
) -> None:
    """The names behind what is replaced go to what was made in its place: where nothing was, to the value that stands
    there now, or to those who read an argument instead.
    """
    owner = value.owner
    heirs = made or ([owner] if isinstance(owner, GraphOperation) else users)
    inherit(heirs, replaced(operation, {*heirs}), rule.name)


def _keep_knobs(operation: GraphOperation, value: SSAValue, made: Sequence[GraphOperation]) -> None:
    """Pinned knobs go to the operation that was made in place of the pinned one; where none was, nothing is left to
    schedule.
    """
    knobs, owner = operation.attributes.get(KNOBS), value.owner
    while isinstance(owner, GraphOperation) and owner in made and owner.operator in SEEN_OTHERWISE:
        owner.attributes.pop(KNOBS, None)  # a rule may have handed on all attributes
        owner = owner.inputs[0].owner
    if knobs is not None and owner in made:
        assert isinstance(owner, Operation)
        owner.attributes.setdefault(KNOBS, knobs)


def remove_dead(block: Block, log: list[Firing]) -> None:
    """Removes operations whose result nothing uses, last ones first."""
    for operation in reversed(list(block.ops)):
        if isinstance(operation, GraphOperation) and not operation.result.uses.get_length():
            log.append(Firing("dead-code", describe(operation.result), "nothing"))
            block.erase_op(operation)


def merge_equal(block: Block) -> list[Firing]:
    """Common subexpressions: an operation equal to an earlier one is replaced by it.

    %1 = exp(%x); %2 = exp(%x)   ->   %1 = exp(%x), used twice
    """
    log: list[Firing] = []
    seen: dict[tuple[object, ...], GraphOperation] = {}
    for operation in list(block.ops):
        if not isinstance(operation, GraphOperation):
            continue
        key = _identity(operation)
        earlier = seen.setdefault(key, operation)
        if earlier is not operation:
            log.append(Firing("common-subexpression", describe(operation.result), "an earlier equal value"))
            inherit([earlier], [operation], "common-subexpression")
            operation.result.replace_all_uses_with(earlier.result)
            block.erase_op(operation)
    return log


def _identity(operation: Operation) -> tuple[object, ...]:
    # Extents of layout operators are not in their attributes: `node` tells two of them apart.
    attributes = tuple(sorted((name, value) for name, value in operation.attributes.items()))
    return operation.name, tuple(operation.operands), attributes, operation.results[0].type
