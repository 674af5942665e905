"""Lazy results that were made while a session is on, and that nothing has evaluated yet.

A program that is profiled often drops results unread (`y = op.matmul(A, B)` alone on a line) and still wants to see
their cost. While a session is on, new nodes are therefore noted with the expression they were made with; `flush`
evaluates those that are still pending and that no later expression contains.

A result belongs to the thread and to the region in which it was made (of asyncio tasks, several take turns on one
thread): that is where `flush` evaluates it.

Noting is on the path of every operator. So a node takes the place of the one before it where that one needs no
evaluation any more, because it has been evaluated or is a part of the new one; only what may be needed is kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial
from typing import Final

from tessera.dtypes import fp32
from tessera.errors import InputMutatedError
from tessera.lazy import node as nodes
from tessera.lazy.evaluation import check_versions, evaluate
from tessera.lazy.leaves.leaf import Leaf, Placeholder
from tessera.lazy.node import Node, State
from tessera.lazy.structures.interning import scalar
from tessera.lazy.structures.structure import Position, Structure
from tessera.profiling.recording import regions
from tessera.profiling.recording.regions import EnteredRegion, Place, open_of, parts_of, place_of
from tessera.system import forks

PRUNE_FROM: Final = 128
"""Kept notes of a thread from which on those that need no evaluation any more are dropped."""

Note = tuple[State, Node]


_NO_STATE: Final[State] = (scalar(fp32), ())
_NO_NODE: Final = Node((scalar(fp32), ()))
"""No note: a node that is in another state than the one it was noted with, of which nothing can be a part."""


def _none_taken() -> tuple[Note, Place]:
    return (_NO_STATE, _NO_NODE), 0


class PendingResults:
    """The notes of all threads. Each thread flushes its own, of the region it is in; the end of a session flushes
    everybody's.
    """

    def __init__(self) -> None:
        self._kept: dict[Place, list[Note]] = {}
        self._prune_from: dict[Place, int] = {}
        self._lock = forks.lock()
        self._take_latest = _none_taken
        self._here: Callable[[], Place] = threading.get_ident
        self.follows_contexts = False
        """Whether the contexts of one thread are told apart, by the region that each is in."""
        self.skipped = 0  # results left unevaluated because an input was written to meanwhile

    @property
    def watching(self) -> bool:
        """Whether nodes are noted."""
        return self._take_latest is not _none_taken

    def watch(self, also: Callable[[], None] | None = None, *, follow_contexts: bool = False) -> None:
        """Notes every node that operators make from now on, and calls `also` at each."""
        self._settle_latest()
        self.follows_contexts = follow_contexts
        self._here = regions.place if follow_contexts else threading.get_ident
        nodes.use_maker(self._maker if also is None else partial(self._calling_maker, also))

    def unwatch(self) -> None:
        """Notes no more nodes, and forgets those noted."""
        nodes.use_maker(None)
        self._take_latest = _none_taken
        self._kept.clear()
        self._prune_from.clear()

    def notes(self, thread: int) -> list[Note]:
        """What a thread made and may have to be evaluated, the oldest first."""
        self._settle_latest()
        return [note for place, notes in self._kept.items() if parts_of(place)[0] == thread for note in notes]

    def _maker(self, node_class: type[Node]) -> Callable[[State], Node]:
        """The function that makes nodes and keeps the latest in cells: nothing that Python has is faster."""
        new, kept, keep = object.__new__, self._kept, self._keep
        get_place, no_node = self._here, _NO_NODE
        latest, latest_state = _NO_NODE, _NO_STATE
        latest_place: Place = 0

        def made(state: State) -> Node:
            nonlocal latest, latest_state, latest_place
            node = new(node_class)  # without `__init__`, whose frame would cost as much as all the rest
            node.state = state
            place = get_place()
            # From here to the stores nothing is called, so that no other thread comes in between.
            last, last_state, last_place = latest, latest_state, latest_place
            latest, latest_state, latest_place = node, state, place
            if last.state is last_state:
                # The common chain: one operator more over the same leaves. Other parts are found by `outstanding`.
                if last_state[1] is not state[1] or last_state[0] not in state[0].operands or last_place != place:
                    keep((last_state, last), last_place)
            elif kept and last_state[0].size > 1:  # what is kept may be a part of it; its result is not held
                keep((last_state, no_node), last_place)
            return node

        def take_latest() -> tuple[Note, Place]:
            nonlocal latest, latest_state, latest_place
            taken = (latest_state, latest), latest_place
            latest, latest_state, latest_place = _NO_NODE, _NO_STATE, 0
            return taken

        self._take_latest = take_latest
        return made

    def _calling_maker(self, also: Callable[[], None], node_class: type[Node]) -> Callable[[State], Node]:
        make = self._maker(node_class)

        def made(state: State) -> Node:
            also()
            return make(state)

        return made

    def _keep(self, note: Note, place: Place) -> None:
        own = self._kept.setdefault(place, [])
        own.append(note)
        if len(own) >= self._prune_from.get(place, PRUNE_FROM):
            with self._lock:  # the thread itself may be flushing
                count = len(own)
                own[:count] = outstanding(own[:count])
                self._prune_from[place] = max(PRUNE_FROM, 2 * len(own))

    def _settle_latest(self) -> None:
        """Keeps the latest note, whichever thread it is of, if it may be needed."""
        (state, node), place = self._take_latest()
        if node.state is state:
            self._keep((state, node), place)
        elif self._kept and state[0].size > 1:
            self._keep((state, _NO_NODE), place)

    def hand_out(self, scope: EnteredRegion) -> None:
        """A region ends: what the calling thread made in it and has not evaluated is the outer region's from now on."""
        self._settle_latest()
        thread = threading.get_ident()
        with self._lock:
            notes = self._forget(place_of(thread, scope))
        outer = place_of(thread, open_of(scope.outer))
        for note in notes:
            self._keep(note, outer)

    def flush(self, *, all_threads: bool = False) -> None:
        """Evaluates the outstanding results of the calling thread and region, or all, those of a region together, so
        that what they share runs once.

        Results with an input that was written to meanwhile cannot be computed any more; they are counted in `skipped`.
        """
        self._settle_latest()
        places = list(self._kept) if all_threads else [self._here()]
        with self._lock:
            taken = [(parts_of(place)[1], self._forget(place)) for place in places]
        made_in = {id(node): region for region, notes in taken for _, node in notes}
        computable: dict[EnteredRegion | None, list[Node]] = {}
        for _, node in outstanding([note for _, notes in taken for note in notes]):
            try:
                check_versions(node.leaves)
            except InputMutatedError:
                self.skipped += 1
                continue
            computable.setdefault(made_in[id(node)], []).append(node)
        for region, wanted in computable.items():
            copy_context().run(_evaluate_in, region, wanted)

    def _forget(self, place: Place) -> list[Note]:
        self._prune_from.pop(place, None)
        return self._kept.pop(place, [])


