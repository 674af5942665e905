"""The order in which a device computes a local program and exchanges with others: what is sent early, what waits late.

Exchanges begin as soon as their operands are there, those that need least first, and are waited for where something
reads what they give; what does not depend on them is computed meanwhile. Every stop between kernels keeps some of them
from being one, so there is one only where enough is computed on each side of it. Small sums travel together, in
buckets: so do the gradients of a step, in the order in which the backward pass makes them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from tessera.ops.counting import flops_of
from tessera.ops.record import Shaped
from tessera.sharding.partitioning.chunking import ChunkCount
from tessera.sharding.partitioning.program import (
    Compute,
    Literal,
    LocalProgram,
    Read,
    ShardMove,
    is_exchange,
    operands_of,
    shard_bytes,
)
from tessera.sharding.partitioning.redistribution import START_BYTES

WORTH_FLOPS: Final = 1 << 20
"""Operations that are worth a stop: some ten microseconds, which a few kernels more cost."""

BUCKET_BYTES: Final = 20 * START_BYTES
"""What sums are put together up to: starting then takes a twentieth of the time of sending."""

FIRST_PART: Final = 4
"""The first bucket is so much smaller: until it is sent, nothing is."""


@dataclass(frozen=True)
class Evaluate:
    """Values by number. `members` are computed here, of `used` ones that are there; `wanted` are those of them that are
    read elsewhere.
    """

    members: tuple[int, ...]
    used: tuple[int, ...]
    wanted: tuple[int, ...]


@dataclass(frozen=True)
class Start:
    """Exchanges that begin here, as one where they are several."""

    bucket: tuple[int, ...]


@dataclass(frozen=True)
class Wait:
    """Exchanges, begun as one, whose results have to be there from here on: of this program, or of one before it, of
    which these are leaves.
    """

    bucket: tuple[int, ...]


@dataclass(frozen=True)
class Leave:
    """Everything has begun: whoever reads what the steps behind this one make takes them."""


Step: TypeAlias = Evaluate | Start | Wait | Leave


@dataclass(frozen=True)
class OverlapLimits:
    """What is worth a stop, how large buckets are, and in how many pieces (`chunk`) products beside exchanges are
    computed: "auto" has the model of programs say it, "tune" the times of calls. Without `overlap` every exchange is
    waited for at once; with `leaves` what the results of a program alone need is waited for by those who read them.
    """

    overlap: bool = True
    chunk: ChunkCount = 1
    worth_flops: float = WORTH_FLOPS
    bucket_bytes: int = BUCKET_BYTES
    leaves: bool = False


USUAL: Final = OverlapLimits()


def schedule_of(program: LocalProgram, limits: OverlapLimits, late: Mapping[int, int] | None = None) -> list[Step]:
    """The steps of a program; the same on every device. `late` leaves, by number, are results that programs before it
    may still wait for: in which order, those of one number together. When exchanges begin does not hang on them.
    """
    return _Schedule(program, limits, late or {}).run()


def told(program: LocalProgram, steps: Sequence[Step]) -> Iterator[str]:
    """The steps as text, a line for each."""
    for step in steps:
        if isinstance(step, Leave):
            yield "here the program ends; who first reads a result does what it hangs on:"
        elif isinstance(step, Evaluate):
            yield f"compute {_names(step.wanted)}"
        else:
            first = program.instructions[step.bucket[0]]
            what = f"{first.step} of " if isinstance(first, ShardMove) else "results of programs before: "
            yield f"{'begin' if isinstance(step, Start) else 'wait for'} {what}{_names(step.bucket)}"


def _names(numbers: Sequence[int]) -> str:
    return ", ".join(f"%{number}" for number in numbers)


class _Schedule:
    """Makes one schedule. Sets of values are integers with a bit for each."""

    def __init__(self, program: LocalProgram, limits: OverlapLimits, late: Mapping[int, int]) -> None:
        self._program, self._limits = program, limits
        self._below: list[int] = []
        """Of each value, what it is made of, itself included."""
        for number, instruction in enumerate(program.instructions):
            below = 1 << number
            for operand in operands_of(instruction):
                below |= self._below[operand]
            self._below.append(below)
        self._needed = 0
        for root in program.roots:
            self._needed |= self._below[root]
        self._work = [work_of(program, number) for number in range(len(program.instructions))]
        self._read_by = self._readers()
        reads = {n: late.get(n) for n, each in enumerate(program.instructions) if isinstance(each, Read)}
        self._done = _set(n for n, when in reads.items() if when is None)
        self._given = _set(reads) | _set(n for n, each in enumerate(program.instructions) if is_exchange(each))
        """What is not computed here."""
        self._under_way: dict[int, tuple[int, ...]] = {}
        """By exchange that has begun, its bucket; in the order of beginning."""
        for when in sorted({when for when in reads.values() if when is not None}):
            bucket = tuple([n for n, each in reads.items() if each == when and self._needed >> n & 1])
            self._under_way |= dict.fromkeys(bucket, bucket)
        self._steps: list[Step] = []

    def run(self) -> list[Step]:
        """The steps."""
        exchanges = [n for n in _numbers(self._needed) if is_exchange(self._program.instructions[n])]
        # What an exchange depends on takes no more, and comes before it: this is an order in which they can begin.
        exchanges.sort(key=lambda number: (self._work_of(self._below[number]), number))
        for released in self._released(exchanges):
            self._release(released)
        rest = self._needed & ~self._done & ~self._given
        if self._limits.leaves and self._limits.overlap:
            self._leave(rest)
        else:
            self._evaluate(rest)
        for root in self._program.roots:
            self._wait_for(root)
        return self._steps

    def _leave(self, members: int) -> None:
        """Computes what hangs on no exchange that is under way; then comes each of those, and what hangs on it."""
        for number in _numbers(members):  # leaves are there before the program is left
            for each in _numbers(self._below[number] & ~self._done & self._given):
                if not is_exchange(self._program.instructions[each]):
                    self._wait_for(each)
        for root in self._program.roots:
            if not is_exchange(self._program.instructions[root]):
                self._wait_for(root)
        members = self._compute_ready(members)
        self._steps.append(Leave())
        while self._under_way:
            self._wait_for(next(iter(self._under_way)))
            members = self._compute_ready(members)

    def _compute_ready(self, members: int) -> int:
        """Computes those that wait for nothing; gives the rest."""
        awaited = _set(self._under_way)
        ready = _set(number for number in _numbers(members) if not self._below[number] & awaited)
        if ready:
            self._compute(ready)
        return members & ~ready

    def _readers(self) -> list[int]:
        readers = [0] * len(self._program.instructions)
        for number, instruction in enumerate(self._program.instructions):
            if self._needed >> number & 1:
                for operand in operands_of(instruction):
                    readers[operand] |= 1 << number
        return readers

    def _released(self, exchanges: Sequence[int]) -> Iterator[list[int]]:
        """The exchanges in groups that begin together."""
        group: list[int] = []
        made, nbytes, first = 0, 0, True
        for number in exchanges:
            more = self._below[number] & ~made & ~self._done
            limit = self._limits.bucket_bytes // (FIRST_PART if first else 1)
            depends = any(self._below[number] >> each & 1 for each in group)
            enough = nbytes >= limit or self._is_piece(number)
            if group and (depends or not self._limits.overlap or (enough and self._is_worth(more))):
                yield group
                group, nbytes, first = [], 0, False
            group.append(number)
            made |= self._below[number]
            nbytes += shard_bytes(self._program.values[self._operand(number)])
        if group:
            yield group

    def _release(self, group: Sequence[int]) -> None:
        """Begins exchanges, after what they need is computed."""
        wanted = 0
        for number in group:
            wanted |= self._below[self._operand(number)]
        self._evaluate(wanted & ~self._done & ~self._given)
        for number in group:
            self._wait_for(self._operand(number))  # an exchange that reads what another one gives
        buckets: dict[object, list[int]] = {}
        for number in group:
            buckets.setdefault(self._bucket_of(number), []).append(number)
        for bucket in map(tuple, buckets.values()):
            self._steps.append(Start(bucket))
            self._under_way |= dict.fromkeys(bucket, bucket)
            if not self._limits.overlap:
                self._wait_for(bucket[0])

    def _bucket_of(self, number: int) -> object:
        """What exchanges that may travel as one have in common."""
        move = self._move(number)
        value = self._program.values[number]
        step = move.step
        small = shard_bytes(self._program.values[move.operand]) < self._limits.bucket_bytes
        if not small or self._is_piece(number) or step.kind not in ("AllReduce", "ReduceScatter"):
            return number
        return step.kind, step.axis, step.reduction, value.dtype, value.home

    def _evaluate(self, members: int) -> None:
        """Computes values, each as soon as what it depends on is there, and what is worth it before waiting."""
        while members:
            awaited = 0
            for number in _numbers(members):
                awaited |= self._below[number] & _set(self._under_way)
            if not awaited:
                self._compute(members)
                return
            ready = _set(number for number in _numbers(members) if not self._below[number] & awaited)
            if self._is_worth(ready):
                self._compute(ready)
                members &= ~ready
            self._wait_for(next(number for number in self._under_way if awaited >> number & 1))

    def _compute(self, members: int) -> None:
        instructions = self._program.instructions
        # A literal is part of whatever reads it.
        read = {operand for number in _numbers(members) for operand in operands_of(instructions[number])}
        numbers = set(_numbers(members)) | {each for each in read if isinstance(instructions[each], Literal)}
        wanted = tuple(number for number in _numbers(members) if self._is_read_elsewhere(number, members))
        used = tuple(sorted(read - numbers))
        if wanted:
            self._steps.append(Evaluate(tuple(sorted(numbers)), used, wanted))
        self._done |= members

    def _is_read_elsewhere(self, number: int, members: int) -> bool:
        readers = self._read_by[number] & ~members
        if isinstance(self._program.instructions[number], Literal):
            readers &= _set(n for n in _numbers(readers) if is_exchange(self._program.instructions[n]))
        return bool(readers) or number in self._program.roots

    def _wait_for(self, number: int) -> None:
        bucket = self._under_way.get(number)
        if bucket is not None:
            self._steps.append(Wait(bucket))
            for each in bucket:
                del self._under_way[each]
            self._done |= _set(bucket)

    def _is_worth(self, members: int) -> bool:
        return self._work_of(members) >= self._limits.worth_flops

    def _work_of(self, members: int) -> float:
        return sum([self._work[number] for number in _numbers(members)])

    def _is_piece(self, number: int) -> bool:
        return self._move(number).is_piece

    def _move(self, number: int) -> ShardMove:
        move = self._program.instructions[number]
        assert isinstance(move, ShardMove)
        return move

    def _operand(self, number: int) -> int:
        return self._move(number).operand


def _set(numbers: Iterable[int]) -> int:
    found = 0
    for number in numbers:
        found |= 1 << number
    return found


def _numbers(values: int) -> Iterator[int]:
    while values:
        low = values & -values
        yield low.bit_length() - 1
        values ^= low


def work_of(program: LocalProgram, number: int) -> float:
    """The operations of an instruction on one device; of what a part of the mesh computes, that part of them."""
    instruction, value = program.instructions[number], program.values[number]
    if not isinstance(instruction, Compute):
        return 0
    values = [program.values[each] for each in instruction.operands]
    own = share = value.layout.mesh.devices / program.mesh.devices if value.home else 1.0
    for each in (*values, value):
        if size := math.prod(each.shape):
            share = min(share, own * math.prod(each.layout.largest_shape(each.shape)) / size)
    named = dict(zip(instruction.operator.attribute_names, instruction.attributes, strict=True))
    shaped = [Shaped(each.shape, each.dtype) for each in values]
    return share * flops_of(instruction.operator, shaped, Shaped(value.shape, value.dtype), named)
