"""Local programs bound to a mesh: a flat walk over launches and exchanges.

What lies between two exchanges is evaluated together; `partitioning/schedule.py` says where exchanges begin and where
they are waited for, the same on every rank. Expressions, groups and communicators are worked out once. A call keeps the
values of each device by number, and lets go of each behind the last step that reads it. Steps behind the place where
the program may be left are put off (`put_off.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, TypeGuard, cast

from tessera.lazy.devices import is_mesh
from tessera.lazy.evaluation import check_versions, evaluate_over
from tessera.lazy.layouts import Coordinates
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.promise import settle
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure
from tessera.sharding.exchange.buckets import Bucket, Finishing
from tessera.sharding.local_expressions import StepExpressions, step_expressions
from tessera.sharding.partitioning.program import Instruction, LocalProgram, Read, ShardMove, coordinates_at
from tessera.sharding.partitioning.schedule import Evaluate, Leave, OverlapLimits, Start, Step, schedule_of
from tessera.sharding.put_off import Rest
from tessera.sharding.tensors.mesh import Mesh
from tessera.sharding.tensors.parts import HeldPlaces, held_places
from tessera.sharding.tensors.shards import Shards, shards_of

Slots: TypeAlias = list[Leaf]
"""By number, the values that are there on a device; what is not there (yet, or any more) nobody reads."""

_NOTHING = cast(Leaf, None)


class BoundProgram:
    """A program in the order of a schedule, on the devices of a mesh that this process holds. `late` has by position
    the leaves that may be waited for when they are first read, and in which order they come. Raises as `mesh.places`
    does.
    """

    def __init__(self, program: LocalProgram, limits: OverlapLimits, mesh: Mesh, late: Mapping[int, int]) -> None:
        self.program, self._mesh = program, mesh
        self._homes = held_places(mesh, dict.fromkeys(value.home for value in program.values))
        self._reads = [
            (number, each.leaf, self._homes[program.values[number].home].own)
            for number, each in enumerate(program.instructions)
            if isinstance(each, Read)
        ]
        reads = {n: late[each.leaf] for n, each in enumerate(program.instructions) if _is_late(each, late)}
        self._late = frozenset(reads)
        limits = replace(limits, leaves=mesh.has_messages)
        self.schedule = schedule_of(program, limits, reads)
        """The steps, as ranks agree on them."""
        bound = list(self._bound(self.schedule))
        left = next((at for at, step in enumerate(bound) if step is None), len(bound))
        self._steps = [step for step in bound[:left] if step is not None]
        self._put_off = [step for step in bound[left:] if step is not None]
        self._there = [_there(root, self._put_off) for root in program.roots]
        """By root, how many of the steps that are put off have to be taken before it is there."""

    def __call__(self, leaves: Sequence[Leaf]) -> tuple[Leaf, ...]:
        """The roots, over leaves of the program's."""
        slots = self._given(leaves)
        under_way: dict[_Exchange, Finishing] = {}
        for step in self._steps:
            step.run(slots, under_way)
        if not self._put_off:
            return tuple([self._result(root, slots) for root in self.program.roots])
        rest = Rest([_PutOff(step, slots, under_way, self._shards) for step in self._put_off])
        roots = zip(self.program.roots, self._there, strict=True)
        return tuple([self._result(root, slots, rest, there) for root, there in roots])

    def _given(self, leaves: Sequence[Leaf]) -> dict[int, Slots]:
        """What devices have before anything is computed: checked, and nobody else's work any more."""
        slots = {place: [_NOTHING] * len(self.program.values) for place in self._mesh.places}
        given: list[Leaf] = []
        for number, position, own in self._reads:
            if not own:
                continue
            leaf = leaves[position]
            if number in self._late:
                for place in own:
                    slots[place][number] = leaf
            elif leaf.structure.layout is not None:
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

    def _shards(self, root: int, slots: Mapping[int, Slots]) -> dict[int, Leaf]:
        home = self._homes[self.program.values[root].home]
        return {there: slots[place][root] for place, there in home.own.items()}

    def _result(self, root: int, slots: Mapping[int, Slots], rest: Rest | None = None, there: int = 0) -> Leaf:
        value = self.program.values[root]
        mesh = self._homes[value.home].mesh
        if rest is None or not there:
            return Shards(mesh, value.shape, value.dtype, value.layout, self._shards(root, slots)).leaf()
        late, later = (rest.number, there), rest.later(root, there)
        return Shards(mesh, value.shape, value.dtype, value.layout, later, late).leaf()

    def _bound(self, schedule: Sequence[Step]) -> Iterator[_BoundStep | None]:
        """The steps of this process's devices; None for the place where the program is left."""
        program, exchanges = self.program, dict[tuple[int, ...], _Exchange]()
        for step, ends in zip(schedule, _last_reads(program, schedule), strict=True):
            if isinstance(step, Evaluate):
                for place in self._mesh.places:
                    yield _Launch(program, step, place, self._mesh.grid.coordinates(place), ends)
                continue
            if isinstance(step, Leave):
                yield None
                continue
            home = self._homes[program.values[step.bucket[0]].home]
            if isinstance(program.instructions[step.bucket[0]], Read):
                yield _Take([(n, self._homes[program.values[n].home].own) for n in step.bucket])
                continue
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
        self._program, self._step, self.place, self._at, self._ends = program, step, place, at, ends
        self._used = tuple([n for n in step.used if coordinates_at(program.values[n].home, at) is not None])
        self.reads, self.makes = self._used, step.wanted
        self._known: dict[tuple[Structure, ...], StepExpressions] = {}

    def run(self, slots: Mapping[int, Slots], _: dict[_Exchange, Finishing]) -> None:
        """Computes."""
        held = slots[self.place]
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

    reads: Sequence[int] = ()

    def __init__(self, exchange: _Exchange) -> None:
        self.exchange = exchange
        self.makes = exchange.numbers

    def run(self, slots: Mapping[int, Slots], under_way: dict[_Exchange, Finishing]) -> None:
        """Waits for it."""
        exchange = self.exchange
        for number, made in zip(exchange.numbers, under_way.pop(exchange)(), strict=True):
            for place, there in exchange.own:
                slots[place][number] = made[there]


