"""Drawing programs: operators over all records, and patterns of networks, applied to values that are there."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import torch

from tessera.dtypes import COMPLEX, SUPPORTED, DType, dtype_of, fp32, fp64
from tessera.errors import TesseraError
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.node import joined
from tessera.ops import OPERATORS, Operator
from tessera.ops.algebra import call
from tessera.ops.applications.rule import WantedOperand
from tessera.ops.flow.records import NAMES as FLOWS
from tests.fuzz.contents import fill, viewed
from tests.fuzz.motifs import MOTIFS, Motif
from tests.fuzz.oracle import values_of, widened
from tests.fuzz.program import Input, Memory, Program, Shape, harvested

NOT_DRAWN = frozenset(("checked_divisor", *FLOWS))
"""Records whose operands a rule cannot say: divisors without zeros, and bodies of loops, which are functions and drawn
by a pattern (`motifs.looped`)."""

EXTENTS = (1, 2, 2, 3, 5, 7, 8, 12, 16, 17, 31, 33, 64, 65)
"""Ones, primes, borders of vectors and register tiles, and their neighbours."""
LARGEST = 1e5
"""Values beyond it say little: sums over them drown everything else."""
MOST_ELEMENTS = 40_000

Tensor = Any


def drawn() -> list[Operator]:
    """The records that are drawn by themselves: also those that somebody has registered just now."""
    return [record for record in OPERATORS.values() if record.name not in NOT_DRAWN]


class Growth:
    """A program as it grows: all values made so far, any of which may be used again.

    `smooth` growth has only operators with gradients, over fp64.
    """

    def __init__(self, seed: int, smooth: bool = False) -> None:
        self.chance = random.Random(seed)
        self.smooth = smooth
        self.places: list[tuple[int, Memory]] = []
        self.owners: list[torch.Tensor] = []
        self.values: list[Tensor] = []
        chance = self.chance
        floats = sorted((dtype for dtype in SUPPORTED if dtype.kind == "float"), key=lambda dtype: dtype.name)
        self.dtype = fp64 if smooth else chance.choice((fp32, fp32, fp32, fp64, fp64, dtype_of("bf16"), *floats))
        self.special = not smooth and chance.random() < 0.15
        self.extents = [chance.choice(EXTENTS) for _ in range(3)]
        if chance.random() < 0.05:
            self.extents[chance.randrange(3)] = 0
        for _ in range(chance.randint(1, 3)):
            self.values.append(self.fresh(self.shape(), self.dtype if chance.random() < 0.8 else self.other_dtype()))

    # -- choices ------------------------------------------------------------------------------------------------------

    def shape(self) -> Shape:
        """A shape of the program's extents; now and then that of an image."""
        chance = self.chance
        if chance.random() < 0.3:
            c, h, w = chance.choice((1, 3, 4, 8, 16, 17)), chance.randint(1, 12), chance.randint(1, 12)
            return (chance.choice((1, 1, 2)), *chance.choice(((c, h, w), (h, w, c))))
        rank = chance.choice((0, 1, 2, 2, 2, 3, 3, 4))
        shape = tuple(chance.choice((*self.extents, 1) if rank > 1 else self.extents) for _ in range(rank))
        return shape if math.prod(shape) <= MOST_ELEMENTS else shape[-2:]

    def other_dtype(self) -> DType:
        """Any dtype; of smooth growth, fp64."""
        return fp64 if self.smooth else self.chance.choice(sorted(SUPPORTED - COMPLEX, key=lambda dtype: dtype.name))

    def any(self) -> Tensor:
        """A value made so far, the latest ones more often."""
        return self.chance.choice(self.values[-3:] + self.values)

    # -- operands -----------------------------------------------------------------------------------------------------

    def fresh(self, shape: Shape, dtype: DType, below: int | None = None) -> Tensor:
        """A new input, of any layout."""
        chance = self.chance
        values = chance.choice(("special", "unbounded")) if self.special else "ordinary"
        offset, strides, elements = _laid_out(chance, shape)
        memory = Memory(dtype.name, elements, offset, shape, strides, values, below, chance.randrange(1 << 20))
        owner = torch.zeros(elements, dtype=dtype.torch)
        self.owners.append(owner)
        self.places.append((owner.data_ptr() or -len(self.places) - 1, memory))
        constant = not self.smooth and below is None and chance.random() < 0.15
        tensor = viewed(owner, Input(0, offset, shape, strides))
        if constant:
            from tessera import op

            return op.constant(tensor)
        return as_node(tensor)

    def obtain(self, wanted: WantedOperand) -> Tensor:
        """A value of the wanted shape and dtype: one that is there, one brought into that form, or a new one."""
        chance = self.chance
        if wanted.below is not None:
            return self.fresh(wanted.shape, wanted.dtype, wanted.below)
        same = [v for v in self.values if v.shape == wanted.shape and v.dtype is wanted.dtype]
        if same and chance.random() < 0.7:
            return chance.choice(same)
        if chance.random() < 0.75:
            for value in chance.sample(self.values, len(self.values)):
                formed = self.formed(value, wanted)
                if formed is not None:
                    return formed
        return self.fresh(wanted.shape, wanted.dtype)

    def formed(self, value: Tensor, wanted: WantedOperand) -> Tensor | None:
        """A value brought into the wanted form by casts and moves of its elements; None where that takes more."""
        if (value.dtype.kind == "complex") != (wanted.dtype.kind == "complex"):
            return None
        if value.dtype.kind == "float" and wanted.dtype.kind in ("int", "bool"):
            return None
        shape, target = value.shape, wanted.shape
        if math.prod(shape) == math.prod(target) and shape != target:
            value = call("reshape", value, shape=target)
        elif _broadcasts(shape, target):
            value = call("broadcast_to", value, shape=target) if shape != target else value
        elif len(shape) == len(target) and all(own >= due for own, due in zip(shape, target, strict=True)):
            starts = tuple(self.chance.choice((0, own - due)) for own, due in zip(shape, target, strict=True))
            value = call("slice", value, starts=starts, sizes=target, steps=(1,) * len(target))
        else:
            return None
        return value if value.dtype is wanted.dtype else call("cast", value, dtype=wanted.dtype)

    def within(self, values: Sequence[Tensor], wanted: Sequence[WantedOperand | None]) -> list[Tensor]:
        """What the body of a loop makes of its operands: results of the wanted forms, of any form where that is None.
        It may read a value from outside.
        """
        outer, chance = self.values, self.chance
        self.values = [*values, *([self.any()] if chance.random() < 0.3 else [])]
        try:
            for _ in range(chance.randint(1, 6)):
                record = chance.choice(drawn())
                made = self.applied(record)
                if made is not None and math.prod(made.shape) <= MOST_ELEMENTS:
                    self.values.append(made)
            return [self.any() if each is None else self._last_formed(each) for each in wanted]
        finally:
            self.values = outer

    def _last_formed(self, wanted: WantedOperand) -> Tensor:
        """The latest value that has the wanted form, or can be brought into it."""
        for value in reversed(self.values):
            same = value.shape == wanted.shape and value.dtype is wanted.dtype
            formed = value if same else self.formed(value, wanted)
            if formed is not None:
                return call("tanh", formed) if wanted.dtype.kind == "float" and self.chance.random() < 0.6 else formed
        return self.fresh(wanted.shape, wanted.dtype)

    # -- growing ------------------------------------------------------------------------------------------------------

    def grow(self, count: int) -> None:
        """Applies operators and patterns, as long as their results are of use, until there are `count` steps."""
        families: dict[str, list[Operator]] = {}
        for record in drawn():
            families.setdefault(record.family, []).append(record)
        weights = {"elementwise": 5, "layout": 4, "reduction": 3, "row": 2, "library": 2}
        names = sorted(families)
        for _ in range(6 * count):
            before = self.mark()
            if self.chance.random() < 0.3:
                made = self.pattern()
            else:
                family = self.chance.choices(names, [weights.get(name, 1) for name in names])[0]
                made = self.applied(self.chance.choice(families[family]))
            if made is None or not self.keeps(made):
                self.forget(before)
                continue
            self.values.append(made)
            if self.steps() >= count:
                return

    def begin(self, seed: int) -> None:
        """Has three of four programs begin with a pattern, one after the other: so each is among the first few.

        Its inputs are ordinary numbers: most patterns make only NaN of inf and NaN, which is no use.
        """
        fours, place = divmod(seed, 4)
        if place == 3:
            return
        before, special = self.mark(), self.special
        self.special = False
        made = self.pattern(MOTIFS[(3 * fours + place) % len(MOTIFS)])
        self.special = special
        if made is not None and self.keeps(made):
            self.values.append(made)
        else:
            self.forget(before)

    def mark(self) -> tuple[int, int]:
        """What there is now, for `forget`."""
        return len(self.places), len(self.values)

    def forget(self, before: tuple[int, int]) -> None:
        """Takes back what came since a mark: inputs, and values of a pattern with several."""
        places, values = before
        del self.places[places:], self.owners[places:], self.values[values:]

    def steps(self) -> int:
        """How many operators there are so far."""
        return joined(self.values)[0].size

    def pattern(self, motif: Motif | None = None) -> Tensor | None:
        """A pattern of networks, by default any, applied to a value; None where it takes no such value."""
        try:
            return (motif or self.chance.choice(MOTIFS))(self, self.any())
        except TesseraError:
            return None

    def applied(self, record: Operator) -> Tensor | None:
        """An operator applied to a value; None where it takes no such value."""
        value = self.any()
        drawn = record.apply_to(value, self.chance)
        if drawn is None:
            return None
        first = drawn.operands[:1]
        taken = (
            bool(first) and first[0].below is None and (first[0].shape, first[0].dtype) == (value.shape, value.dtype)
        )
        operands = [value if taken and place == 0 else self.obtain(each) for place, each in enumerate(drawn.operands)]
        try:
            return call(record.name, *operands, **drawn.attributes)
        except TesseraError:
            return None

    def keeps(self, made: Tensor) -> bool:
        """Whether a new value is small enough, finite enough, and for smooth growth differentiable."""
        if math.prod(made.shape) > MOST_ELEMENTS or len(made.shape) > 6 or not made.is_pending:
            return False
        program = harvested(joined([made]), self.places)
        if self.smooth and not _smooth(program):
            return False
        try:
            value = values_of(program, self.wide())[program.roots[0]]
        except (RuntimeError, IndexError, TesseraError):
            # Where torch refuses what an operator takes (a reflection wider than the image) there is no oracle.
            return False
        if value.dtype.is_complex:
            value = torch.view_as_real(value)
        if not value.dtype.is_floating_point or not value.numel():
            return True
        finite = value.isfinite()
        share = float(finite.double().mean())
        largest = float(value[finite].abs().max()) if bool(finite.any()) else 0.0
        return share >= (0.5 if self.special else 0.97) and largest <= LARGEST

    def wide(self) -> list[torch.Tensor]:
        """The contents of all memories as the oracle takes them."""
        for owner, (_, memory) in zip(self.owners, self.places, strict=True):
            fill(owner, memory)
        return [widened(owner, dtype_of(each.dtype)) for owner, (_, each) in zip(self.owners, self.places, strict=True)]

    def program(self) -> Program:
        """The program so far. Its results are the values that nothing uses, and now and then some that are used."""
        pending = [value for value in self.values if value.is_pending]
        used = {id(each) for value in pending for each in _operand_structures(value)}
        ends = [value for value in pending if id(value.structure) not in used]
        more = [value for value in pending if id(value.structure) in used and self.chance.random() < 0.15]
        roots = (ends + more)[-6:] or pending[-1:]
        return harvested(joined(roots), self.places)


