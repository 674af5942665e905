"""Occurrences: a structure spelt out as a graph over one numbering of leaves.

A structure that stands below two operators, over different leaves, occurs twice; over the same leaves it occurs once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tessera.lazy.structure import Structure

_new = tuple.__new__
"""Makes a named tuple in half the time that its own constructor, a Python function, takes."""


class Occurrence(NamedTuple):
    """A structure at its place in a graph: indices of its operands in the post-order, and the root's leaf number for
    a leaf.
    """

    structure: Structure
    operands: tuple[int, ...]
    leaf: int | None


def _occurrence_leaves(base: Sequence[int], position: int | tuple[int, ...], count: int) -> Sequence[int]:
    if isinstance(position, tuple):
        return tuple([base[p] for p in position])
    return base[position : position + count]


class _Occurrences:
    """Collects occurrences in order; those that are the same structure over the same leaves are one."""

    __slots__ = ("_known", "_leaves", "order")

    def __init__(self) -> None:
        self.order: list[Occurrence] = []
        self._leaves: dict[int, int] = {}
        self._known: dict[Structure, list[tuple[Sequence[int], int]]] = {}

    def place(self, structure: Structure, base: Sequence[int]) -> int | None:
        """The index of an occurrence; None for one over operands that is not known yet."""
        if structure.operands:
            count = structure.leaf_count
            for known, index in self._known.get(structure, ()):
                if known is base or known[:count] == base[:count]:
                    return index
            return None
        if not structure.leaf_count:
            known_constant = self._known.get(structure)
            return known_constant[0][1] if known_constant else self.add(structure, base, ())
        number = base[0]
        found = self._leaves.get(number)
        if found is None:
            found = self._leaves[number] = len(self.order)
            self.order.append(_new(Occurrence, (structure, (), number)))
        return found

    def add(self, structure: Structure, base: Sequence[int], operands: tuple[int, ...]) -> int:
        """Appends what is no leaf, after its operands."""
        index = len(self.order)
        self.order.append(_new(Occurrence, (structure, operands, None)))
        self._known.setdefault(structure, []).append((base, index))
        return index


def post_order(root: Structure) -> list[Occurrence]:
    """All distinct nodes, leaves and constants below a structure, operands before uses; the structure comes last.

    On the path of binding: about 0.4 us a node.
    """
    # Depth first, with a stack of its own: graphs are deeper than Python's recursion goes.
    found = _Occurrences()
    opened: list[tuple[Structure, Sequence[int], list[int]]] = []
    structure = root
    base: Sequence[int] = tuple(range(root.leaf_count))  # slices of ranges would not be comparable with tuples
    while True:
        index = found.place(structure, base)
        if index is None:
            opened.append((structure, base, []))
        while opened:
            structure, base, operands = opened[-1]
            if index is not None:
                operands.append(index)
            done = len(operands)
            if done < len(structure.operands):
                position = structure.positions[done]
                structure = structure.operands[done]
                # A prefix needs no slice: structures read only as many entries as they have leaves.
                base = _occurrence_leaves(base, position, structure.leaf_count) if position else base
                break
            opened.pop()
            index = found.add(structure, base, tuple(operands))
        else:
            return found.order
