"""What is computed beside exchanges, in pieces: while one is computed, the one before it travels.

A product whose sum is formed over devices is computed piece by piece along a dimension that the sum does not scatter,
and each piece is sent as it is done. What is exchanged so that another dimension is split, a transform for one, is
computed along a third dimension so, or along the one that is split before. A product of what is gathered first is
computed of the piece that has come while the next one travels. Pieces are cut where every device has as much of each;
what cannot be cut so stays whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Literal, NamedTuple, TypeAlias

from tessera.lazy.layouts import Shape
from tessera.scheduling.language.knobs import Knob
from tessera.sharding.partitioning.program import (
    Chunk,
    Compute,
    FromParts,
    Joined,
    LocalProgram,
    Regard,
    ShardedValue,
    ShardMove,
    operands_of,
)
from tessera.sharding.partitioning.rules import ShardingRule, rule_of, with_result

ChunkCount: TypeAlias = int | Literal["auto", "tune"]
"""In how many pieces, or who says it: the model of programs, or the times of calls."""

CHUNK: Final = Knob(
    "chunk", (1, 2, 4, 8), "pieces of a product beside an exchange: piece n + 1 is read, n computed, n - 1 sent"
)


class _SentCut(NamedTuple):
    """What is computed in pieces before it is sent, and by number the dimension of each operand that is cut; `dim` is
    that of the result. What arrives holds in each of `blocks` the parts of all pieces.
    """

    made: int
    dim: int
    cut: dict[int, int]
    blocks: int


class _GatherCut(NamedTuple):
    """A gather whose result one product reads as its operand `place`; `dim` is the product's dimension that holds what
    is gathered.
    """

    move: int
    place: int
    dim: int


def chunked(program: LocalProgram, count: int) -> LocalProgram:
    """The program with products beside exchanges in so many pieces; itself where there are none."""
    return program if count == 1 else _Chunking(program, count).run()


def choices_of(program: LocalProgram) -> tuple[int, ...]:
    """The choices of the knob that a program can take: 1, and those that cut some product."""
    return tuple(count for count in _counts() if count == 1 or chunked(program, count) is not program)


def _counts() -> Iterator[int]:
    for choice in CHUNK.choices:
        assert isinstance(choice, int)
        yield choice


class _Chunking:
    """Writes one program anew."""

    def __init__(self, program: LocalProgram, count: int) -> None:
        self._old, self._count = program, count
        self._new = LocalProgram(program.mesh)
        self._numbers: dict[int, int] = {}
        self._uses = [0] * len(program.instructions)
        for instruction in program.instructions:
            for operand in operands_of(instruction):
                self._uses[operand] += 1
        for root in program.roots:
            self._uses[root] += 1

    def run(self) -> LocalProgram:
        """The program."""
        sent: dict[int, _SentCut] = {}
        gathers: dict[int, _GatherCut] = {}
        for number in range(len(self._old.instructions)):
            if (cut := self._sent_cut(number)) is not None:
                sent[number] = cut
        taken = {cut.made for cut in sent.values()}
        for number in range(len(self._old.instructions)):
            if number not in taken and (gather := self._gather_cut(number)) is not None:
                gathers[number] = gather
        left_out = taken | {gather.move for gather in gathers.values()}
        for number in range(len(self._old.instructions)):
            if number in sent:
                self._numbers[number] = self._sent(number, sent[number])
            elif number in gathers:
                self._numbers[number] = self._gathered(number, gathers[number])
            elif number not in left_out:
                self._numbers[number] = self._copied(number)
        self._new.roots = tuple(self._numbers[root] for root in self._old.roots)
        return self._new if sent or gathers else self._old

    def _copied(self, number: int) -> int:
        instruction = self._old.instructions[number]
        if isinstance(instruction, Compute | FromParts):
            instruction = replace(instruction, operands=tuple(self._numbers[each] for each in instruction.operands))
        elif isinstance(instruction, ShardMove | Regard):
            instruction = replace(instruction, operand=self._numbers[instruction.operand])
        return self._new.add(instruction, self._old.values[number])

    # -- what is computed, then sent ------------------------------------------------------------------------------

    def _sent_cut(self, number: int) -> _SentCut | None:
        move = self._old.instructions[number]
        if not isinstance(move, ShardMove) or move.step.kind not in ("AllReduce", "ReduceScatter", "AllToAll"):
            return None
        exchanged = move.step.kind == "AllToAll"
        made = self._exchanged(move.operand) if exchanged else self._product(move.operand)
        rule = None if made is None or self._uses[move.operand] > 1 else self._rule(move.operand, made)
        if made is None or rule is None:
            return None
        value = self._old.values[move.operand]
        scattered = move.step.dim if move.step.kind != "AllReduce" else None
        last = move.step.before if exchanged else None  # where arrives what has to be put in order
        for dim in sorted(range(len(value.shape)), key=lambda dim: dim == last):
            axis = rule.result[dim]
            if axis is None or dim == scattered:
                continue
            cut = self._cut(made, rule, axis, value.shape[dim])
            pieces = [(move.operand, dim), *((made.operands[n], d) for n, d in (cut or {}).items())]
            if cut and all(self._is_even(each, where) for each, where in pieces):
                blocks = move.step.source.mesh.size(move.step.axis) if dim == last else 1
                return _SentCut(move.operand, dim, cut, blocks)
        return None

    def _sent(self, number: int, cut: _SentCut) -> int:
        move, whole = self._old.instructions[number], self._old.instructions[cut.made]
        assert isinstance(move, ShardMove)
        assert isinstance(whole, Compute)
        pieces = []
        for index in range(self._count):
            operands = [
                self._piece(self._numbers[each], cut.cut[place], index) if place in cut.cut else self._numbers[each]
                for place, each in enumerate(whole.operands)
            ]
            value = self._smaller(cut.made, cut.dim)
            attributes = with_result(whole.operator, whole.attributes, self._old.values[cut.made].shape, value.shape)
            made = self._new.add(replace(whole, operands=tuple(operands), attributes=attributes), value)
            pieces.append(self._moved(move, made, self._smaller(number, cut.dim)))
        return self._joined(number, pieces, cut.dim, cut.blocks)

    # -- a gather, then a product ---------------------------------------------------------------------------------

    def _gather_cut(self, number: int) -> _GatherCut | None:
        product = self._product(number)
        rule = None if product is None else self._rule(number, product)
        if product is None or rule is None:
            return None
        for place, operand in enumerate(product.operands):
            move = self._old.instructions[operand]
            if not isinstance(move, ShardMove) or move.step.kind != "AllGather" or self._uses[operand] > 1:
                continue
            axis = rule.operands[place][move.step.dim]
            held = [n for n, dims in enumerate(rule.operands) if axis in dims]
            if axis is None or axis not in rule.result or held != [place] or product.operands.count(operand) > 1:
                continue
            dim = rule.result.index(axis)
            is_plain = self._old.values[operand].shape[move.step.dim] == self._old.values[number].shape[dim]
            if is_plain and self._is_even(move.operand, move.step.dim) and self._is_even(number, dim):
                return _GatherCut(operand, place, dim)
        return None

    def _gathered(self, number: int, gather: _GatherCut) -> int:
        move, product = self._old.instructions[gather.move], self._old.instructions[number]
        assert isinstance(move, ShardMove)
        assert isinstance(product, Compute)
        pieces = []
        for index in range(self._count):
            own = self._piece(self._numbers[move.operand], move.step.dim, index)
            whole = self._moved(move, own, self._smaller(gather.move, move.step.dim))
            operands = [
                whole if place == gather.place else self._numbers[each] for place, each in enumerate(product.operands)
            ]
            made = replace(product, operands=tuple(operands))
            pieces.append(self._new.add(made, self._smaller(number, gather.dim)))
        return self._joined(number, pieces, gather.dim, move.step.source.mesh.size(move.step.axis))

    # -- parts ----------------------------------------------------------------------------------------------------

    def _product(self, number: int) -> Compute | None:
        instruction = self._old.instructions[number]
        is_product = isinstance(instruction, Compute) and instruction.operator.kind.is_product
        return instruction if is_product and isinstance(instruction, Compute) else None

    def _exchanged(self, number: int) -> Compute | None:
        """What is computed before an exchange, where that is more than to move elements."""
        instruction = self._old.instructions[number]
        is_computed = isinstance(instruction, Compute) and not instruction.operator.kind.is_move
        return instruction if is_computed and isinstance(instruction, Compute) else None

    def _rule(self, number: int, product: Compute) -> ShardingRule | None:
        values = [self._old.values[each] for each in product.operands]
        shapes, dtypes = tuple(value.shape for value in values), tuple(value.dtype for value in values)
        return rule_of(product.operator, product.attributes, shapes, dtypes, self._old.values[number].shape)

    def _cut(self, product: Compute, rule: ShardingRule, axis: str, extent: int) -> dict[int, int] | None:
        """The dimension of each operand, by place, that holds an axis of the result; None where one is not plain."""
        found: dict[int, int] = {}
        for place, dims in enumerate(rule.operands):
            if axis not in dims:
                continue
            found[place] = dims.index(axis)
            if self._old.values[product.operands[place]].shape[found[place]] != extent:
                return None
        return found

    def _is_even(self, number: int, dim: int) -> bool:
        value = self._old.values[number]
        parts = self._count
        for axis in value.layout.dims[dim]:
            parts *= value.layout.mesh.size(axis)
        return value.shape[dim] > 0 and value.shape[dim] % parts == 0

    def _smaller(self, number: int, dim: int) -> ShardedValue:
        """A piece of a value."""
        value = self._old.values[number]
        return replace(value, shape=_divided(value.shape, dim, self._count))

    def _piece(self, number: int, dim: int, index: int) -> int:
        value = self._new.values[number]
        smaller = replace(value, shape=_divided(value.shape, dim, self._count))
        return self._new.add(Chunk(number, dim, index, self._count), smaller)

    def _moved(self, move: ShardMove, operand: int, value: ShardedValue) -> int:
        step = replace(move.step, nbytes=move.step.nbytes // self._count)
        return self._new.add(replace(move, step=step, operand=operand, is_piece=True), value)

    def _joined(self, number: int, pieces: Sequence[int], dim: int, blocks: int) -> int:
        return self._new.add(Joined(tuple(pieces), dim, blocks), self._old.values[number])


def _divided(shape: Shape, dim: int, count: int) -> Shape:
    return tuple(extent // count if each == dim else extent for each, extent in enumerate(shape))