def _operand_structures(value: Tensor) -> list[Any]:
    return [each.structure for each in value.structure.post_order()[:-1]]


def _smooth(program: Program) -> bool:
    return program.operators.isdisjoint(_ROUGH)


_ROUGH = frozenset("floor ceil round fmod".split())


def _broadcasts(shape: Shape, target: Shape) -> bool:
    if len(shape) > len(target):
        return False
    return all(own in (1, due) for own, due in zip(shape[::-1], target[::-1], strict=False))


def _laid_out(chance: random.Random, shape: Shape) -> tuple[int, Shape, int]:
    """(offset, strides, elements of memory) of a layout: any order of the dimensions, gaps, repeated dimensions, an
    odd start.
    """
    rank = len(shape)
    kind = chance.choice(("plain", "plain", "order", "order", "last", "gaps", "repeated", "offset"))
    order = list(range(rank))
    if kind == "order":
        chance.shuffle(order)
    if kind == "last" and rank == 4:
        order = [0, 2, 3, 1]  # channels last
    gaps = [chance.choice((0, 0, 1, 5)) if kind == "gaps" else 0 for _ in shape]
    step = chance.choice((1, 1, 2)) if kind == "gaps" else 1
    strides = [0] * rank
    for axis in reversed(order):
        if kind == "repeated" and chance.random() < 0.4:
            continue
        strides[axis] = step
        step *= max(shape[axis], 1) + gaps[axis]
    offset = chance.choice((1, 1, 3)) if kind in ("offset", "gaps") else 0
    last = sum((max(extent, 1) - 1) * stride for extent, stride in zip(shape, strides, strict=True))
    return offset, tuple(strides), 0 if 0 in shape else offset + last + 1


def draw(seed: int) -> Program:
    """The program of a seed: 1 to 30 operators."""
    growth = Growth(seed)
    growth.begin(seed)
    growth.grow(growth.chance.choice((1, 2, 3, 4, 6, 8, 12, 16, 24, 30)))
    return growth.program() if growth.steps() else draw(seed + (1 << 32))


def draw_smooth(seed: int) -> Program:
    """The program of a seed whose operators have gradients: 1 to 8 of them, over fp64."""
    growth = Growth(seed, smooth=True)
    growth.begin(seed)
    growth.grow(growth.chance.choice((1, 2, 3, 4, 5, 6, 8)))
    return growth.program() if growth.steps() else draw_smooth(seed + (1 << 32))
