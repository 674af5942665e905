"""Bodies of loops and branches: functions of tensors, traced once, run by one plan over the tensors of each step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, cast

import torch

from tessera.compiler.trace.randomness import undrawn
from tessera.errors import ArgumentError
from tessera.handle import Tensor
from tessera.lazy import evaluation
from tessera.lazy.devices import CPU
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.leaves.sources import from_torch
from tessera.lazy.node import Node, joined, leaf_node
from tessera.lazy.policy import is_current
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Shape, Structure, contiguous_strides
from tessera.ops import OPERATORS, oracle
from tessera.ops.counting import flops_of
from tessera.ops.flow.records import Kind

Slot: TypeAlias = int | Leaf
"""What a leaf of a body is: an operand's number, or a number that stays."""

Tree: TypeAlias = Any
"""Tensors in tuples, lists and dictionaries."""


def flattened(tree: Tree) -> list[Any]:
    """The tensors of a tree, in order."""
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in flattened(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in flattened(part)]
    return [] if tree is None else [tree]


def rebuilt(tree: Tree, leaves: Sequence[Any]) -> Tree:
    """A tree of the same form over other tensors."""
    left = list(leaves)

    def build(part: Tree) -> Tree:
        if isinstance(part, dict):
            made = {key: build(part[key]) for key in sorted(part)}
            return {key: made[key] for key in part}
        if isinstance(part, tuple | list):
            parts = [build(each) for each in part]
            return type(part)(*parts) if hasattr(part, "_fields") else type(part)(parts)
        return None if part is None else left.pop(0)

    return build(tree)


def form(tree: Tree) -> Tree:
    """What two trees have in common that differ in their tensors alone."""
    return rebuilt(tree, [0] * len(flattened(tree)))


def layout_of(node: Node, shape: Shape | None = None) -> Structure:
    """The structure of contiguous memory for a value like another."""
    structure = node.state[0]
    extents = structure.shape if shape is None else shape
    return interning.buffer(extents, contiguous_strides(extents), structure.dtype, structure.device or CPU)


