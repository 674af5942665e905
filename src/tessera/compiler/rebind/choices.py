"""Choices of kernels while a structure is bound with symbolic sizes: made of the numbers, and made again for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tessera.compiler.bind.arrays import Call, Storage, View
from tessera.compiler.bind.launcher import Launcher
from tessera.compiler.bind.launches import AnyLaunch, Choice, Launch
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.decompose.cases import CallCase, decomposition_of
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.graph.program import KernelItem
from tessera.dtypes import DType
from tessera.lazy.symbols.assumptions import Assumptions
from tessera.lazy.symbols.integers import value_of
from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.language.schedule import Schedule
from tessera.target import Target

Number = Callable[[int], int]
"""Gives the value of a number that may be symbolic."""


class MadeChoice(NamedTuple):
    """A choice that was made for a call, whose numbers may be symbolic, and how."""

    call: Call
    asked: Schedule | None
    is_step: bool
    """Whether a step was given the default schedule of its subject."""
    choice: Choice
    subject: Subject


class ChoosingCompiler:
    """The compiler of a device for binding with symbolic sizes: a `PlanCompiler` that notes its choices, which it makes
    for the values of the sizes without further conditions.
    """

    def __init__(self, inner: DeviceCompiler) -> None:
        self.inner = inner
        self.decisions: list[MadeChoice] = []

    @property
    def device(self) -> str:
        """Where results lie."""
        return self.inner.device

    @property
    def target(self) -> Target:
        """The device that kernels are made for."""
        return self.inner.target

    @property
    def model(self) -> RooflineModel | None:
        """What says what calls cost."""
        return self.inner.model

    @property
    def decided(self) -> dict[object, bool]:
        """What that model has decided."""
        return self.inner.decided

    @property
    def largest_axis(self) -> int:
        """The largest extent that a kernel takes."""
        return self.inner.largest_axis

    def subject(self, call: Call) -> Subject:
        """What a call is on this device."""
        return self.inner.subject(call)

    def over_constants(self, call: Call) -> Call:
        """The call over copies of constants."""
        return self.inner.over_constants(call)

    def choose(self, call: Call, schedule: Schedule | None = None) -> Choice:
        """How a call will run."""
        schedule = None if schedule is None else schedule.settled()
        choice = self.inner.choose(with_numbers(call, value_of), schedule)
        self.decisions.append(MadeChoice(call, schedule, False, choice, self.inner.subject(call)))
        return choice

    def choose_default(self, subject: Subject, call: Call) -> Choice:
        """How one step of a call will run."""
        choice = self.inner.choose_default(subject, with_numbers(call, value_of))
        self.decisions.append(MadeChoice(call, None, True, choice, subject))
        return choice

    def has_chosen(self, launches: Sequence[Launch]) -> bool:
        """Whether each launch is as a choice that was noted."""
        known = {(id(each.call), id(each.choice)) for each in self.decisions}
        return all((id(launch.call), id(launch.choice)) in known for launch in launches)

    def copy_item(self, dtype: DType, shape: Sequence[int]) -> KernelItem:
        """A kernel that copies a tensor."""
        return self.inner.copy_item(dtype, shape)

    def plan(self, launches: Sequence[AnyLaunch], memory: object) -> Any:
        """Nothing runs what has symbolic sizes."""
        raise AssertionError("a plan of symbolic sizes")


def chosen_again(decision: MadeChoice, compiler: DeviceCompiler, number: Number, is_launched: bool) -> Choice | None:
    """The choice for other sizes; None where what is bound would be another because of it. `is_launched`: the call is
    launched as it was chosen.
    """
    call = with_numbers(decision.call, number)
    if decision.is_step:
        choice = compiler.choose_default(decision.subject, call)
    else:
        choice = compiler.choose(call, decision.asked)
    if choice.schedule == decision.choice.schedule and choice.workers == decision.choice.workers:
        return choice
    if not is_launched:
        return None
    if decision.is_step:
        return choice
    case = CallCase(Launcher(compiler, {}), call, (), (), decision.asked, 0)
    case.choice = choice
    return choice if decomposition_of(case, "schedule") is None else None


def is_chosen_alike(
    decision: MadeChoice, compiler: DeviceCompiler, choice: Choice, further: Assumptions, is_launched: bool
) -> bool:
    """Whether this is the choice for all sizes that meet the assumptions under which the decision was made, and
    `further`, which are those for the sizes that it was made for: what sizes have to be for it is noted there. False
    where that is not known.
    """
    call = with_numbers(decision.call, further.rebased)
    if decision.is_step:
        again = compiler.choose_default(decision.subject, call)
    elif compiler.is_settled:
        again = compiler.choose_by_size(call, decision.asked)
    else:
        return False
    if again.schedule != choice.schedule or again.workers != choice.workers:
        return False
    if choice.schedule != decision.choice.schedule or choice.workers != decision.choice.workers:
        case = CallCase(Launcher(compiler, {}), call, (), (), decision.asked, 0)
        case.choice = choice
        return is_launched and decomposition_of(case, "schedule") is None
    return True


def with_numbers(call: Call, number: Number) -> Call:
    """The call with its numbers as `number` gives them."""
    arguments = tuple([(view_with(view, number), tuple(map(number, words))) for view, words in call.arguments])
    shaped = call.shaped
    extents: Mapping[str, int] = {name: number(extent) for name, extent in shaped.extents.items()}
    strides = tuple([tuple(map(number, each)) for each in shaped.strides])
    return Call(call.item, arguments, shaped._replace(extents=extents, strides=strides))


def view_with(view: View, number: Number) -> View:
    """A view with its numbers as `number` gives them, of memory that lies where it does."""
    before = view.storage
    storage = Storage(
        number(before.nbytes),
        before.leaf,
        before.first,
        before.last,
        before.slot,
        number(before.offset),
        frozen=before.frozen,
        derivation=before.derivation,
    )
    shape, strides = tuple(map(number, view.shape)), tuple(map(number, view.strides))
    return view._replace(storage=storage, shape=shape, strides=strides, offset_bytes=number(view.offset_bytes))
