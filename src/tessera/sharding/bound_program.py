"""Local programs bound to a mesh: a flat walk over launches and exchanges.

What lies between two exchanges is evaluated together; `partitioning/schedule.py` says where exchanges begin and where
they are waited for, the same on every rank. Expressions, groups and communicators are worked out once. A call keeps the
values of each device by number, and lets go of each behind the last step that reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias, cast

from tessera.lazy.devices import is_mesh
from tessera.lazy.evaluation import check_versions, evaluate_over
from tessera.lazy.layouts import Coordinates
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.promise import settle
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.sharding.exchange.buckets import Bucket, Finishing
from tessera.sharding.local_expressions import StepExpressions, step_expressions
from tessera.sharding.partitioning.program import LocalProgram, Read, ShardMove, coordinates_at
from tessera.sharding.partitioning.schedule import Evaluate, OverlapLimits, Start, Step, schedule_of
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.parts import HeldPlaces, held_places
from tessera.sharding.tensors.shards import Shards, shards_of

Slots: TypeAlias = list[Leaf]
"""By number, the values that are there on a device; what is not there (yet, or any more) nobody reads."""

_NOTHING = cast(Leaf, None)


class BoundProgram:
    """A program in the order of a schedule, on the devices of a mesh that this process holds. Raises as `mesh.places`
    does.
    """

    def __init__(self, program: LocalProgram, limits: OverlapLimits, mesh: Mesh) -> None:
        self._program, self._mesh = program, mesh
        self._homes = held_places(mesh, dict.fromkeys(value.home for value in program.values))
        self._reads = [
            (number, each.leaf, self._homes[program.values[number].home].own)
            for number, each in enumerate(program.instructions)
            if isinstance(each, Read)
        ]
        self._steps = list(self._bound(schedule_of(program, limits)))

    def __call__(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The roots, over leaves of the program's."""
        slots = self._given(leaves)
        under_way: dict[_Exchange, Finishing] = {}
        for step in self._steps:
            step.run(slots, under_way)
        return tuple([self._result(root, slots) for root in self._program.roots])

    def _given(self, leaves: Sequence[Leaf]) -> dict[int, Slots]:
        """What devices have before anything is computed: checked, and nobody else's work any more."""
        slots = {place: [_NOTHING] * len(self._program.values) for place in self._mesh.places}
        given: list[Leaf] = []
        for number, position, own in self._reads:
            if not own:
                continue
            leaf = leaves[position]
            if leaf.structure.layout is not None:
                shards = shards_of(leaf).leaves()
                for place, there in own.items():
                    slots[place][number] = shards[there]
                    given.append(shards[there])
            else:
                given.append(leaf)
                for place in own:
                    slots[place][number] = _on_each_device(leaf)
        check_versions(given)
        settle(given)
        return slots

    def _result(self, root: int, slots: Mapping[int, Slots]) -> Leaf:
        value = self._program.values[root]
        home = self._homes[value.home]
        made = {there: slots[place][root] for place, there in home.own.items()}
        return Shards(home.mesh, value.shape, value.dtype, value.layout, made).leaf()

    def _bound(self, schedule: Sequence[Step]) -> Iterator[_Launch | _Begin | _Finish]:
        program, exchanges = self._program, dict[tuple[int, ...], _Exchange]()
        for step, ends in zip(schedule, _last_reads(program, schedule), strict=True):
            if isinstance(step, Evaluate):
                for place in self._mesh.places:
                    yield _Launch(program, step, place, self._mesh.grid.coordinates(place), ends)
                continue
            home = self._homes[program.values[step.bucket[0]].home]
            if not home.own:
                continue  # devices of another part of the mesh exchange
            if isinstance(step, Start):
                exchange = exchanges[step.bucket] = _Exchange(program, step.bucket, home)
                yield _Begin(exchange, ends)
            else:
                yield _Finish(exchanges[step.bucket])