def _evaluate_in(region: EnteredRegion | None, results: Sequence[Node]) -> None:
    regions.current.set(region)
    evaluate(results)


def outstanding(notes: Sequence[Note]) -> list[Note]:
    """The notes whose node is pending and whose expression is part of no other noted expression.

    Nodes that tracing made (for `op.kernel` or `autotune`) stand for no values: they are left out.
    """
    pending = sum([node.state is state for state, node in notes])
    if not pending:
        return []
    wanted = {state[0] for state, node in notes if node.state is state}
    holds: dict[Structure, bool] = {}  # whether something wanted is a part
    kept: list[Note] = []
    contained: set[State] = set()
    for state, node in reversed(notes):  # an expression is younger than its parts
        if node.state is state:
            pending -= 1
            if state not in contained and not any(isinstance(leaf, Placeholder) for leaf in state[1]):
                kept.append((state, node))
        if not pending:
            break
        structure = state[0]
        if structure not in holds:
            holds[structure] = not wanted.isdisjoint(_below(structure))
        if holds[structure]:
            _add_parts(state, contained)
    return kept[::-1]


def _below(structure: Structure) -> set[Structure]:
    """What a structure is made of, without itself."""
    found: set[Structure] = set()
    stack = list(structure.operands)
    while stack:
        part = stack.pop()
        if part not in found:
            found.add(part)
            stack.extend(part.operands)
    return found


def _add_parts(state: State, contained: set[State]) -> None:
    """Adds what an expression contains. What stands in `contained` stands there with all its parts."""
    stack = [state]
    while stack:
        structure, leaves = stack.pop()
        for below, position in zip(structure.operands, structure.positions, strict=True):
            if not below.is_leaf:
                part = below, _leaves_at(leaves, position, below.leaf_count)
                if part not in contained:
                    contained.add(part)
                    stack.append(part)


def _leaves_at(leaves: tuple[Leaf, ...], position: Position, count: int) -> tuple[Leaf, ...]:
    if isinstance(position, int):
        return leaves[position : position + count]
    return tuple(leaves[index] for index in position)