class Body:
    """A traced function of `structures`, its operands' layouts; see `traced`.

    `results` has for each result the number of an operand that it is, or less than 0: -1 - place among what is
    computed.
    """

    def __init__(
        self,
        structures: tuple[Structure, ...],
        roots: Structure | None,
        slots: tuple[Slot, ...],
        results: tuple[int, ...],
    ) -> None:
        self.structures, self._roots, self._slots, self.results = structures, roots, slots, results

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for bodies that compute the same."""
        slots = tuple(slot if isinstance(slot, int) else (slot.structure, slot.address) for slot in self._slots)
        return self.structures, self._roots, slots, self.results

    @property
    def kinds(self) -> list[Kind]:
        """The results' shapes and dtypes."""
        roots = () if self._roots is None else self._roots.operands if self._roots.kind == "tuple" else (self._roots,)
        found = [self.structures[number] if number >= 0 else roots[-1 - number] for number in self.results]
        return [(each.shape, each.dtype) for each in found]

    def over(self, structures: Sequence[Structure]) -> Body:
        """The body over more operands, behind its own, which it does not use."""
        assert tuple(structures[: len(self.structures)]) == self.structures
        return Body(tuple(structures), self._roots, self._slots, self.results)

    def _leaves(self, operands: Sequence[Leaf]) -> tuple[Leaf, ...]:
        return tuple([operands[slot] if isinstance(slot, int) else slot for slot in self._slots])

    def nodes(self, operands: Sequence[Leaf]) -> list[Tensor]:
        """The results as expressions over leaves of the body's layouts."""
        computed = self._pending(operands)
        return [
            cast(Tensor, leaf_node(operands[number])) if number >= 0 else computed[-1 - number]
            for number in self.results
        ]

    def _pending(self, operands: Sequence[Leaf]) -> list[Tensor]:
        if self._roots is None:
            return []
        leaves = self._leaves(operands)
        if self._roots.kind != "tuple":
            return [Tensor((self._roots, leaves))]
        parts = zip(self._roots.operands, self._roots.positions, strict=True)
        return [Tensor((root, _at(leaves, position, root.leaf_count))) for root, position in parts]

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of a step over tensors of the body's layouts."""
        operands = [
            Leaf(structure, tensor.data_ptr(), tensor, None)
            for structure, tensor in zip(self.structures, tensors, strict=True)
        ]
        if self._roots is None:
            return [tensors[number] for number in self.results]
        plan = self._roots.plan
        if plan is None or not is_current(plan.threads):
            nodes = self._pending(operands)
            evaluation.evaluate(nodes)
            computed = [to_torch(node.state[1][0]) for node in nodes]
        else:
            computed = [to_torch(leaf) for leaf in plan.run(self._leaves(operands))]
        return [tensors[number] if number >= 0 else computed[-1 - number] for number in self.results]

    def reference(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The results of a step by the operators' references, in float64."""
        operands = [from_torch(tensor.contiguous()) for tensor in tensors]
        computed = [oracle.reference(node) for node in self._pending(operands)]
        return [tensors[number] if number >= 0 else computed[-1 - number] for number in self.results]

    @property
    def flops(self) -> int:
        """Operations of a step."""
        count = 0
        for structure, _, _ in self._roots.post_order() if self._roots is not None else ():
            if structure.operator is not None:
                record, named = OPERATORS[structure.operator.name], structure.named_attributes
                count += flops_of(record, structure.operands, structure, named)
        return count


def _at(leaves: tuple[Leaf, ...], position: Any, count: int) -> tuple[Leaf, ...]:
    if isinstance(position, int):
        return leaves[position : position + count]
    return tuple([leaves[place] for place in position])


def traced(function: Callable[..., Tree], structures: Sequence[Structure], captured: list[Leaf]) -> tuple[Body, Tree]:
    """The body of a function, which is run once on placeholders, and the form of what it gave.

    Tensors that the function reads beside its operands become operands behind them: their leaves are added to
    `captured`, and `Body.structures` is longer by the layouts of all of them.
    """
    holders = [Placeholder(structure) for structure in structures]
    with undrawn():
        given = function(*[leaf_node(holder) for holder in holders])
    outputs = [_with_memory(value) for value in flattened(given)]
    places: dict[Leaf, int] = {holder: number for number, holder in enumerate(holders)}
    places |= {leaf: len(holders) + number for number, leaf in enumerate(captured)}

    def slot(leaf: Leaf) -> Slot:
        if leaf.structure.kind != "buffer":
            return leaf
        if leaf not in places:
            places[leaf] = len(holders) + len(captured)
            captured.append(leaf)
        return places[leaf]

    pending = list(dict.fromkeys(id(node) for node in outputs if node.is_pending))
    nodes = [next(node for node in outputs if id(node) == each) for each in pending]
    results = []
    for node in outputs:
        if node.is_pending:
            results.append(-1 - pending.index(id(node)))
        else:
            results.append(cast(int, slot(node.state[1][0])))
    roots, leaves = (None, ()) if not nodes else nodes[0].state if len(nodes) == 1 else joined(nodes)
    slots = tuple(slot(leaf) for leaf in leaves)
    body = Body((*structures, *(leaf.structure for leaf in captured)), roots, slots, tuple(results))
    return body, form(given)


def _with_memory(value: object) -> Tensor:
    """A result as a pending tensor, or one that has memory: a number that a body gives is made a tensor."""
    if not isinstance(value, Tensor):
        if isinstance(value, bool | int | float | torch.Tensor):
            return _with_memory(leaf_node(from_torch(torch.as_tensor(value))))
        raise ArgumentError(
            f"the body gave a {type(value).__name__}", hints=["tensors, in tuples, lists or dictionaries"]
        )
    structure = value.state[0]
    if structure.kind == "buffer" or value.is_pending:
        return value
    return cast(Tensor, leaf_node(from_torch(value.torch())))


def fitted(structure: Structure, tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a layout: itself where it has it. Where the layout repeats elements, the tensor does, too."""
    strides = tuple(0 if extent == 1 else stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if strides == structure.strides or 0 in structure.shape:
        return tensor
    made = torch.empty_strided(structure.shape, structure.strides, dtype=tensor.dtype, device=tensor.device)
    first = tuple(slice(None if stride else 1) for stride in structure.strides)
    made[first].copy_(tensor[first])
    return made
