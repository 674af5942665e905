"""The inner choice: how each operator of a block is split over the axes of a mesh, at the least sum of seconds.

Per mesh axis an operator splits one of its factors, or none: from that follow the layouts of operands and result, and
which results are sums that are still to be combined. Between operators stands what it costs to go from one layout to
another, forward and, for cotangents, backward.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tessera.errors import ArgumentError
from tessera.sharding.planner.communication import Collective, Numbers, cost
from tessera.sharding.planner.elimination import CostTable, minimise
from tessera.sharding.planner.rates import DeviceRates
from tessera.target.topology import Topology

Codes = NDArray[np.int64]
"""By strategy and mesh axis: 0 whole, d + 1 split along dimension d, rank + 1 a sum to be combined."""


class SplitAxis(NamedTuple):
    """A mesh axis: its devices, and how far apart they are."""

    name: str
    size: int
    stride: int


class BlockOperator(NamedTuple):
    """One operator of a block, by its factors: "m", "k", "n" of a product.

    `operands` and `result` name a factor for each dimension; factors of operands that the result has not are summed
    over. `sources` are the numbers of the operators that make the operands; None is a leaf, a weight where `weights`
    says so. Factors in `whole` are never split. `flops` are of all devices together, forward, `itemsize` the bytes of
    an element.
    """

    name: str
    operands: tuple[tuple[str, ...], ...]
    result: tuple[str, ...]
    sources: tuple[int | None, ...]
    weights: tuple[bool, ...]
    flops: float
    whole: frozenset[str] = frozenset()
    itemsize: float = 2.0


class BlockLayout(NamedTuple):
    """How an operator of a block is split: per mesh axis the factor, "" for none."""

    operator: str
    split: Mapping[str, str]

    def axes(self, factors: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
        """By dimension of a tensor with these factors, the axes of the mesh that split it."""
        return tuple([tuple([axis for axis, split in self.split.items() if split == factor]) for factor in factors])

    def of(self, factors: tuple[str, ...], pending: bool = False) -> str:
        """The layout of a tensor with these factors, as text: "dp, -, tp"; "| sum tp" is still to be combined."""
        dims = ["*".join(axes) or "-" for axes in self.axes(factors)]
        sums = [axis for axis, split in self.split.items() if split and split not in factors] if pending else []
        return ", ".join(dims) + (f" | sum {' '.join(sums)}" if sums else "")


@dataclass(frozen=True)
class LayoutChoice:
    """The least seconds of a block, how each operator is split, and the width of the elimination."""

    seconds: float
    layouts: tuple[BlockLayout, ...]
    width: int


def choose_layouts(
    operators: tuple[BlockOperator, ...],
    extents: Mapping[str, int],
    axes: Sequence[SplitAxis],
    rates: DeviceRates,
    *,
    training: bool = True,
    split_weights: bool = False,
) -> LayoutChoice:
    """The exact best layouts of a block, whose last operators may feed its first ones, as in a stack of equal blocks.

    `split_weights` admits only splits of weights, where memory holds no more than a part of each. A block that was
    planned is not planned again. Raises ArgumentError for an operator whose factors have no extent, or fewer elements
    than the mesh has parts.
    """
    return _choose(operators, tuple(sorted(extents.items())), tuple(axes), rates, training, split_weights)


@lru_cache(maxsize=256)
def _choose(
    operators: tuple[BlockOperator, ...],
    extents: tuple[tuple[str, int], ...],
    axes: tuple[SplitAxis, ...],
    rates: DeviceRates,
    training: bool,
    split_weights: bool,
) -> LayoutChoice:
    known = dict(extents)
    options = [_strategies(operator, known, axes, split_weights) for operator in operators]
    tables = []
    read = {source for operator in operators for source in operator.sources}
    for index, (operator, option) in enumerate(zip(operators, options, strict=True)):
        alone = _alone(operator, option, known, axes, rates, training)
        if index not in read:
            table = _moves(_size(operator, operator.result, known), len(operator.result), axes, rates.topology)
            alone = alone + table[_row(_result(operator, option), len(operator.result))].min(axis=1)
        tables.append(CostTable((index,), alone))
        for place, source in enumerate(operator.sources):
            if source is not None:
                costs = _between(
                    operators[source], options[source], operator, option, place, known, axes, rates, training
                )
                if source == index:
                    tables.append(CostTable((index,), np.diagonal(costs).copy()))
                else:
                    tables.append(CostTable((source, index), costs))
    found = minimise({index: len(option) for index, option in enumerate(options)}, tables)
    layouts = []
    for index, operator in enumerate(operators):
        factors = _factors(operator)
        chosen = options[index][found.values[index]]
        split = {axis.name: factors[code] if code >= 0 else "" for axis, code in zip(axes, chosen, strict=True)}
        layouts.append(BlockLayout(operator.name, split))
    return LayoutChoice(found.cost, tuple(layouts), found.width)


def _factors(operator: BlockOperator) -> tuple[str, ...]:
    return tuple(dict.fromkeys(factor for dims in (operator.result, *operator.operands) for factor in dims))


def _size(operator: BlockOperator, dims: Sequence[str], extents: Mapping[str, int]) -> float:
    """Bytes of one of an operator's tensors."""
    return operator.itemsize * math.prod(extents[factor] for factor in dims)


