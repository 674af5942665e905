"""Nodes: lazy tensors, and how the leaves of several come together.

A node is a pair (structure, leaves). It is kept as one tuple in one slot, so that evaluation, which replaces the
pair by the result, is a single assignment that other threads see whole or not at all.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from tessera.dtypes import DType
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Position, Shape, Structure

State: TypeAlias = tuple[Structure, tuple[Leaf, ...]]


class Node:
    """A lazy tensor without conveniences; `handle.Tensor` is the one that users hold.

    `state` is (structure, leaves). Read it once and unpack it: two reads may see two different states.
    """

    __slots__ = ("__weakref__", "computed", "state")

    computed: Structure
    """What the expression was, once its result stands in its place; not there before."""

    def __init__(self, state: State) -> None:
        self.state = state

    @property
    def structure(self) -> Structure:
        """The structure; see `Structure`."""
        return self.state[0]

    @property
    def leaves(self) -> tuple[Leaf, ...]:
        """The leaves, in the structure's order."""
        return self.state[1]

    @property
    def shape(self) -> Shape:
        """The extents. A function that reads them while it is traced depends on them."""
        if shape_watchers:
            watcher = shape_watchers.get(threading.get_ident())
            if watcher is not None:
                watcher()
        return self.state[0].shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.state[0].dtype

    @property
    def is_pending(self) -> bool:
        """Whether there is something to evaluate."""
        return not self.state[0].is_leaf

    def store(self, leaf: Leaf) -> None:
        """Puts the result in place of the expression."""
        self.computed = self.state[0]
        self.state = (leaf.structure, (leaf,))


shape_watchers: dict[int, Callable[[], None]] = {}
"""By thread: what to call when a shape is read. Tracing learns so whether a function depends on extents."""

make: Callable[[State], Any] = Node
"""Makes the node of a state; what operators call."""

Maker: TypeAlias = Callable[[type[Node]], Callable[[State], Any]]
"""Gives a function that makes the node, of this class, of a state."""

_node_class: type[Node] = Node
_maker: Maker | None = None


def use_node_class(node_class: type[Node]) -> None:
    """Makes operators give instances of `node_class`, whose constructor is `Node`'s."""
    global _node_class  # noqa: PLW0603  (set once, when `handle` is imported)
    _node_class = node_class
    use_maker(_maker)


def use_maker(maker: Maker | None) -> None:
    """Has `maker` make what operators give from now on; None: the class itself."""
    global make, _maker  # noqa: PLW0603  (a module variable is the cheapest hook there is)
    _maker = maker
    make = _node_class if maker is None else maker(_node_class)


def leaf_node(leaf: Leaf) -> Any:
    """The node of a leaf. Not reported to the observer: nothing is pending."""
    return _node_class((leaf.structure, (leaf,)))


def constant_node(structure: Structure) -> Any:
    """The node of a literal. Not reported to the observer: it is part of the algebra."""
    return _node_class((structure, ()))


def merge(first: tuple[Leaf, ...], second: tuple[Leaf, ...]) -> tuple[tuple[Leaf, ...], Position]:
    """The leaves of an expression over both, each once, and the position of `second` in them."""
    if first is second:
        return first, 0
    if len(second) == 1:
        leaf = second[0]
        if leaf in first:
            return first, first.index(leaf)
        return (first + second, len(first)) if first else (second, 0)
    if not second:
        return first, 0
    if not first:
        return second, 0
    return _merge_many(first, second)


def _merge_many(first: tuple[Leaf, ...], second: tuple[Leaf, ...]) -> tuple[tuple[Leaf, ...], Position]:
    places = {leaf: place for place, leaf in enumerate(first)}
    position = [places.setdefault(leaf, len(places)) for leaf in second]
    start = position[0]
    # One spelling per meaning, or equal structures would get different keys.
    compact: Position = start if position == list(range(start, start + len(second))) else tuple(position)
    return (first if len(places) == len(first) else tuple(places)), compact


def joined(nodes: Sequence[Node]) -> State:
    """The structure that evaluates several nodes together, and its leaves."""
    roots: list[Structure] = []
    positions: list[Position] = []
    leaves: tuple[Leaf, ...] = ()
    for node in nodes:
        structure, own = node.state
        leaves, position = merge(leaves, own)
        roots.append(structure)
        positions.append(position)
    return interning.bundle(tuple(roots), tuple(positions)), leaves


def apart(structure: Structure, leaves: tuple[Leaf, ...]) -> list[Node]:
    """Nodes of the roots of a structure that `joined` made, over its leaves; the one node of any other structure."""
    if structure.kind != "tuple":
        return [Node((structure, leaves))]
    nodes = []
    for root, position in zip(structure.operands, structure.positions, strict=True):
        places = range(position, position + root.leaf_count) if isinstance(position, int) else position
        nodes.append(Node((root, tuple([leaves[place] for place in places]))))
    return nodes
