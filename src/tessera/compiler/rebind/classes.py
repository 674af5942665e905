"""Classes of sizes: those for which the same kernels are chosen, told apart by the conditions that choosing has met."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tessera.compiler.bind.launches import Choice
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import CpuPlanner
from tessera.compiler.rebind.choices import MadeChoice, chosen_again, is_chosen_alike
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.symbols.functions import holds
from tessera.lazy.symbols.integers import identity

MOST_SIZES = 1 << 10
"""Sizes whose choices are remembered at one time, and values of one by which classes are found."""

MOST_CLASSES = 1 << 7
"""Classes of sizes that are told apart by what is chosen for them."""

FEW_CLASSES = 4
"""Classes that are looked through one by one."""

MOST_IN_VAIN = 1 << 5
"""Attempts at a class that are made in vain."""


class Chosen(NamedTuple):
    """What a decision was for some sizes: the choice, and the code where it is launched."""

    choice: Choice
    code: Any


class AllChosen:
    """What all decisions of a group were for some sizes. Identity is equality."""

    __slots__ = ("each",)

    def __init__(self, each: Sequence[Chosen]) -> None:
        self.each = tuple(each)


class _Class(NamedTuple):
    """Sizes for which the decisions of a group are the same."""

    holds: Callable[..., bool]
    chosen: AllChosen


class DecisionGroup:
    """Decisions over the same extents, as those of a model's layers, that are made again together for other sizes."""

    def __init__(
        self, decisions: Sequence[MadeChoice], launched: Sequence[bool], assumptions: Assumptions, planner: CpuPlanner
    ) -> None:
        """`launched` says of each whether a call is launched as was decided."""
        self._decisions, self._launched = tuple(decisions), tuple(launched)
        self._assumptions, self._planner = assumptions, planner
        self._known: dict[tuple[int, ...], AllChosen | None] = {}
        self._classes: list[_Class] = []
        self._by_size: list[dict[int, list[_Class]]] = [{} for _ in range(assumptions.size_count)]
        """By the value of each size, the classes that sizes with this value were found to be of."""
        self._last: _Class | None = None
        self._in_vain = 0

    def chosen(self, sizes: Sequence[int], compiler: DeviceCompiler, compiles: bool) -> AllChosen | None:
        """What is chosen for sizes; None where what is bound would be another, and unless it `compiles` where a kernel
        is missing. Raises what compiling raises.
        """
        last = self._last
        if last is not None and last.holds(*sizes):
            return last.chosen
        classes = self._classes
        for by, size in zip(self._by_size, sizes):  # noqa: B905 - on the path of binding
            found = by.get(size)
            if found is not None and len(found) < len(classes):
                classes = found
        for each in classes if classes is self._classes else (*classes, *self._classes):
            if each.holds(*sizes):
                self._note(each, sizes)
                return each.chosen
        return self._choose(sizes, compiler, compiles)

    def _note(self, found: _Class, sizes: Sequence[int]) -> None:
        """Has a class of these sizes found sooner next time."""
        self._last = found
        if len(self._classes) <= FEW_CLASSES:
            return
        for by, size in zip(self._by_size, sizes, strict=True):
            if len(by) >= MOST_SIZES:
                by.clear()
            classes = by.setdefault(size, [])
            if found not in classes:
                classes.insert(0, found)

    def _choose(self, sizes: Sequence[int], compiler: DeviceCompiler, compiles: bool) -> AllChosen | None:
        assumptions, key = self._assumptions, tuple(sizes)
        if key in self._known:
            return self._known[key]
        if len(self._known) >= MOST_SIZES:
            self._known.clear()
        chosen: list[Chosen] = []
        for decision, is_launched in zip(self._decisions, self._launched, strict=True):
            choice = chosen_again(decision, compiler, lambda number: assumptions.evaluated(number, sizes), is_launched)
            if choice is None:
                self._known[key] = None
                return None
            if is_launched and not (compiles or self._planner.has_kernel(choice)):
                return None
            chosen.append(Chosen(choice, self._planner.kernel(choice).code if is_launched else None))
        found = self._known[key] = AllChosen(chosen)
        if len(self._classes) < MOST_CLASSES and self._in_vain < MOST_IN_VAIN:
            self._add_class(found, sizes, compiler)
        return found

    def _add_class(self, chosen: AllChosen, sizes: Sequence[int], compiler: DeviceCompiler) -> None:
        """Notes for which other sizes the same is chosen, as far as that can be told."""
        further = self._assumptions.at(sizes)
        made = zip(self._decisions, chosen.each, self._launched, strict=True)
        if not all(is_chosen_alike(each, compiler, known.choice, further, runs) for each, known, runs in made):
            self._in_vain += 1
            return
        if further.is_pinned:
            self._in_vain += 1
            return
        found = _Class(holds(further), chosen)
        self._classes.insert(0, found)
        self._note(found, sizes)


def grouped(decisions: Sequence[MadeChoice]) -> list[list[int]]:
    """The numbers of the decisions that are likely to be the same for whatever sizes, together."""
    groups: dict[object, list[int]] = {}
    for number, each in enumerate(decisions):
        extents = tuple([(name, identity(extent)) for name, extent in each.call.shaped.extents.items()])
        choice = each.choice
        key = (each.call.item.family, each.is_step, each.asked, choice.schedule, choice.workers, extents)
        groups.setdefault(key, []).append(number)
    return list(groups.values())