def _strategies(
    operator: BlockOperator, extents: Mapping[str, int], axes: tuple[SplitAxis, ...], split_weights: bool
) -> Codes:
    """By strategy and axis the number of the factor that is split, -1 for none; no part is empty for all."""
    factors = _factors(operator)
    if missing := [factor for factor in factors if factor not in extents]:
        raise ArgumentError(f"{operator.name}: {', '.join(missing)} have no extent")
    able = [-1, *(number for number, factor in enumerate(factors) if factor not in operator.whole)]
    if split_weights:
        held = [set(dims) for dims, weight in zip(operator.operands, operator.weights, strict=True) if weight]
        inside = [code for code in able if code >= 0 and all(factors[code] in dims for dims in held)]
        able = inside if held and inside else able
    rows = []
    for row in itertools.product(able, repeat=len(axes)):
        parts = [1] * len(factors)
        for code, axis in zip(row, axes, strict=True):
            if code >= 0:
                parts[code] *= axis.size
        if all(part == 1 or extents[factor] >= part for factor, part in zip(factors, parts, strict=True)):
            rows.append(row)
    if not rows:
        raise ArgumentError(f"{operator.name}: no factor has as many elements as the mesh has parts")
    return np.array(rows, np.int64).reshape(len(rows), len(axes))


def _coded(operator: BlockOperator, option: Codes, dims: tuple[str, ...], absent: int) -> Codes:
    """The codes of a tensor's layouts; `absent` where a factor is split that the tensor has not."""
    table = [dims.index(factor) + 1 if factor in dims else absent for factor in _factors(operator)]
    return np.array([*table, 0], np.int64)[option]


def _result(operator: BlockOperator, option: Codes) -> Codes:
    return _coded(operator, option, operator.result, len(operator.result) + 1)


def _row(codes: Codes, rank: int) -> NDArray[np.int64]:
    """The number of a layout among all of a tensor of that rank."""
    return _number(codes, rank + 2)


def _column(codes: Codes, rank: int) -> NDArray[np.int64]:
    """The number of a layout among those without sums."""
    return _number(codes, rank + 1)


def _number(codes: Codes, states: int) -> NDArray[np.int64]:
    found = np.zeros(len(codes), np.int64)
    for column in codes.T:
        found = found * states + column
    return found


def _alone(
    operator: BlockOperator,
    option: Codes,
    extents: Mapping[str, int],
    axes: tuple[SplitAxis, ...],
    rates: DeviceRates,
    training: bool,
) -> Numbers:
    """Seconds of an operator's own work by strategy: arithmetic or memory, and combining the gradients of weights."""
    sizes = np.array([axis.size for axis in axes], float)
    split = np.ones(len(option))
    for number, factor in enumerate(_factors(operator)):
        parts = np.prod(np.where(option == number, sizes, 1.0), axis=1)
        extent = max(extents[factor], 1)
        split *= extent / np.ceil(extent / parts)  # the fullest device decides
    moved = np.zeros(len(option))
    for dims in (*operator.operands, operator.result):
        held = (_coded(operator, option, dims, 0) > 0) * 1.0
        moved += _size(operator, dims, extents) / np.prod(sizes**held, axis=1)
    efficiency = rates.efficiency
    times = np.maximum(
        operator.flops / split / (rates.linear * efficiency.products), moved / (rates.memory_rate * efficiency.memory)
    ) * (3 if training else 1)
    for dims, weight in zip(operator.operands, operator.weights, strict=True):
        if weight and training:
            code = _coded(operator, option, dims, len(dims) + 1)
            whole = np.where(code == len(dims) + 1, 0, code)
            table = _moves(_size(operator, dims, extents), len(dims), axes, rates.topology)
            times = times + table[_row(code, len(dims)), _column(whole, len(dims))] / efficiency.links
    return times


