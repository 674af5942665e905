"""Outputs of a partition: torch tensors made of a plan's results and of the partition's inputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from tessera.integrations.torch.partitions.layouts import Layout
from tessera.lazy.leaves import writes
from tessera.lazy.leaves.export import memory_of
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.structures import interning
from tessera.lazy.structures.structure import Structure


@dataclass(frozen=True)
class Computed:
    """An output that the plan computes, as result `number`. `order` says which of the output's dimensions the result's
    are, None where they are the same.
    """

    number: int
    order: tuple[int, ...] | None
    layout: Layout | None
    """How the output has to lie; None where any strides will do."""
    target: int | None
    """The place of the input whose memory it is written to."""


@dataclass(frozen=True)
class Given:
    """An output that has the elements of input `place`, in memory of its own or of the input `target`."""

    place: int
    layout: Layout
    target: int | None


Finish: TypeAlias = Callable[[Sequence[Any], Sequence[Leaf]], torch.Tensor]


class Outputs:
    """Makes the outputs of a call, of the inputs' values and the plan's results. Thread-safe."""

    def __init__(self, outputs: Sequence[Computed | Given]) -> None:
        self.outputs = tuple(outputs)
        self._known: tuple[tuple[Structure, ...], list[Finish]] | None = None

    def __call__(self, values: Sequence[Any], results: Sequence[Leaf]) -> list[torch.Tensor]:
        """The outputs."""
        found = tuple([leaf.structure for leaf in results])
        known = self._known
        if known is None or known[0] != found:
            known = self._known = (found, self._finishes(results))
        return [finish(values, results) for finish in known[1]]

    def _finishes(self, results: Sequence[Leaf]) -> list[Finish]:
        """How torch tensors are made of the plan's results, which lie the same way in every call."""
        finishes: list[Finish] = []
        owners: set[int] = set()
        for output in self.outputs:
            if isinstance(output, Given):
                finishes.append(_copy(output))
                continue
            leaf = results[output.number]
            if output.target is not None:
                finishes.append(_store(output, output.target))
                continue
            shared = id(leaf.owner) in owners or isinstance(leaf.owner, torch.Tensor)
            owners.add(id(leaf.owner))
            finishes.append(_export(output, leaf.structure, shared))
        return finishes


def _copy(output: Given) -> Finish:
    place, layout, target = output.place, output.layout, output.target
    if target is not None:
        return lambda values, results: values[target].copy_(values[place])
    return lambda values, results: layout.copy_of(values[place])


def _store(output: Computed, target: int) -> Finish:
    """Sees to it that an input has a result's elements, and gives the input."""
    number, order = output.number, output.order

    def finish(values: Sequence[Any], results: Sequence[Leaf]) -> torch.Tensor:
        tensor: torch.Tensor = values[target]
        leaf = results[number]
        if tensor is leaf.owner:  # the plan has written there
            writes.note(tensor)
        else:
            turned = leaf if order is None else leaf.view(_turned_back(leaf.structure, order), leaf.address)
            tensor.copy_(memory_of(turned))
        return tensor

    return finish


def _export(output: Computed, structure: Structure, shared: bool) -> Finish:
    """Makes a tensor over the memory of a result; over memory of its own where the result's is another's, too, or lies
    in another way.
    """
    number, layout = output.number, output.layout
    turned = None if output.order is None else _turned_back(structure, output.order)

    def finish(values: Sequence[Any], results: Sequence[Leaf]) -> torch.Tensor:
        leaf = results[number]
        tensor = memory_of(leaf if turned is None else leaf.view(turned, leaf.address))
        if shared:
            tensor = tensor.clone()
        return tensor if layout is None else layout.fitted(tensor)

    return finish


def turned_structure(structure: Structure, order: Sequence[int]) -> Structure:
    """The structure of memory whose dimensions are taken in another order."""
    shape, strides = (tuple(each[axis] for axis in order) for each in (structure.shape, structure.strides))
    return interning.buffer(shape, strides, structure.dtype)


def _turned_back(structure: Structure, order: Sequence[int]) -> Structure:
    """The structure of a result with dimension `order[d]` where it has dimension d."""
    return turned_structure(structure, [order.index(axis) for axis in range(len(order))])
