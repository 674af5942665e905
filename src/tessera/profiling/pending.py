"""Lazy results that were made while a session is on, and that nothing has evaluated yet.

A program that is profiled often drops results unread (`y = op.matmul(A, B)` alone on a line) and still wants to see
their cost. While a session is on, every new node is therefore noted with the expression it was made with; `flush`
evaluates those that are still pending and that no later noted expression contains.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Final

from tessera.errors import InputMutatedError
from tessera.lazy import node as nodes
from tessera.lazy.evaluation import check_versions, evaluate
from tessera.lazy.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, State
from tessera.lazy.structure import Position, Structure

PRUNE_AFTER: Final = 1024
"""Notes after which those that need no evaluation any more are dropped."""

Note = tuple[Node, State]
Key = tuple[int, tuple[int, ...]]


class PendingResults:
    """The notes of all threads. Each thread notes and flushes its own; the end of a session flushes everybody's."""

    def __init__(self) -> None:
        self._notes: dict[int, list[Note]] = {}
        self._prune_at: dict[int, int] = {}
        self.skipped = 0  # results left unevaluated because an input was written to meanwhile

    def watch(self) -> None:
        """Notes every node that operators make from now on."""
        nodes.set_observer(self._note)

    def unwatch(self) -> None:
        """Notes no more nodes, and forgets those noted."""
        nodes.set_observer(None)
        self._notes.clear()
        self._prune_at.clear()

    def _note(self, node: Node) -> None:
        thread = threading.get_ident()
        notes = self._notes.setdefault(thread, [])
        notes.append((node, node.state))
        if len(notes) >= self._prune_at.get(thread, PRUNE_AFTER):
            notes[:] = outstanding(notes)
            self._prune_at[thread] = max(PRUNE_AFTER, 2 * len(notes))

    def flush(self, *, all_threads: bool = False) -> None:
        """Evaluates the outstanding results of the calling thread, or of all, together, so that what they share runs
        once.

        Results with an input that was written to meanwhile cannot be computed any more; they are counted in `skipped`.
        """
        threads = list(self._notes) if all_threads else [threading.get_ident()]
        notes = [note for thread in threads for note in self._notes.pop(thread, [])]
        computable = []
        for node, _ in outstanding(notes):
            try:
                check_versions(node.leaves)
            except InputMutatedError:
                self.skipped += 1
                continue
            computable.append(node)
        if computable:
            evaluate(computable)


def outstanding(notes: Iterable[Note]) -> list[Note]:
    """The notes whose node is pending and whose expression is part of no other noted expression.

    Nodes that tracing made (for `op.kernel` or `autotune`) stand for no values: they are left out.
    """
    kept = [note for note in notes if not any(isinstance(leaf, Placeholder) for leaf in note[1][1])]
    tracked = {_key(*state) for _, state in kept}
    contained: set[Key] = set()
    seen: set[Key] = set()
    for _, (structure, leaves) in kept:
        stack = list(_operands(structure, leaves))
        while stack:
            below, own = stack.pop()
            key = _key(below, own)
            if key in seen or below.is_leaf:
                continue
            seen.add(key)
            if key in tracked:
                contained.add(key)  # its own note goes on downwards from there
            else:
                stack.extend(_operands(below, own))
    return [note for note in kept if note[0].is_pending and _key(*note[1]) not in contained]


def _operands(structure: Structure, leaves: tuple[Leaf, ...]) -> Iterable[State]:
    for below, position in zip(structure.operands, structure.positions, strict=True):
        yield below, _leaves_at(leaves, position, below.leaf_count)


def _leaves_at(leaves: tuple[Leaf, ...], position: Position, count: int) -> tuple[Leaf, ...]:
    if isinstance(position, int):
        return leaves[position : position + count]
    return tuple(leaves[index] for index in position)


def _key(structure: Structure, leaves: tuple[Leaf, ...]) -> Key:
    return id(structure), tuple(map(id, leaves))
