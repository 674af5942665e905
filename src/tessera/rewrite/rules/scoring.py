"""Scores that are changed before the softmax by more than a scale and a mask: elementwise operators, as they stand.

cap * tanh(matmul(q, k^T) / cap) + slopes * (keys - queries)   ->   steps over the product (`ops/attention/scoring.py`)

Steps are what is made of the product, and matrices that are made for the scores alone, of positions or of smaller
operands. What they read beside it stays an operand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.ir import SSAValue

from tessera.dtypes import DType, accumulator
from tessera.ir.graph.operations import GraphOperation
from tessera.ops.attention.scored import MOST
from tessera.ops.attention.scoring import SCORE, ScoreRecording, Scoring
from tessera.ops.record import OPERATORS, family_of
from tessera.rewrite.engine import dims_of
from tessera.rewrite.rules.algebra import constant_of, dtype, made_by


@dataclass(frozen=True)
class Scored:
    """A product of queries and keys, the steps over it, and what they read beside it."""

    product: GraphOperation
    steps: Scoring
    extras: tuple[SSAValue, ...]


def trace_scoring(value: SSAValue, wanted: DType) -> Scored | None:
    """The steps that make `value`, scores which a softmax alone uses, of a product; None where it is anything else."""
    reading = _Reading(value)
    if reading.product is None:
        return None
    scored = reading.read(value, accumulator(wanted))
    return scored if scored is not None and len(scored.extras) <= MOST else None


def is_counted(value: SSAValue) -> bool:
    """Whether a value is made of positions and numbers alone, element by element."""
    stack = [value]
    while stack:
        value = stack.pop()
        if not dims_of(value):
            continue
        owner = value.owner
        if not isinstance(owner, GraphOperation):
            return False
        if owner.operator not in ("iota", "reshape", "constant") and not family_of(owner.operator).is_map:
            return False
        stack += owner.inputs
    return True


class _Reading:
    """The operations between a product and a softmax."""

    def __init__(self, value: SSAValue) -> None:
        self.dims = dims_of(value)
        self.inside: set[GraphOperation] = set()
        self.product: GraphOperation | None = None
        self._enclose(value)

    def _enclose(self, root: SSAValue) -> None:
        """Finds what is made for the scores alone: an operation all of whose uses are inside is inside itself."""
        ready = [root] if root.uses.get_length() == 1 else []
        waiting: list[SSAValue] = []
        while ready:
            operation = ready.pop().owner
            if not isinstance(operation, GraphOperation) or not self._may_enter(operation):
                continue
            self.inside.add(operation)
            if operation is not self.product:
                waiting += operation.inputs
            free = [x for x in dict.fromkeys(waiting) if all(use.operation in self.inside for use in x.uses)]
            waiting = [x for x in waiting if x not in free]
            ready += free

    def _may_enter(self, operation: GraphOperation) -> bool:
        names = dims_of(operation.result)
        if operation.operator == "matmul":
            if self.product is not None or names != self.dims:
                return False
            self.product = operation
            return True
        is_matrix = len(names) > 1 and "1" not in names[-2:]
        return family_of(operation.operator).is_map and (is_matrix or is_counted(operation.result))

    def read(self, root: SSAValue, scores: DType) -> Scored | None:
        """The steps to `root`, whose dtype is that of scores; the walk has a stack of its own."""
        assert self.product is not None
        recording, extras = ScoreRecording(), dict[SSAValue, int]()
        known: dict[SSAValue, int] = {self.product.result: SCORE}
        stack = [root]
        while stack:
            value = stack[-1]
            operation = value.owner
            if value in known:
                pass
            elif (number := constant_of(value)) is not None and not dims_of(value):
                known[value] = recording.constant(number, dtype(value))
            elif not isinstance(operation, GraphOperation) or operation not in self.inside:
                known[value] = extras.setdefault(value, 1 + len(extras))
            elif missing := [operand for operand in operation.inputs if operand not in known]:
                stack += missing
                continue
            elif _is_rounding(operation):
                known[value] = known[operation.inputs[0]]
            else:
                places = [known[operand] for operand in operation.inputs]
                named = dict(_attributes(operation))
                known[value] = recording.step(operation.operator, places, named, dtype(value))
            stack.pop()
        return Scored(self.product, recording.ending_in(known[root], scores), tuple(extras))


def _is_rounding(operation: GraphOperation) -> bool:
    """Whether a cast changes nothing but digits that kernels keep."""
    if operation.operator != "cast":
        return False
    kinds = dtype(operation.inputs[0]), dtype(operation.result)
    return all(kind.kind == "float" for kind in kinds) and accumulator(kinds[0]) is accumulator(kinds[1])


def _attributes(operation: GraphOperation) -> Iterator[tuple[str, object]]:
    """Attributes as the record takes them."""
    for name in OPERATORS[operation.operator].attributes:
        if name == "dtype":
            yield name, dtype(operation.result)
        elif name in operation.attributes:
            yield name, operation.attribute(name)


def has_positions(mask: SSAValue) -> bool:
    """Whether a mask is algebra over positions that is more than one comparison, which `causal` may say."""
    while (inverse := made_by(mask, "logical_not")) is not None:
        mask = inverse.inputs[0]
    return (made_by(mask, "logical_and") or made_by(mask, "logical_or")) is not None and is_counted(mask)
