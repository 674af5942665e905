"""The two walks of the gradient of attention on GPUs: one sums for queries, the other one for keys and values.

    dQ, dK, dV   ->   dQ = the walk of keys, for blocks of queries;   dK, dV = the walk of queries, for blocks of keys

Of operands beside the scores those that walk keys alone are summed with keys, others with queries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from xdsl.ir import SSAValue

from tessera.scheduling.families.attention.online_softmax import State
from tessera.scheduling.families.decomposition import Array, DecomposableCall, Decomposition, KernelStep, Steps
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.builder import TileBuilder
from tessera.scheduling.lowering.ranges import Range, rounded_down, rounded_up
from tessera.scheduling.lowering.spec import AttentionGradientSpec, Output, SumsBeside


class GradientPart(NamedTuple):
    """What is summed: for queries, keys or values, along which axis of a head, and where it goes."""

    of: Literal["q", "k", "v"]
    axis: Literal["d", "v"]
    output: Output

    @property
    def held(self) -> Literal["q", "k"]:
        """The side of which a program that sums it up holds a block."""
        return "q" if self.of == "q" else "k"


class PartBeside(NamedTuple):
    """What is summed for an operand beside the scores, and where it goes."""

    sums: SumsBeside
    output: Output

    @property
    def held(self) -> Literal["q", "k"]:
        """As of other parts."""
        return "k" if self.sums.along == "k" else "q"


def sums_of(spec: AttentionGradientSpec) -> list[GradientPart]:
    """What a kernel sums up of a head."""
    known: list[tuple[Literal["q", "k", "v"], Literal["d", "v"], Value]] = [("q", "d", spec.accumulator)]
    known += [("k", "d", spec.keys.accumulator)] if spec.keys is not None else []
    known += [("v", "v", spec.values.accumulator)] if spec.values is not None else []
    stored = {output.value: output for output in spec.outputs}
    return [GradientPart(of, axis, stored[value]) for of, axis, value in known if value in stored]


def sums_beside(spec: AttentionGradientSpec) -> list[PartBeside]:
    """What it sums up for operands beside the scores."""
    stored = {output.value: output for output in spec.outputs}
    return [PartBeside(sums, stored[sums.accumulator]) for sums in spec.beside or () if sums.accumulator in stored]


def all_sums(spec: AttentionGradientSpec) -> list[GradientPart | PartBeside]:
    """Both."""
    return [*sums_of(spec), *sums_beside(spec)]


def walks_of(spec: AttentionGradientSpec) -> set[str]:
    """The sides of which programs hold a block: of a kernel, one."""
    return {part.held for part in all_sums(spec)}


@dataclass(frozen=True)
class QueryRange:
    """The blocks of queries that a block of keys meets: those from `first` on see some of its keys, those from `whole`
    to `floor` all of them, and `tail` is the length of a last block that queries do not fill, if it is none of these.
    """

    first: SSAValue
    whole: SSAValue
    floor: SSAValue
    tail: SSAValue

    @classmethod
    def of(cls, builder: TileBuilder, first: SSAValue | None, keys: int, queries: SSAValue, step: int) -> QueryRange:
        """The range of `keys` keys of which the first one is seen from query `first` on, or from everywhere where that
        is None, in blocks of `step` queries.
        """
        zero, one = builder.index(0), builder.index(1)
        floor = rounded_down(builder, queries, step)
        begin = whole = zero
        if first is not None:
            begin, last = (
                builder.minimum(queries, builder.maximum(zero, builder.add(first, builder.index(reach))))
                for reach in (0, keys - 1)
            )
            begin, whole = rounded_down(builder, begin, step), rounded_up(builder, last, step)
        left = builder.sub(queries, builder.maximum(floor, whole))
        tail = builder.mul(builder.minimum(one, builder.maximum(zero, left)), builder.index(step))
        return cls(begin, whole, floor, tail)

    def within(self, builder: TileBuilder, span: Range, step: int) -> QueryRange:
        """All blocks of a span that begins and ends between blocks, or ends with the queries."""
        first, end = span
        left = builder.maximum(builder.index(0), builder.sub(end, builder.maximum(self.floor, first)))
        tail = builder.mul(builder.minimum(builder.index(1), left), builder.index(step))
        return QueryRange(first, first, builder.minimum(self.floor, end), tail)

    def walk(
        self,
        builder: TileBuilder,
        step: int,
        state: State,
        block: Callable[[SSAValue, bool, State], Sequence[SSAValue]],
        names: Sequence[str],
    ) -> State:
        """The loops over blocks of `step` queries: those at an edge, then whole ones. `block(query, at_edge, state)`
        gives the state after the block from `query` on; `names` are those of the state.
        """
        spans = (self.first, builder.add(self.whole, self.tail)), (self.whole, self.floor)
        beyond = builder.maximum(builder.index(0), builder.sub(self.floor, self.whole))
        for span, at_edge in zip(spans, (True, False), strict=True):
            with builder.loop(*span, step, state) as loop:
                loop.index.name_hint = "query"
                for value, name in zip(loop.carried, names, strict=True):
                    value.name_hint = name
                at = self._or_last(builder, loop.index, beyond) if at_edge else loop.index
                loop.yielded = tuple(block(at, at_edge, loop.carried))
            state = loop.results
        return state

    def _or_last(self, builder: TileBuilder, query: SSAValue, beyond: SSAValue) -> SSAValue:
        """The block of a turn: after those that see some keys comes the one at the end, past the whole ones."""
        one = builder.index(1)
        is_last = builder.maximum(builder.index(0), builder.add(builder.sub(query, self.whole), one))
        return builder.add(query, builder.mul(builder.minimum(one, is_last), beyond))


# -- two kernels ------------------------------------------------------------------------------------------------------


def _walk_specs(spec: AttentionGradientSpec) -> tuple[tuple[AttentionGradientSpec, tuple[int, ...]], ...]:
    """The specifications of both walks, each with the numbers of the arguments that it takes."""
    found = []
    for held, keys, values in (("q", None, None), ("k", spec.keys, spec.values)):
        parts = [part for part in all_sums(spec) if part.held == held]
        beside = tuple(part.sums for part in parts if isinstance(part, PartBeside)) or None
        outputs = [part.output for part in parts]
        operands = range(min(output.argument for output in spec.outputs))
        taken = (*operands, *(output.argument for output in outputs))
        arguments = tuple(spec.arguments[index] for index in taken)
        own = tuple(replace(output, argument=len(operands) + place) for place, output in enumerate(outputs))
        found.append((replace(spec, arguments=arguments, outputs=own, keys=keys, values=values, beside=beside), taken))
    return tuple(found)


def _steps(case: DecomposableCall) -> Steps:
    arrays = [
        Array(index, words[: len(words) // 2], words[len(words) // 2 :])
        for index, (_, words) in enumerate(case.arguments)
    ]
    return Steps(
        tuple(
            KernelStep(spec, tuple(arrays[index] for index in taken), case.extents)
            for spec, taken in case.once(_walk_specs)
        )
    )


def _applies(case: DecomposableCall) -> bool:
    return case.target.kind == "gpu" and len(walks_of(case.spec)) > 1


TWO_WALKS = Decomposition(
    name="two-walks",
    why="blocks of a GPU sum for queries or for keys, each in an order of its own",
    when="call",
    applies=_applies,
    steps=_steps,
)
