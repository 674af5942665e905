"""What a program computes, by the records' references on torch tensors in float64, and how far rounding may move it.

How far: the references run again with every operand and every result of every operator moved at random by a few units
in the last place of its dtype (Monte Carlo arithmetic; Parker, "Monte Carlo arithmetic", UCLA 1997). What rounding can
do to a result, the spread of these runs shows, whatever the operators: cancellation, bad conditioning, sums of many
terms. An element whose decision hangs on rounding (an argmax of near equals, an overflow of fp16) differs between the
runs, and is not judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from tessera.dtypes import DType, dtype_of, int64
from tessera.ops import OPERATORS, Operator
from tessera.ops.applications import transforms
from tests.fuzz.program import Input, Loop, Number, Program, Step

RUNS = 6
UNITS = 4.0
"""Each run moves numbers by up to so many units in the last place."""
SPREADS = 6.0
"""A result may be so many spreads of the runs away."""

_WIDEST = {"float": torch.float64, "complex": torch.complex128}


def widened(tensor: torch.Tensor, dtype: DType) -> torch.Tensor:
    """A tensor in the dtype that references compute in."""
    return tensor.to(_WIDEST.get(dtype.kind, dtype.torch))


class Noise:
    """Moves numbers at random, as roundings would. Of two runs that follow each other the second one moves all the
    other way, so that what hangs on the sign of a difference is seen both ways.
    """

    def __init__(self, run: int, rounding: bool, units: float = UNITS) -> None:
        self.chance = torch.Generator().manual_seed(run // 2)
        self.rounding = rounding
        self.units = -units if run % 2 else units
        self.common = run // 2 % 2 == 1

    def moved(
        self,
        value: torch.Tensor,
        dtype: DType,
        terms: torch.Tensor | float = 0.0,
        least: float = 0.0,
        common: bool = False,
    ) -> torch.Tensor:
        """The value within some units of its dtype, of itself, of what it is the sum of, or of the least number. With
        `common`, some runs move all elements alike, as the rounding of a mean does that all of them depend on.
        """
        if dtype.kind not in _WIDEST or not value.numel():
            return value
        if dtype.kind == "complex":
            parts = torch.view_as_real(value)
            moved: torch.Tensor = torch.view_as_complex(
                self.moved(parts, dtype_of("fp32" if dtype.itemsize == 8 else "fp64"), _beside_parts(terms))
            )
            return moved
        info = torch.finfo(dtype.torch)
        drawn = (1,) * value.ndim if common and self.common else value.shape
        units = torch.rand(drawn, generator=self.chance, dtype=torch.float64) * 2 - 1
        least = max(info.smallest_normal * info.eps, least)
        size = torch.maximum(value.abs(), torch.as_tensor(terms, dtype=torch.float64))
        moved = value + units * self.units * (size * info.eps + least * (value != 0))
        moved = torch.where(value.isfinite(), moved, value)
        if self.rounding and self.units < 0:  # what cancels may leave nothing: gelu(-6) is 0 in fp32
            moved = torch.where(value.abs() <= -self.units * size * info.eps, 0.0, moved)
        return moved.to(dtype.torch).to(torch.float64) if self.rounding else moved

    def in_order(self, value: torch.Tensor) -> torch.Tensor:
        """The value with ties between its elements broken."""
        wide = value.to(torch.float64)
        units = torch.rand(value.shape, generator=self.chance, dtype=torch.float64) - 0.5
        return wide + units * torch.where(wide == 0, 1e-30, wide.abs() * 1e-12)


def _beside_parts(terms: torch.Tensor | float) -> torch.Tensor | float:
    """Terms of complex numbers as terms of their real and imaginary parts."""
    return terms.abs().unsqueeze(-1) if isinstance(terms, torch.Tensor) else terms


def values_of(
    program: Program,
    memories: Sequence[torch.Tensor],
    noise: Noise | None = None,
    given: Mapping[int, torch.Tensor] = MappingProxyType({}),
) -> list[torch.Tensor]:
    """The value of each entry, over the contents of memories in the widest dtypes, or of inputs as they are `given`."""
    values: list[torch.Tensor] = []
    exact: list[bool] = []
    dtypes = dtypes_of(program)
    for index, entry in enumerate(program.entries):
        if index in given:
            values.append(given[index])
        elif isinstance(entry, Input):
            values.append(memories[entry.memory].as_strided(entry.shape, entry.strides, entry.offset))
        elif isinstance(entry, Number):
            dtype = dtype_of(entry.dtype)
            values.append(torch.tensor(entry.value, dtype=_WIDEST.get(dtype.kind, dtype.torch)))
        else:
            operands = [values[place] for place in entry.operands]
            kinds = [dtypes[place] for place in entry.operands]
            known = all(exact[place] for place in entry.operands)
            values.append(_computed(entry, operands, kinds, dtypes[index], noise, known))
            exact.append(known and _is_exact(entry, values[-1], dtypes[index]))
            continue
        exact.append(index not in given)
    return values


_EXACTLY = frozenset(
    "add sub mul neg abs relu maximum minimum round floor ceil trunc sign cast max min eq ne lt le gt ge where take "
    "gather logical_and logical_or logical_not".split()
)
"""Operators without rounding, where their results are numbers of the dtype."""


def _is_exact(step: Step, value: torch.Tensor, dtype: DType) -> bool:
    """Whether nothing rounds in a step of operands that are exact."""
    if step.operator not in _EXACTLY and OPERATORS[step.operator].family != "layout":
        return False
    if dtype.kind not in _WIDEST:
        return True
    rounded = widened(value.to(dtype.torch), dtype)
    return bool(((rounded == value) | value.isnan()).all())


def _computed(
    step: Step,
    operands: list[torch.Tensor],
    kinds: list[DType],
    dtype: DType,
    noise: Noise | None,
    known: bool = False,
) -> torch.Tensor:
    """The result of a step; `known`: its operands are exact, so that nothing moves them."""
    record = OPERATORS[step.operator]
    named = dict(zip(record.attributes, step.attributes, strict=True))
    if isinstance(named.get("control"), Loop):
        return _unrolled(named["control"], operands, dtype, named["length"], noise)
    exact = record.family == "layout" or step.operator in ("where", "take", "gather")
    if noise is not None and noise.rounding and noise.units < 0 and _wants_finite(record):
        operands = [x if kind.kind not in _WIDEST else _finite(x) for x, kind in zip(operands, kinds, strict=True)]
    if noise is not None and noise.rounding and record.family not in ("elementwise", "layout"):
        instead = 0.0 if noise.units < 0 else torch.nan
        operands = [_without_overflow(value, kind, instead) for value, kind in zip(operands, kinds, strict=True)]
    if noise is not None and not exact and not (known and step.operator in _EXACTLY):
        operands = [noise.moved(value, kind) for value, kind in zip(operands, kinds, strict=True)]
        if any(name.endswith("_indices") for name in record.joint):  # which of equal elements comes first, nobody says
            if kinds[0].kind != "float" and step.operator == record.joint[0]:
                noise = None
            else:
                operands = [noise.in_order(operands[0]), *operands[1:]]
    if kinds and kinds[0].kind == "float" and dtype.kind == "int" and step.operator == "cast":
        return _whole(operands[0], dtype, noise)
    result: torch.Tensor = record.reference(*operands, **named)
    result = widened(result, dtype)
    if noise is None or exact or (known and _is_exact(step, result, dtype)):
        return result
    if step.operator == "softmax" and noise.rounding:
        # The weights of keys that are all hidden, which become 0 where they meet values, and NaN elsewhere.
        result = torch.where((operands[0] == -torch.inf).all(named["axis"], keepdim=True), 0.0, result)
    if dtype.kind == "bool" and step.operator in ("eq", "ne"):
        return _equal_by_chance(result, operands, kinds[0], equal=noise.rounding)
    terms = _frequencies(result, named) if _is_transform(record) else record.terms(*operands, **named)
    return noise.moved(result, dtype, terms, least=_vanishing(dtype), common=record.family == "row")


def _unrolled(
    loop: Loop, operands: Sequence[torch.Tensor], dtype: DType, length: int, noise: Noise | None
) -> torch.Tensor:
    """The results of one dtype of a loop, step after step, one behind the other."""
    *_, body = loop.bodies
    kinds = [dtypes_of(body)[root] for root in body.roots]
    if loop.kind == "Cond":
        results = _of_body(loop.bodies[0 if bool(operands[0]) else 1], operands[1:], noise)
    elif loop.kind == "While":
        results, count = list(operands[: loop.carries]), 0
        same = operands[loop.carries :]
        while bool(_of_body(loop.bodies[0], [*results, *same], noise)[0]):
            results, count = _of_body(body, [*results, *same], noise), count + 1
        results, kinds = [*results, torch.tensor(count)], [*kinds, int64]
    else:
        results, last = list(operands[: loop.carries]), loop.carries + loop.slices
        stacked = []
        for place in range(length - 1, -1, -1) if loop.reverse else range(length):
            sliced = [each[place] for each in operands[loop.carries : last]]
            made = _of_body(body, [*results, *sliced, *operands[last:]], noise)
            results = made[: loop.carries]
            stacked.append(made[loop.carries :])
        rows = zip(*(stacked[::-1] if loop.reverse else stacked), strict=True)
        results += [torch.stack(each) for each in rows]  # without steps there are no elements
    own = [each.flatten() for each, kind in zip(results, kinds, strict=False) if kind is dtype]
    return torch.cat(own) if own else torch.zeros(0, dtype=_WIDEST.get(dtype.kind, dtype.torch))


def _of_body(body: Program, operands: Sequence[torch.Tensor], noise: Noise | None) -> list[torch.Tensor]:
    given = {place: operands[entry.memory] for place, entry in enumerate(body.entries) if isinstance(entry, Input)}
    values = values_of(body, (), noise, given)
    return [values[root] for root in body.roots]


def _vanishing(dtype: DType) -> float:
    """Below which results may be 0: `x * sigmoid(x)` is where e^-x overflows in the dtype computed in."""
    return 0.0 if dtype.kind not in _WIDEST else 128 * torch.finfo(_computing(dtype)).smallest_normal


def _computing(dtype: DType) -> torch.dtype:
    return torch.float64 if dtype.torch in (torch.float64, torch.complex128) else torch.float32


def _equal_by_chance(result: torch.Tensor, operands: Sequence[torch.Tensor], dtype: DType, equal: bool) -> torch.Tensor:
    """What a comparison gives; where roundings decide whether its operands are equal, one answer in every other run."""
    if dtype.kind not in _WIDEST:
        return result
    a, b = operands
    size = torch.maximum(a.abs(), b.abs())
    near = (a - b).abs() <= 8 * UNITS * torch.finfo(dtype.torch).eps * size
    return torch.where(near & size.isfinite() & (size > 0), torch.tensor(equal), result)


def _without_overflow(value: torch.Tensor, dtype: DType, instead: float) -> torch.Tensor:
    """The value with another in place of numbers whose squares and sums leave the dtype that they are computed in: some
    runs have NaN there, some 0, and what depends on them is not judged.
    """
    if dtype.kind != "float":
        return value
    limit = torch.finfo(_computing(dtype)).max ** 0.5 / 64
    return torch.where(value.isfinite() & (value.abs() > limit), instead, value)


def _whole(value: torch.Tensor, dtype: DType, noise: Noise | None) -> torch.Tensor:
    """A conversion to integers: what has none becomes anything, which is far off in all runs but the exact one."""
    limits = torch.iinfo(dtype.torch)
    fits = (value > float(limits.min) - 1) & (value < float(limits.max))
    seed = 0 if noise is None else int(torch.randint(1 << 30, (1,), generator=noise.chance))
    chance = torch.Generator().manual_seed(seed)
    near = torch.randint(-100, 100, value.shape, generator=chance)
    ends = torch.where(near < 0, limits.min, limits.max)
    anything = near if noise is None else ends
    return torch.where(fits, torch.where(fits, value, 0.0).to(torch.int64), anything).to(dtype.torch)


def dtypes_of(program: Program) -> list[DType]:
    """The dtype of each entry, by the records' rules."""
    from tests.fuzz.ways import nodes_of  # building nodes runs the rules

    return [node.dtype for node in nodes_of(program)]