class _Take:
    """Results of programs before this one are waited for, of which the slots have the leaves."""

    def __init__(self, numbers: Sequence[tuple[int, Mapping[int, int]]]) -> None:
        self._numbers = numbers

    def run(self, slots: Mapping[int, Slots], _: dict[_Exchange, Finishing]) -> None:
        """Waits for them."""
        taken: list[Leaf] = []
        for number, own in self._numbers:
            for place, there in own.items():
                slots[place][number] = shard = shards_of(slots[place][number]).leaves()[there]
                taken.append(shard)
        check_versions(taken)
        settle(taken)


_BoundStep: TypeAlias = _Launch | _Begin | _Finish | _Take


class _PutOff:
    """A step behind the place where the program is left, of one call."""

    def __init__(
        self,
        step: _BoundStep,
        slots: Mapping[int, Slots],
        under_way: dict[_Exchange, Finishing],
        shards: Callable[[int, Mapping[int, Slots]], Mapping[int, Leaf]],
    ) -> None:
        self._step, self._slots, self._under_way, self._shards = step, slots, under_way, shards

    @property
    def may_wait(self) -> bool:
        """See `PutOffStep`."""
        return not isinstance(self._step, _Finish) or self._step.exchange.bucket.goes_on

    def held(self) -> Sequence[Leaf]:
        """See `PutOffStep`."""
        if not isinstance(self._step, _Launch):
            return ()
        slots = self._slots[self._step.place]
        return [slots[number] for number in self._step.reads if slots[number] is not _NOTHING]

    def take(self) -> None:
        """See `PutOffStep`."""
        self._step.run(self._slots, self._under_way)

    def given(self, root: int) -> Mapping[int, Leaf]:
        """See `PutOffStep`."""
        return self._shards(root, self._slots)


def _there(root: int, steps: Sequence[_BoundStep]) -> int:
    """How many of some steps are taken when a root is there, and no other step reads it, nor what it may be a part of:
    who has it may write to it.
    """
    related: set[int] = set()
    for step in steps:
        if isinstance(step, _Launch | _Finish) and root in step.makes:
            related |= {*step.reads, *step.makes} if isinstance(step, _Launch) else {root}
    touched = [n for n, s in enumerate(steps) if isinstance(s, _Launch | _Finish) and related & {*s.reads, *s.makes}]
    return 1 + touched[-1] if touched else 0


def _is_late(instruction: Instruction, late: Mapping[int, int]) -> TypeGuard[Read]:
    return isinstance(instruction, Read) and instruction.leaf in late


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
    return Leaf(
        interning.buffer(leaf.shape, leaf.strides, leaf.dtype), leaf.address, leaf.owner, leaf.version, leaf.origin
    )