class _Launch:
    """What a device computes in one step; which plans that takes hangs on how what it reads lies."""

    def __init__(
        self, program: LocalProgram, step: Evaluate, place: int, at: Coordinates, ends: tuple[int, ...]
    ) -> None:
        self._program, self._step, self._place, self._at, self._ends = program, step, place, at, ends
        self._used = tuple([n for n in step.used if coordinates_at(program.values[n].home, at) is not None])
        self._known: dict[tuple[Structure, ...], StepExpressions] = {}

    def run(self, slots: Mapping[int, Slots], _: dict[_Exchange, Finishing]) -> None:
        """Computes."""
        held = slots[self._place]
        lies = tuple([held[number].structure for number in self._used])
        plans, same = self._known.get(lies) or self._expressions(lies)
        for structure, reads, makes in plans:
            results = evaluate_over(structure, tuple([held[number] for number in reads]))
            for number, leaf in zip(makes, results, strict=True):
                held[number] = leaf
        for number, other in same:
            held[number] = held[other]
        for number in self._ends:
            held[number] = _NOTHING

    def _expressions(self, lies: tuple[Structure, ...]) -> StepExpressions:
        used = dict(zip(self._used, lies, strict=True))
        made = self._known[lies] = step_expressions(self._program, self._step, self._at, used)
        return made


class _Exchange:
    """What travels as one between the devices of a home."""

    def __init__(self, program: LocalProgram, numbers: tuple[int, ...], home: HeldPlaces) -> None:
        moves = [each for each in [program.instructions[n] for n in numbers] if isinstance(each, ShardMove)]
        values = [program.values[number] for number in numbers]
        self.numbers, self.operands = numbers, tuple([move.operand for move in moves])
        self.own = tuple(home.own.items())
        steps, shapes = [move.step for move in moves], [value.shape for value in values]
        self.bucket = Bucket(home.mesh, steps, shapes, values[0].dtype)


class _Begin:
    """An exchange begins."""

    def __init__(self, exchange: _Exchange, ends: tuple[int, ...]) -> None:
        self._exchange, self._ends = exchange, ends

    def run(self, slots: Mapping[int, Slots], under_way: dict[_Exchange, Finishing]) -> None:
        """Begins it."""
        exchange = self._exchange
        operands = [{there: slots[place][number] for place, there in exchange.own} for number in exchange.operands]
        under_way[exchange] = exchange.bucket.begin(operands)
        for held in slots.values():
            for number in self._ends:
                held[number] = _NOTHING


class _Finish:
    """An exchange is waited for."""

    def __init__(self, exchange: _Exchange) -> None:
        self._exchange = exchange

    def run(self, slots: Mapping[int, Slots], under_way: dict[_Exchange, Finishing]) -> None:
        """Waits for it."""
        exchange = self._exchange
        for number, made in zip(exchange.numbers, under_way.pop(exchange)(), strict=True):
            for place, there in exchange.own:
                slots[place][number] = made[there]


def _last_reads(program: LocalProgram, schedule: Sequence[Step]) -> list[tuple[int, ...]]:
    """By step, the values that no step behind it reads, and that nobody asks for."""
    found: list[tuple[int, ...]] = []
    later = set(program.roots)
    for step in reversed(schedule):
        read = _read_by(program, step)
        found.append(tuple([number for number in read if number not in later]))
        later.update(read)
    return found[::-1]


def _read_by(program: LocalProgram, step: Step) -> Iterable[int]:
    if isinstance(step, Evaluate):
        return step.used
    if isinstance(step, Start):
        moves = [program.instructions[number] for number in step.bucket]
        return dict.fromkeys(move.operand for move in moves if isinstance(move, ShardMove))
    return ()


def _on_each_device(leaf: Leaf) -> Leaf:
    """A number, or a table that a gradient's rule made for all devices alike, as each device has it."""
    if not is_mesh(leaf.structure.device):
        return leaf
    return Leaf(interning.buffer(leaf.shape, leaf.strides, leaf.dtype), leaf.address, leaf.owner, leaf.version)