_ONLY_FINITE = frozenset(("attention", "convolution", "window"))
"""Families of which it is undefined whether operands that are not finite show where they meet padding or a hidden key:
some runs have them finite, so that what depends on them is not judged. So it is of Fourier transforms: each element
adds to every frequency, and where inf becomes NaN is the choice of the library's algorithm.
"""


def _wants_finite(record: Operator) -> bool:
    return record.family in _ONLY_FINITE or _is_transform(record)


def _is_transform(record: Operator) -> bool:
    return getattr(record.application, "__module__", "") == transforms.__name__


def _frequencies(result: torch.Tensor, named: Mapping[str, object]) -> torch.Tensor:
    """The size of what a Fourier transform adds up for each result, which is the same for all that it is over: the root
    of the mean square of these.
    """
    size = _finite(result).abs().square()
    axes = named.get("axes")
    return size.mean(axes, keepdim=True).sqrt() if isinstance(axes, tuple) and size.numel() else size.sqrt()


def _finite(value: torch.Tensor) -> torch.Tensor:
    return torch.where(value.isfinite(), value, 0.0)


@dataclass(frozen=True)
class Expected:
    """The value of one result: what it is, how far it may be off, and which of its elements are judged at all."""

    value: torch.Tensor
    bound: torch.Tensor
    judged: torch.Tensor
    dtype: DType

    def wrong(self, result: torch.Tensor) -> str | None:
        """What is wrong with a result; None where nothing is."""
        if result.dtype != self.dtype.torch or tuple(result.shape) != tuple(self.value.shape):
            wanted = f"{self.dtype.torch} {tuple(self.value.shape)}"
            return f"a result of {result.dtype} {tuple(result.shape)} where {wanted} is due"
        got = widened(result, self.dtype)
        if self.dtype.kind in _WIDEST:
            same = (got == self.value) | (got.isnan() & self.value.isnan())
            near = (got - self.value).abs() <= self.bound
            fine = same | (near & self.value.isfinite())
        else:
            fine = got == self.value
        bad = ~fine & self.judged
        if not bool(bad.any()):
            return None
        place = tuple(int(i) for i in bad.nonzero()[0])
        bound = f" +- {float(self.bound[place]):.3g}" if self.dtype.kind in _WIDEST else ""
        return (
            f"{int(bad.sum())} of {bad.numel()} elements are wrong, the first at {place}: "
            f"{got[place].item()!r} instead of {self.value[place].item()!r}{bound}"
        )


