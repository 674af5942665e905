"""Drawing cases: an expression of one to eight operators over all records, on a mesh, its inputs laid out at random;
some end in experts that are pinned to parts of the mesh, or in a long filter.

Inputs are whole numbers, and a value is used again only while it is one and small, so that sums are exact in any order
and every layout has to give the same bits.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from tessera import dist, op
from tessera.dtypes import COMPLEX, DType, bool_, complex128, fp64, int64
from tessera.errors import TesseraError
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.structures.building import apply
from tessera.lazy.structures.structure import Shape
from tessera.ops import OPERATORS, Operator
from tessera.ops.applications.rule import Application, WantedOperand
from tessera.ops.spectral.spelling import LONG
from tests.mesh.layers import Layer, LongFilter, PinnedExperts
from tests.mesh.references import value_of

EXTENTS: Final = (0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 12)
GRIDS: Final[tuple[tuple[int, ...], ...]] = (
    (1,), (2,), (3,), (4,), (5,), (7,), (8,), (2, 2), (3, 2), (2, 3), (4, 2), (2, 4), (1, 2), (2, 1, 2), (2, 2, 2),
)  # fmt: skip
NAMES: Final = ("x", "y", "z")
LARGEST: Final = 2**30
LONG_FILTERS, PINNED, IN_PAGES = 0.04, 0.2, 0.1
"""Shares of graphs that end in one, and of those that end in attention to pages."""
MOST_ELEMENTS: Final = 3000

INEXACT: Final = frozenset({"mean", "max", "min", "prod", "div", "pow"})
"""Operators whose gradients divide: what is computed of them is compared within rounding."""

CHOOSING: Final = frozenset({"max", "min", "maximum", "minimum", "max_pool2d", "cummax_values", "cummin_values"})
"""Operators whose gradients go to the elements that are largest or smallest."""


@dataclass(frozen=True)
class Input:
    """A leaf: its whole, and the axes of the mesh that split each dimension."""

    whole: torch.Tensor
    splits: tuple[tuple[str, ...], ...]

    def spec(self) -> dist.ShardSpec:
        """Its layout as users write it."""
        split = [(dimension, axes) for dimension, axes in enumerate(self.splits) if axes]
        return dist.ShardSpec([dimension for dimension, _ in split], [axes for _, axes in split])


@dataclass(frozen=True)
class Step:
    """An operator over values by number. `splits` is a layout that its result is constrained to."""

    operator: str
    attributes: tuple[Any, ...]
    operands: tuple[int, ...]
    splits: tuple[tuple[str, ...], ...] | None = None


@dataclass
class Case:
    """A mesh, and inputs and steps in an order in which they can be made. `exact` says that all values are whole
    numbers.
    """

    grid: tuple[int, ...]
    entries: list[Input | Step | Layer] = field(default_factory=list)
    exact: bool = True
    rounding: float = 0.0
    """The unit in the last place of the narrowest 16-bit float among the values, of 1; 0 without any."""

    @property
    def inputs(self) -> list[tuple[int, Input]]:
        """The inputs with their numbers."""
        return [(number, entry) for number, entry in enumerate(self.entries) if isinstance(entry, Input)]

    @property
    def steps(self) -> list[tuple[int, Step | Layer]]:
        """The operators and layers with the numbers of their results."""
        return [(number, entry) for number, entry in enumerate(self.entries) if not isinstance(entry, Input)]

    def mesh(self) -> dist.Mesh:
        """The emulated mesh of the case."""
        return dist.Mesh(NAMES[: len(self.grid)], shape=self.grid, backend="emulated")

    def values(self, mesh: dist.Mesh | None) -> list[Any]:
        """The nodes of all values, on a mesh or on this device."""
        nodes: list[Any] = []
        for entry in self.entries:
            if isinstance(entry, Input):
                whole = entry.whole
                nodes.append(op.tensor(whole) if mesh is None else dist.distribute(whole, entry.spec(), mesh))
                continue
            operands = [nodes[place] for place in entry.operands]
            if not isinstance(entry, Step):
                nodes.append(entry.made(operands, mesh))
                continue
            node = apply(OPERATORS[entry.operator], entry.attributes, operands)
            if mesh is not None and entry.splits is not None:
                node = dist.constrain(node, Input(torch.empty(0), entry.splits).spec())
            nodes.append(node)
        return nodes

    def text(self) -> str:
        """The case as lines, for reports."""
        lines = [f"mesh {self.grid}"]
        for number, entry in enumerate(self.entries):
            if isinstance(entry, Input):
                lines.append(f"%{number}: {tuple(entry.whole.shape)} {entry.whole.dtype} {entry.splits}")
            elif isinstance(entry, Step):
                lines.append(f"%{number} = {entry.operator}{entry.operands} {entry.attributes} {entry.splits or ''}")
            else:
                lines.append(f"%{number} = {entry}")
        return "\n".join(lines)


class Drawer:
    """Draws one case."""

    def __init__(self, seed: int, smooth: bool = False) -> None:
        self.chance = random.Random(seed)
        self.layer_chance = random.Random(f"a layer of {seed}")
        self.smooth = smooth
        self.case = Case(self.chance.choice(GRIDS))
        self.found: list[torch.Tensor] = []
        """Of each value, what it is."""
        self.usable: list[int] = []
        self.extents = [self.chance.choice(EXTENTS[1:] if smooth else EXTENTS) for _ in range(3)]

    def draw(self) -> Case:
        """The case."""
        chance = self.chance
        for _ in range(chance.randint(1, 2)):
            self.input(self.shape(), fp64 if self.smooth or chance.random() < 0.8 else int64)
        names = [name for name, record in OPERATORS.items() if record.arity[0] and name not in _NOT_DRAWN]
        wanted = chance.randint(1, 8)
        for _ in range(wanted * 6):
            if len(self.case.steps) >= wanted or not self.usable:
                break
            self.step(OPERATORS[chance.choice(_COMMON if chance.random() < 0.6 else names)])
        self.layer()
        return self.case

    def layer(self) -> None:
        """Now and then experts that are pinned to parts of the mesh, or a long filter, behind all steps."""
        chance, entries = self.layer_chance, self.case.entries
        kind = chance.random()
        if kind < LONG_FILTERS:
            signal = torch.randint(-3, 4, (LONG,), generator=torch.Generator().manual_seed(chance.getrandbits(32)))
            axes = (NAMES[: len(self.case.grid)],)
            entries.append(Input(signal.double(), axes if chance.random() < 0.8 else ((),)))
            self.found.append(signal.double())
            self._append_layer(LongFilter((len(entries) - 1,), chance.choice((1, 2, 3))))
        elif kind < LONG_FILTERS + PINNED and self.case.exact:
            fitting = [n for n in self.usable if self.found[n].dtype == torch.float64 and self.found[n].numel()]
            if fitting:
                at = chance.choice(fitting)
                shape = tuple(self.found[at].shape) or (1,)
                self._append_layer(PinnedExperts.drawn(chance, at, shape, self.case.grid[0]))
        elif kind > 1 - IN_PAGES:
            self.attention_to_pages()

    def attention_to_pages(self) -> None:
        """Queries of sequences against a pool, all split in any way: few operators give values of four dimensions."""
        chance = self.chance
        extents = (1, 2, 4, 3)
        shape = (chance.choice(extents), chance.choice(extents), chance.choice((1, 1, 3)), chance.choice((2, 5, 16)))
        queries = self.input(shape, fp64)
        record = OPERATORS["paged_attention"]
        application = record.apply_to(as_node(self.found[queries]), chance)
        if application is not None and self._fits(application):
            others = [self.operand(wanted) for wanted in application.operands[1:]]
            self._append(record, application, [queries, *others])

    def _append_layer(self, layer: Layer) -> None:
        made = value_of(layer.made([as_node(self.found[n]) for n in layer.operands], None))
        numbers = torch.view_as_real(made) if made.is_complex() else made
        whole = bool(((numbers == numbers.round()) & (numbers.abs() < LARGEST)).all())
        if not whole and isinstance(layer, PinnedExperts):
            return  # whose choices would hang on rounding
        self.case.entries.append(layer)
        self.found.append(made)
        self.case.exact &= whole

    def shape(self) -> Shape:
        """Of the extents of this case, so that values meet."""
        rank = self.chance.choice((0, 1, 2, 2, 2, 3, 3, 4))
        shape = tuple(self.chance.choice((*self.extents, 1)) for _ in range(rank))
        return shape if math.prod(shape) <= MOST_ELEMENTS else shape[:2]

    def splits(self, rank: int) -> tuple[tuple[str, ...], ...]:
        """Each axis of the mesh, in any order, splits one dimension or none."""
        dims: list[tuple[str, ...]] = [()] * rank
        names = list(NAMES[: len(self.case.grid)])
        self.chance.shuffle(names)
        for name in names:
            dimension = self.chance.randint(-1, rank - 1)
            if dimension >= 0:
                dims[dimension] += (name,)
        return tuple(dims)

    def input(self, shape: Shape, dtype: DType, below: int | None = None) -> int:
        """A new input."""
        draw = torch.Generator().manual_seed(self.chance.getrandbits(32))
        low, high = (0, below) if below is not None else (0, 2) if dtype is bool_ else (-3, 4)
        whole = torch.randint(low, max(high, low + 1), shape, generator=draw).to(dtype.torch)
        if dtype in COMPLEX:
            whole = whole + 1j * torch.randint(low, high, shape, generator=draw).to(dtype.torch)
        place = len(self.case.entries)
        self.case.entries.append(Input(whole, self.splits(len(shape))))
        self.found.append(whole)
        if below is None and dtype is not bool_:
            self.usable.append(place)
        return place

    def step(self, record: Operator) -> None:
        """One more operator over a value, if it takes it."""
        at = self.chance.choice(self.usable[-3:] + self.usable)
        value = self.found[at]
        try:
            application = record.apply_to(as_node(value), self.chance)
        except TesseraError:
            return
        if application is None or not self._fits(application):
            return
        operands: list[int] = []
        for wanted in application.operands:
            same = (tuple(wanted.shape), wanted.dtype.torch) == (tuple(value.shape), value.dtype)
            operands.append(at if same and at not in operands else self.operand(wanted))
        self._append(record, application, operands)

    def operand(self, wanted: WantedOperand) -> int:
        """A value of this shape and dtype that is there, else a new input."""
        fitting = [
            n
            for n in self.usable
            if wanted.below is None
            and (tuple(self.found[n].shape), self.found[n].dtype) == (tuple(wanted.shape), wanted.dtype.torch)
        ]
        if fitting and self.chance.random() < 0.5:
            return self.chance.choice(fitting)
        return self.input(tuple(wanted.shape), wanted.dtype, wanted.below)

    def _fits(self, application: Application) -> bool:
        dtypes = {operand.dtype for operand in application.operands}
        if self.smooth and any(d.kind in ("float", "complex") and d not in (fp64, complex128) for d in dtypes):
            return False
        return all(math.prod(operand.shape) <= MOST_ELEMENTS for operand in application.operands)

    def _append(self, record: Operator, application: Application, operands: list[int]) -> None:
        attributes = record.attribute_values(**application.attributes)
        try:
            node = apply(record, attributes, [as_node(self.found[n]) for n in operands])
        except TesseraError:
            return
        if math.prod(node.shape) > MOST_ELEMENTS or (self.smooth and node.dtype.kind not in ("float", "complex")):
            return
        if self.smooth and record.name in CHOOSING and _are_close([self.found[n] for n in operands]):
            return
        made = value_of(node)
        numbers = (torch.view_as_real(made) if made.is_complex() else made).double()
        whole = bool(((numbers == numbers.round()) & (numbers.abs() < LARGEST)).all())
        splits = self.splits(made.dim()) if self.chance.random() < 0.2 else None
        self.case.entries.append(Step(record.name, attributes, tuple(operands), splits))
        self.found.append(made)
        if whole or self.smooth:
            self.usable.append(len(self.found) - 1)
        self.case.exact &= whole
        if made.is_floating_point() and made.element_size() == 2:
            # Parts of a sum are rounded to 16 bits, which whole numbers may need more of.
            self.case.rounding = max(self.case.rounding, torch.finfo(made.dtype).eps)


def _are_close(values: Sequence[torch.Tensor]) -> bool:
    """Whether there are numbers, not whole, that another order of summing may put in another order: whose gradient an
    extreme of them has, rounding decides then.
    """
    flat = torch.cat([value.double().reshape(-1) for value in values]).sort().values
    if bool((flat == flat.round()).all()):
        return False
    return bool((flat.diff() <= 1e-9 * (1 + flat.abs().max())).any())


_NOT_DRAWN: Final = frozenset({"constrain", "across", "shard_map", "to_part", "from_parts", "pin", "checked_index"})
_COMMON: Final = (
    "add", "sub", "mul", "maximum", "neg", "relu", "where", "matmul", "matmul", "gemm", "sum", "sum", "max", "mean",
    "reshape", "reshape", "transpose", "broadcast_to", "slice", "concat", "pad", "cast", "conv2d", "softmax",
    "flash_attention", "flash_attention",
)  # fmt: skip


def drawn(seed: int, smooth: bool = False) -> Case:
    """The case of a seed; a `smooth` one is of floating-point values, whose gradients are asked for."""
    return Drawer(seed, smooth).draw()