def _between(
    producer: BlockOperator,
    made: Codes,
    consumer: BlockOperator,
    wanted: Codes,
    place: int,
    extents: Mapping[str, int],
    axes: tuple[SplitAxis, ...],
    rates: DeviceRates,
    training: bool,
) -> Numbers:
    """Seconds from a producer's layouts to those that a consumer's operand wants, and back for the cotangent."""
    dims = consumer.operands[place]
    rank = len(dims)
    if rank != len(producer.result):
        raise ArgumentError(f"{producer.name} makes {producer.result}, {consumer.name} reads {dims}")
    table = _moves(_size(producer, dims, extents), rank, axes, rates.topology) / rates.efficiency.links
    result = _result(producer, made)
    total = table[_row(result, rank)[:, None], _column(_coded(consumer, wanted, dims, 0), rank)[None, :]]
    if training:
        cotangent = _row(_coded(consumer, wanted, dims, rank + 1), rank)
        back = _column(np.where(result == rank + 1, 0, result), rank)
        total = total + table[cotangent[None, :], back[:, None]]
    return total


_KINDS: Final[tuple[Collective, ...]] = ("all_reduce", "reduce_scatter", "all_gather", "all_to_all")


@lru_cache(maxsize=64)
def _kinds(rank: int) -> NDArray[np.int64]:
    """By a tensor's states before and after along one mesh axis: 0 where nothing moves, else 1 + the collective."""
    found = np.zeros((rank + 2, rank + 1), np.int64)
    found[rank + 1, 0], found[rank + 1, 1:] = 1, 2
    found[1 : rank + 1, 0], found[1 : rank + 1, 1:] = 3, 4
    found[range(1, rank + 1), range(1, rank + 1)] = 0
    return found


@lru_cache(maxsize=4096)
def _moves(nbytes: float, rank: int, axes: tuple[SplitAxis, ...], topology: Topology) -> Numbers:
    """Seconds from every layout of a tensor to every one without sums, axis by axis.

    While an axis is moved, the tensor is split by those before it as it shall be, and by those after it as it was.
    """
    before = np.indices((rank + 2,) * len(axes)).reshape(len(axes), (rank + 2) ** len(axes))
    after = np.indices((rank + 1,) * len(axes)).reshape(len(axes), (rank + 1) ** len(axes))
    held_before, held_after = (before > 0) & (before <= rank), after > 0
    total = np.zeros((before.shape[1], after.shape[1]))
    for number, axis in enumerate(axes):
        others = [other for other in range(len(axes)) if other != number]
        # The tensor's part on a device, by which of the other axes split it: a bit for each.
        parts = [
            math.prod(axes[other].size for bit, other in enumerate(others) if subset >> bit & 1)
            for subset in range(1 << len(others))
        ]
        costs = np.array([[0.0, *_seconds_of(nbytes / part, axis, topology)] for part in parts])
        first = sum((held_before[other] << bit for bit, other in enumerate(others) if other > number), np.int64(0))
        last = sum((held_after[other] << bit for bit, other in enumerate(others) if other < number), np.int64(0))
        subset = np.add.outer(np.broadcast_to(first, before.shape[1]), np.broadcast_to(last, after.shape[1]))
        total += costs[subset, _kinds(rank)[before[number][:, None], after[number][None, :]]]
    return total


def _seconds_of(nbytes: float, axis: SplitAxis, topology: Topology) -> list[float]:
    """Seconds of each of `_KINDS` over an axis."""
    return [
        cost(topology, kind, nbytes / (axis.size if kind == "all_to_all" else 1), axis.size, axis.stride).seconds
        for kind in _KINDS
    ]
