"""What loops and branches are: bodies, which operand is what, and how cotangents go back through them."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch

from tessera.doors.cotangents import pulled_back
from tessera.doors.flow.bodies import Body, fitted, layout_of, traced
from tessera.dtypes import int64
from tessera.errors import ArgumentError, DTypeError
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.node import Node, leaf_node
from tessera.lazy.structures.structure import Structure
from tessera.ops.algebra import call, filled, literal
from tessera.ops.flow.records import DTYPES, NAMES, Kind, unpack

_serial = itertools.count()
_known: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
C = TypeVar("C")


def one_for_all(kind: Callable[..., C], *parts: Any) -> C:
    """The control of these parts, made once: programs, and so kernels, are found by its name."""
    key = (kind, *[part.key if isinstance(part, Body) else part for part in parts])
    made = _known.get(key)
    if made is None:
        made = kind(f"{kind.__name__.lower()}{next(_serial)}", *parts)
        made = _known.setdefault(key, made)
    return cast(C, made)


def applied(control: Any, operands: Sequence[Node], length: int) -> list[Tensor]:
    """The results of a control over operands, as expressions. Raises DTypeError for dtypes that no result has."""
    wanted = {dtype for _, dtype in control.kinds(length)}
    for dtype in wanted.difference(DTYPES):
        part = "give its parts: op.real(x), op.imag(x)" if dtype.kind == "complex" else 'cast it: x.to("bf16")'
        raise DTypeError(f"the body of a loop or a branch gives {dtype}", hints=[part])
    packs = {
        dtype: call(name, *operands, control=control, length=length)
        for name, dtype in zip(NAMES, DTYPES, strict=True)
        if dtype in wanted
    }
    return unpack(control, packs, length)


def is_float(structure: Structure) -> bool:
    """Whether cotangents go through a value."""
    return structure.dtype.kind == "float"


def summed_cotangents(
    outputs: Sequence[Tensor], arriving: Sequence[Tensor | None], inputs: Sequence[Tensor]
) -> list[Any]:
    """The cotangents of inputs, for those that arrive at several outputs."""
    found: list[Any] = [None] * len(inputs)
    for output, cotangent in zip(outputs, arriving, strict=True):
        if cotangent is None or output.dtype.kind != "float":
            continue
        parts = pulled_back([output], inputs, [cotangent])
        found = [part if own is None else own + part for own, part in zip(found, parts, strict=True)]
    return [filled(0, each) if own is None else own for own, each in zip(found, inputs, strict=True)]


def _leaves(nodes: Sequence[Tensor]) -> list[Leaf]:
    """The placeholders that a body is traced over."""
    return [node.state[1][0] for node in nodes]


@dataclass(frozen=True, eq=False)
class Scan:
    """A body over `carries` values that go from step to step, and `slices` operands of which each step gets one; the
    body's other operands are the same in all steps. Its first results are the next carried values.
    """

    name: str
    body: Body
    carries: int
    slices: int
    reverse: bool

    def kinds(self, length: int) -> list[Kind]:
        """The last carried values, and each step's other results, one after the other."""
        own = self.body.kinds
        return own[: self.carries] + [((length, *shape), dtype) for shape, dtype in own[self.carries :]]

    def flops(self, length: int) -> int:
        """Those of a step, times their number."""
        return length * self.body.flops

    def _steps(self, length: int) -> Sequence[int]:
        return range(length - 1, -1, -1) if self.reverse else range(length)

    def run(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor], length: int) -> None:
        """Runs the body's plan for each step."""
        self._run(self.body, operands, results, length)

    def _run(
        self, body: Callable[..., list[torch.Tensor]], operands: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor], length: int,
    ) -> None:  # fmt: skip
        layouts, first = self.body.structures, self.carries
        carried = [fitted(layout, each) for layout, each in zip(layouts, operands[:first], strict=False)]
        slices = [each.contiguous().unbind(0) for each in operands[first : first + self.slices]]
        last = first + self.slices
        same = [fitted(layout, each) for layout, each in zip(layouts[last:], operands[last:], strict=True)]
        stacked = [each.unbind(0) for each in results[first:]]
        for step in self._steps(length):
            values = body([*carried, *[each[step] for each in slices], *same])
            carried = [fitted(layout, each) for layout, each in zip(layouts, values[:first], strict=False)]
            for into, value in zip(stacked, values[first:], strict=True):
                into[step].copy_(value)
        for result, value in zip(results, carried, strict=False):
            result.copy_(value)

    def reference(self, operands: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
        """The same by the operators' references."""
        wide = [
            torch.empty(shape, dtype=torch.float64 if dtype.kind == "float" else dtype.torch, device="cpu")
            for shape, dtype in self.kinds(length)
        ]
        self._run(self.body.reference, operands, wide, length)
        return wide

    def pull_back(self, operands: Sequence[Tensor], cotangents: Sequence[Tensor | None], length: int) -> list[Any]:
        """A scan that keeps what was carried, and one the other way round that carries cotangents."""
        first, last = self.carries, self.carries + self.slices
        layouts = self.body.structures
        floats = [number for number, layout in enumerate(layouts) if is_float(layout)]
        carried, same = [n for n in floats if n < first], [n for n in floats if n >= last]
        kinds = self.kinds(length)
        arriving: list[Any] = [
            call("broadcast_to", literal(0, dtype), shape=shape) if given is None and dtype.kind == "float" else given
            for given, (shape, dtype) in zip(cotangents, kinds, strict=True)
        ]
        stacked = [n for n in range(first, len(kinds)) if kinds[n][1].kind == "float"]

        def keeping(*values: Tensor) -> tuple[Tensor, ...]:
            results = self.body.nodes(_leaves(values))
            return (*results[:first], *values[:first])

        kept = one_for_all(Scan, traced(keeping, layouts, [])[0], first, self.slices, self.reverse)
        history = applied(kept, operands, length)[first:]  # it makes nothing that could be captured
        count = len(carried) + len(same)

        def backwards(*values: Tensor) -> tuple[Tensor, ...]:
            sums, rest = values[:count], list(values[count:])
            before, parts, above = rest[:first], rest[first:last], rest[last : last + len(stacked)]
            inputs = [*before, *parts, *rest[last + len(stacked) :]]
            outputs = self.body.nodes(_leaves(inputs))
            given: list[Tensor | None] = [None] * len(outputs)
            for number, cotangent in zip((*carried, *stacked), (*sums[: len(carried)], *above), strict=True):
                given[number] = cotangent
            found = dict(zip(floats, summed_cotangents(outputs, given, [inputs[n] for n in floats]), strict=True))
            added = [own + found[n] for own, n in zip(sums[len(carried) :], same, strict=True)]
            return (*[found[n] for n in carried], *added, *[found[n] for n in floats if first <= n < last])

        begun = [*[arriving[n] for n in carried], *[filled(0, operands[n]) for n in same]]
        sliced = [*history, *operands[first:last], *[arriving[n] for n in stacked]]
        structures = [
            *[layout_of(each) for each in begun],
            *[layout_of(each, each.shape[1:]) for each in sliced],
            *layouts[last:],
        ]
        captured: list[Leaf] = []  # tensors that rules of gradients make, such as masks
        body, _ = traced(backwards, structures, captured)
        back = one_for_all(Scan, body, count, len(sliced), not self.reverse)
        results = applied(
            back, [*begun, *sliced, *operands[last:], *[cast(Tensor, leaf_node(leaf)) for leaf in captured]], length
        )
        found = dict(zip((*carried, *same, *[n for n in floats if first <= n < last]), results, strict=True))
        return [found.get(number) for number in range(len(operands))]


@dataclass(frozen=True, eq=False)
class While:
    """A body that is run as long as a condition holds, over carried values; both may use operands that stay the same.
    The last result is the number of steps.
    """

    name: str
    condition: Body
    body: Body
    carries: int

    def kinds(self, length: int) -> list[Kind]:
        """The last carried values, and the number of steps."""
        return [*self.body.kinds, ((), int64)]

    def flops(self, length: int) -> int:
        """Unknown: those of one step."""
        return self.body.flops + self.condition.flops

    def run(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor], length: int) -> None:
        """Runs the plans of condition and body in turn."""
        self._run(self.condition, self.body, operands, results)

    def _run(
        self, condition: Callable[..., list[torch.Tensor]], body: Callable[..., list[torch.Tensor]],
        operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor],
    ) -> None:  # fmt: skip
        layouts = self.body.structures
        values = [fitted(layout, each) for layout, each in zip(layouts, operands, strict=True)]
        carried, same = values[: self.carries], values[self.carries :]
        steps = 0
        while condition([*carried, *same])[0].item():
            given = body([*carried, *same])
            carried = [fitted(layout, each) for layout, each in zip(layouts, given, strict=False)]
            steps += 1
        for result, value in zip(results, carried, strict=False):
            result.copy_(value)
        results[-1].fill_(steps)

    def reference(self, operands: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
        """The same by the operators' references."""
        wide = [
            torch.empty(shape, dtype=torch.float64 if dtype.kind == "float" else dtype.torch, device="cpu")
            for shape, dtype in self.kinds(length)
        ]
        self._run(self.condition.reference, self.body.reference, operands, wide)
        return wide

    def pull_back(self, operands: Sequence[Tensor], cotangents: Sequence[Tensor | None], length: int) -> list[Any]:
        """That of a scan of as many steps, which are counted: this evaluates the loop."""
        steps = int(applied(self, operands, length)[-1])
        scan = one_for_all(Scan, self.body, self.carries, 0, False)
        return scan.pull_back(operands, cotangents[:-1], steps)


@dataclass(frozen=True, eq=False)
class Cond:
    """Two bodies over the same operands, which follow a bool that says which one is run."""

    name: str
    if_true: Body
    if_false: Body

    def kinds(self, length: int) -> list[Kind]:
        """The results of either."""
        return self.if_true.kinds

    def flops(self, length: int) -> int:
        """Those of the dearer one."""
        return max(self.if_true.flops, self.if_false.flops)

    def run(self, operands: Sequence[torch.Tensor], results: Sequence[torch.Tensor], length: int) -> None:
        """Runs one body's plan."""
        body = self.if_true if operands[0].item() else self.if_false
        given = [fitted(layout, each) for layout, each in zip(body.structures, operands[1:], strict=True)]
        for result, value in zip(results, body(given), strict=True):
            result.copy_(value)

    def reference(self, operands: Sequence[torch.Tensor], length: int) -> list[torch.Tensor]:
        """The same by the operators' references."""
        return (self.if_true if operands[0].item() else self.if_false).reference(operands[1:])

    def pull_back(self, operands: Sequence[Tensor], cotangents: Sequence[Tensor | None], length: int) -> list[Any]:
        """A branch with the same condition: the gradient of either body."""
        layouts = self.if_true.structures
        floats = [number for number, layout in enumerate(layouts) if is_float(layout)]
        given = [number for number, each in enumerate(cotangents) if each is not None]
        arriving = [cast(Tensor, cotangents[number]) for number in given]

        def backwards(body: Body) -> Callable[..., tuple[Tensor, ...]]:
            def function(*values: Tensor) -> tuple[Tensor, ...]:
                inputs = values[: len(layouts)]
                outputs = body.nodes(_leaves(inputs))
                wanted: list[Tensor | None] = [None] * len(outputs)
                for number, cotangent in zip(given, values[len(layouts) :], strict=True):
                    wanted[number] = cotangent
                return tuple(summed_cotangents(outputs, wanted, [inputs[number] for number in floats]))

            return function

        structures = [*layouts, *[layout_of(each) for each in arriving]]
        captured: list[Leaf] = []
        traces = [traced(backwards(body), structures, captured)[0] for body in (self.if_true, self.if_false)]
        whole = [*structures, *[leaf.structure for leaf in captured]]
        bodies = [body.over(whole) for body in traces]
        results = applied(
            one_for_all(Cond, *bodies), [*operands, *arriving, *[cast(Tensor, leaf_node(leaf)) for leaf in captured]], 0
        )
        found = dict(zip(floats, results, strict=True))
        return [None, *[found.get(number) for number in range(len(layouts))]]


def refuse_other_kinds(what: str, given: Sequence[Kind], wanted: Sequence[Kind]) -> None:
    """Raises ArgumentError where values are not of the shapes and dtypes that they have to be of."""
    for number, (own, other) in enumerate(zip(given, wanted, strict=False)):
        if own != other:
            raise ArgumentError(
                f"{what}: value {number} is {own[0]} {own[1]}, and has to be {other[0]} {other[1]}",
                hints=["cast or reshape it: kernels are compiled once for all steps"],
            )
    if len(given) != len(wanted):
        raise ArgumentError(f"{what}: {len(given)} values, and there have to be {len(wanted)}")
