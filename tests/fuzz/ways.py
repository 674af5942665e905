"""The ways to compute a program, all of which must agree: fused and not, at once and one by one, on any threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

import torch

from tessera import numerics, op, settings
from tessera.compiler import pipeline, planning
from tessera.dtypes import dtype_of
from tessera.errors import InputMutatedError
from tessera.handle import Tensor
from tessera.lazy.evaluation import evaluate
from tessera.lazy.leaves.conversion import as_node
from tessera.lazy.structures import interning, symbolic
from tessera.ops import OPERATORS
from tessera.rewrite.passes import graph_passes
from tests.fuzz.contents import placed, viewed
from tests.fuzz.interpreting import NotInterpretedError, interpreted
from tests.fuzz.oracle import Expected, expectations
from tests.fuzz.program import Input, Number, Program, Step, number, stepped
from tests.property.checking import evaluated_together, poison

SMALL = 3_000
"""Elements of all entries up to which the interpreter of Tile IR runs a program."""


class WrongResultError(AssertionError):
    """A way to compute a program gave what is not expected; `way` is its name, if it is one of `WAYS`."""

    def __init__(self, message: str, way: str = "") -> None:
        super().__init__(message)
        self.way = way


def memories_of(program: Program, at_end: bool) -> list[torch.Tensor]:
    """New memories of a program, each between pages without access."""
    return [placed(memory, at_end) for memory in program.memories]


def nodes_of(
    program: Program, memories: Sequence[torch.Tensor] | None = None, each: Callable[[Any], Any] = id
) -> list[Any]:
    """The node of each entry, over memories; `each` is called with every step's node as it is made."""
    given = memories if memories is not None else _empty(program)
    nodes: list[Any] = []
    for entry in program.entries:
        if isinstance(entry, Input):
            tensor = viewed(given[entry.memory], entry)
            nodes.append(op.constant(tensor) if entry.constant else as_node(tensor))
        elif isinstance(entry, Number):
            nodes.append(number(entry))
        else:
            nodes.append(stepped(entry, nodes))
            each(nodes[-1])
    return nodes


def _empty(program: Program) -> list[torch.Tensor]:
    return [torch.zeros(each.elements, dtype=dtype_of(each.dtype).torch) for each in program.memories]


def forget() -> None:
    """Has every plan and every structure made anew: for what was compiled under other conditions."""
    pipeline.forget_plans()
    interning.forget_structures(keep_plans=False)
    symbolic._forms.clear()


@contextmanager
def anew(passes: Callable[[int | None], Any] | None = None, **changes: Any) -> Iterator[None]:
    """Conditions that plans are bound under: other passes over graphs, other settings."""
    forget()
    with settings.override(**changes), patch.object(planning, "graph_passes", passes or graph_passes):
        yield
    forget()


Way: TypeAlias = Callable[[Program, "list[torch.Tensor]"], Mapping[int, torch.Tensor]]
"""Computes a program over memories: the results by entry."""


