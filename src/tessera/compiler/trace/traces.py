"""Traces: the expression that a function made of placeholders, and how it is applied to the arguments of a call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

from tessera.compiler.trace.parameters import Absent, Fixed, Parameters, Receiver, Static
from tessera.compiler.trace.randomness import undrawn
from tessera.dtypes import DType, fp32, fp64, int32
from tessera.errors import ArgumentError
from tessera.lazy import node as nodes
from tessera.lazy.leaves.conversion import NotATensorError
from tessera.lazy.leaves.leaf import Leaf, Placeholder, scalar_leaf
from tessera.lazy.node import Node
from tessera.lazy.structures import interning
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Occurrence, Structure
from tessera.ops.elementwise.calls import cast_to
from tessera.system.caching import cached_property

Key: TypeAlias = tuple[Structure | Fixed, ...]
"""Of a call: the structures of its operands, and what else was given, in the order of the parameters."""
Numbers: TypeAlias = tuple[tuple[int, DType], ...]
"""Operands that are numbers and enter an expression in another dtype than their own: (index, dtype)."""


@dataclass(frozen=True)
class TracedResult:
    """One traced result: its structure, and which operand each of its leaves is."""

    structure: Structure
    order: tuple[int, ...]
    constants: tuple[Leaf | None, ...]

    @cached_property
    def nodes(self) -> tuple[Occurrence, ...]:
        """The structure's nodes in post-order, for replays."""
        return tuple(self.structure.post_order())

    def leaves(self, operands: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The leaves for a call; literals of the function's own body are kept from the trace."""
        return tuple(
            own if own is not None else operands[index] for index, own in zip(self.order, self.constants, strict=True)
        )

    def apply(self, operands: Sequence[Node]) -> Any:
        """Applies the algebra to other operands; shape rules run again."""
        leaves = [
            operands[index] if own is None else Node((own.structure, (own,)))
            for index, own in zip(self.order, self.constants, strict=True)
        ]
        made: list[Any] = []
        for occurrence in self.nodes:
            made.append(_apply_one(occurrence, made, leaves))
        return made[-1]


@dataclass(frozen=True)
class FunctionTrace:
    """What one run of a function gave. `direct` is the structure of a single result whose leaves are the operands in
    their order: the common case.
    """

    results: tuple[TracedResult, ...]
    single: bool
    shape_dependent: bool
    numbers: Numbers
    direct: Structure | None

    def make(self, leaves: Sequence[Leaf]) -> Any:
        """The result, or the tuple of results, over the leaves of a call."""
        if self.numbers:
            leaves = list(leaves)
            for index, dtype in self.numbers:
                leaves[index] = scalar_leaf(leaves[index].owner, dtype)
        return self._returned([nodes.make((result.structure, result.leaves(leaves))) for result in self.results])

    def apply(self, operands: Sequence[Node]) -> Any:
        """The same over any operands, pending ones included."""
        operands = list(operands)
        for index, dtype in self.numbers:
            leaf = scalar_leaf(operands[index].leaves[0].owner, dtype)
            operands[index] = Node((leaf.structure, (leaf,)))
        return self._returned([result.apply(operands) for result in self.results])

    def replayed(self, key: Key) -> FunctionTrace:
        """The trace over operands of other extents, without running the function."""
        holders = _placeholders(_with_numbers(key, self.numbers))
        operands = [Node((holder.structure, (holder,))) for holder in holders]
        outputs = [result.apply(operands) for result in self.results]
        return _trace(outputs, holders, self.single, self.shape_dependent, self.numbers)

    def _returned(self, made: list[Any]) -> Any:
        return made[0] if self.single else tuple(made)


def trace(function: Callable[..., Any], parameters: Parameters, key: Key) -> FunctionTrace:
    """Runs a function on placeholders. Raises ArgumentError (E_ARGUMENT) for more operands than it has, and for a
    result that is no tensor.

    A Python number has a dtype of its own (int64 for 3) and would be cast by a kernel before the one that uses it.
    Where all uses do so, the function runs once more over a number that the caller converts.
    """
    first = _run(function, parameters, key, ())
    numbers = _converted(first, key)
    return _run(function, parameters, key, numbers) if numbers else first


def _run(function: Callable[..., Any], parameters: Parameters, key: Key, numbers: Numbers) -> FunctionTrace:
    parts = _with_numbers(key, numbers)
    holders = _placeholders(parts)
    left = iter(holders)
    given = [nodes.leaf_node(next(left)) if isinstance(part, Structure) else _meant(part) for part in parts]
    arguments, keywords = parameters.complete(given)
    with _shape_reads() as reads, undrawn():
        try:
            returned = function(*arguments, **keywords)
        except NotATensorError as error:
            _refuse_absent(error.value)
            raise
    for argument in (*arguments, *keywords.values()):
        if isinstance(argument, Absent):
            argument.refuse_unless_added()
    single = not isinstance(returned, tuple | list)
    outputs = [returned] if single else list(returned)
    for output in outputs:
        if not isinstance(output, Node):
            _refuse_absent(output)
            raise ArgumentError(
                f"{parameters.function}() returned a {type(output).__name__}",
                hints=["return a tensor, or a tuple of tensors"],
            )
    dependent = bool(reads) or any(_holds_extents(output.structure) for output in outputs)
    return _trace(outputs, holders, single, dependent, numbers)


def _refuse_absent(value: object) -> None:
    """Says of an absent operand that it is missing, which is what the caller can mend, where it is no tensor."""
    if isinstance(value, Absent):
        value.refuse()


def _trace(
    outputs: Sequence[Node], holders: Sequence[Leaf], single: bool, shape_dependent: bool, numbers: Numbers
) -> FunctionTrace:
    place = {holder: index for index, holder in enumerate(holders)}
    results = tuple(
        TracedResult(
            output.structure,
            tuple(place.get(leaf, -1) for leaf in output.leaves),
            tuple(None if leaf in place else leaf for leaf in output.leaves),
        )
        for output in outputs
    )
    in_order = single and not numbers and results[0].order == tuple(range(len(holders)))
    return FunctionTrace(results, single, shape_dependent, numbers, results[0].structure if in_order else None)


def _placeholders(parts: Key) -> list[Placeholder]:
    return [Placeholder(part) for part in parts if isinstance(part, Structure)]


def _meant(part: Fixed) -> object:
    """What the function gets for an argument that is no operand."""
    if isinstance(part, Static):
        return part.value
    return part.instance if isinstance(part, Receiver) else part


def _with_numbers(key: Key, numbers: Numbers) -> Key:
    """The key with some numbers, counted among its operands, in other dtypes."""
    if not numbers:
        return key
    places = [place for place, part in enumerate(key) if isinstance(part, Structure)]
    parts = list(key)
    for index, dtype in numbers:
        parts[places[index]] = interning.scalar(dtype)
    return tuple(parts)


def _converted(traced: FunctionTrace, key: Key) -> Numbers:
    """The numbers of which every use is a cast, and a dtype that needs none, or only one that a kernel absorbs."""
    found = []
    for index, part in enumerate([part for part in key if isinstance(part, Structure)]):
        if part.kind == "scalar":
            dtype = _dtype_of_casts(_casts(traced, index))
            if dtype is not None and dtype is not part.dtype:
                found.append((index, dtype))
    return tuple(found)


def _dtype_of_casts(casts: list[DType | None]) -> DType | None:
    """In which dtype a number is to come that is cast to these, None where something else happens to it too."""
    kinds = {None if dtype is None else dtype.kind for dtype in casts}
    if kinds == {"float"}:
        # As numbers beside tensors of 16 bits do, it stays unrounded.
        return fp64 if fp64 in casts else fp32
    return int32 if set(casts) == {int32} else None


def _casts(traced: FunctionTrace, index: int) -> list[DType | None]:
    """What each use of an operand casts it to; None for every other use."""
    found: list[DType | None] = []
    for result in traced.results:
        for place, leaf in enumerate(result.order):
            if leaf == index:
                found += _casts_in(result.nodes, place)
    return found


def _casts_in(order: Sequence[Occurrence], leaf: int) -> list[DType | None]:
    if order[-1].leaf == leaf:
        return [None]  # it is returned as it is
    own = next(place for place, occurrence in enumerate(order) if occurrence.leaf == leaf)
    users = [occurrence.structure for occurrence in order if own in occurrence.operands]
    return [cast_to(user) for user in users]


def _apply_one(occurrence: Occurrence, made: Sequence[Any], leaves: Sequence[Node]) -> Any:
    structure = occurrence.structure
    if occurrence.leaf is not None:
        return leaves[occurrence.leaf]
    if structure.operator is None:
        return Node((structure, ()))
    return apply(structure.operator, structure.attributes, [made[index] for index in occurrence.operands])


def _holds_extents(structure: Structure) -> bool:
    """Whether an attribute anywhere below holds extents, which another call would have to change."""
    return any(
        node.structure.operator is not None
        and node.structure.attributes
        and node.structure.operator.symbolic_attributes(
            node.structure.attributes, node.structure.operands, node.structure.shape
        )
        != node.structure.attributes
        for node in structure.post_order()
    )


@contextmanager
def _shape_reads() -> Iterator[list[bool]]:
    """Collects whether this thread reads a tensor's shape meanwhile."""
    reads: list[bool] = []
    thread = threading.get_ident()
    before = nodes.shape_watchers.get(thread)
    nodes.shape_watchers[thread] = lambda: reads.append(True)
    try:
        yield reads
    finally:
        if before is None:
            del nodes.shape_watchers[thread]
        else:
            nodes.shape_watchers[thread] = before