def spread_of(value: torch.Tensor, others: Sequence[torch.Tensor], dtype: DType) -> Expected:
    """What is expected where the exact run gave `value`, and the moved ones `others`."""
    judged = torch.ones(value.shape, dtype=torch.bool)
    if dtype.kind not in _WIDEST:
        for other in others:
            judged &= other == value
        return Expected(value, torch.zeros(()).expand(value.shape), judged, dtype)
    info = torch.finfo(dtype.torch)
    rounded = widened(value.to(dtype.torch), dtype)
    spread = (rounded - value).abs()
    for other in others:
        same = (other == value) | (other.isnan() & value.isnan())
        known = other.isfinite() & value.isfinite()
        judged &= known | same
        spread = torch.maximum(spread, torch.where(known, (other - value).abs(), 0.0))
    judged &= (rounded.isfinite() == value.isfinite()) | value.isnan()
    judged &= ~(value.isfinite() & (value.abs() > info.max / 8))
    size = torch.where(value.isfinite(), value.abs(), torch.zeros((), dtype=torch.float64))
    spread = torch.maximum(spread, _typical(spread, size, judged) * size)
    bound = SPREADS * spread + 4 * info.eps * size + 4 * info.smallest_normal * info.eps
    return Expected(value, bound, judged, dtype)


def _typical(spread: torch.Tensor, size: torch.Tensor, judged: torch.Tensor) -> float:
    """The median of relative spreads: of thousands of elements, some move hardly at all in every run, by chance."""
    of = judged & (size > 0)
    return float((spread[of] / size[of]).median()) if bool(of.any()) else 0.0


def expectations(program: Program, memories: Sequence[torch.Tensor]) -> list[Expected]:
    """What each entry of a program is to be, over the contents of its memories."""
    wide = [widened(memory, dtype_of(each.dtype)) for memory, each in zip(memories, program.memories, strict=True)]
    exact = values_of(program, wide)
    noises = [Noise(0, rounding=True, units=0.0), *[Noise(run, rounding=bool(run // 2 % 2)) for run in range(RUNS)]]
    moved = [values_of(program, wide, noise) for noise in noises]
    dtypes = dtypes_of(program)
    return [
        spread_of(value, [run[index] for run in moved], dtype)
        for index, (value, dtype) in enumerate(zip(exact, dtypes, strict=True))
    ]