def _at_once(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """All results in one evaluation, twice: in fresh memory, and in poisoned memory, with the same bits."""
    nodes = nodes_of(program, memories)
    pending = _pending(program)
    if any(OPERATORS[name].family == "library" for name in program.operators):
        # A library's sums may depend on where its operands lie: the bits are not promised.
        evaluate([nodes[root] for root in pending])
        return {root: nodes[root].torch() for root in pending}
    return dict(zip(pending, evaluated_together([nodes[root] for root in pending]), strict=True))


def _pending(program: Program) -> list[int]:
    """The results that are to be computed."""
    return [root for root in program.roots if isinstance(program.entries[root], Step)]


def _each_alone(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Each result in an evaluation of its own, which computes what they share again."""
    results = {}
    for root in _pending(program):
        node = nodes_of(program, memories)[root]
        poison(node.size * node.dtype.itemsize)
        results[root] = node.torch()
    return results


def _one_by_one(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Every operator evaluated before the next one is applied."""
    nodes = nodes_of(program, memories, each=lambda node: node.eval())
    return {root: nodes[root].torch() for root in _pending(program)}


def _every_node(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """The value of every step as a result, all in one evaluation."""
    nodes = nodes_of(program, memories)
    pending = [place for place, entry in enumerate(program.entries) if isinstance(entry, Step)]
    evaluate([nodes[place] for place in pending])
    return {place: nodes[place].torch() for place in pending}


def _unfused(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Every operator a kernel of its own, and nothing recognized."""
    with anew(lambda idioms: graph_passes(1, idioms=0)):
        return _at_once(program, memories)


def _strict(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Under the policy that keeps the arithmetic that was written."""
    with numerics.policy("strict"):
        return _at_once(program, memories)


def _on_threads(count: int) -> Way:
    def way(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
        with anew(threads=count):
            return _at_once(program, memories)

    return way


def _interpreted(program: Program, memories: list[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Every kernel run by the interpreter of Tile IR."""
    with anew(threads=1), suppress(NotInterpretedError), interpreted():
        nodes = nodes_of(program, memories)
        pending = _pending(program)
        evaluate([nodes[root] for root in pending])
        return {root: nodes[root].torch() for root in pending}
    return {}


WAYS: Mapping[str, Way] = {
    "at once": _at_once,
    "each alone": _each_alone,
    "every node": _every_node,
    "one by one": _one_by_one,
    "unfused": _unfused,
    "strict": _strict,
    "one thread": _on_threads(1),
    "three threads": _on_threads(3),
    "interpreted": _interpreted,
}


@dataclass(frozen=True)
class Checked:
    """How much of a program was checked: elements that were judged, of all."""

    judged: int
    elements: int


def check(program: Program, seed: int = 0, ways: Sequence[str] = tuple(WAYS)) -> Checked:
    """Computes a program in several ways, and then after one of its inputs was written to.

    Raises WrongResultError for the first way whose results are not as expected, and what evaluation raises.
    """
    expected = expectations(program, [placed(memory, at_end=True) for memory in program.memories])
    small = sum(each.value.numel() for each in expected) <= SMALL
    for number_of_way, name in enumerate(ways):
        if name != "interpreted" or small:
            memories = memories_of(program, at_end=bool((seed + number_of_way) % 2))
            _compare(name, WAYS[name](program, memories), expected)
    check_writes(program, random.Random(seed), expected)
    judged = sum(int(expected[root].judged.sum()) for root in program.roots)
    return Checked(judged, sum(expected[root].value.numel() for root in program.roots))


def _compare(name: str, results: Mapping[int, torch.Tensor], expected: Sequence[Expected]) -> None:
    for place, result in results.items():
        wrong = expected[place].wrong(result)
        if wrong is not None:
            raise WrongResultError(f"{name}: entry {place}: {wrong}", name if name in WAYS else "")


def check_writes(program: Program, chance: random.Random, expected: Sequence[Expected]) -> None:
    """Writes to a tensor between building a program and evaluating it: it must be refused, but for a constant, whose
    new contents count. Results that exist do not change.

    Raises WrongResultError.
    """
    memories = memories_of(program, at_end=False)
    tensors = {place: viewed(memories[entry.memory], entry) for place, entry in _inputs(program)}
    first = _nodes_over(program, tensors)
    roots = _pending(program)
    used = _used(program, roots)
    written = [place for place, _ in _inputs(program) if place in used and tensors[place].numel()]
    if not written or not roots:
        return
    place = chance.choice(written)
    evaluate([first[root] for root in roots])
    pending = _nodes_over(program, tensors)
    # Held elements of a view that repeats them cannot be written in place; its memory can.
    tensors[place].narrow(0, 0, 1).zero_() if tensors[place].ndim else tensors[place].zero_()
    _compare("after a write to its input, a result that was there", {r: first[r].torch() for r in roots}, expected)
    entry = program.entries[place]
    assert isinstance(entry, Input)
    over = [other for at, other in _inputs(program) if at in used and other.memory == entry.memory]
    constant = all(other.constant for other in over)
    try:
        evaluate([pending[root] for root in roots])
    except InputMutatedError:
        if not constant:
            return
        raise WrongResultError("a constant that was written to was refused") from None
    if not constant:
        raise WrongResultError("an input was written to before the evaluation, which was not refused")
    _compare("after a write to a constant", {r: pending[r].torch() for r in roots}, expectations(program, memories))


def _inputs(program: Program) -> list[tuple[int, Input]]:
    return [(place, entry) for place, entry in enumerate(program.entries) if isinstance(entry, Input)]


def _nodes_over(program: Program, tensors: Mapping[int, torch.Tensor]) -> list[Tensor]:
    nodes: list[Any] = []
    for place, entry in enumerate(program.entries):
        if isinstance(entry, Input):
            nodes.append(op.constant(tensors[place]) if entry.constant else as_node(tensors[place]))
        else:
            nodes.append(number(entry) if isinstance(entry, Number) else stepped(entry, nodes))
    return nodes


def _used(program: Program, roots: Sequence[int]) -> set[int]:
    used = set(roots)
    for place in reversed(range(len(program.entries))):
        entry = program.entries[place]
        if place in used and isinstance(entry, Step):
            used.update(entry.operands)
    return used
