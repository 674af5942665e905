"""What tables are recorded of: operators and shapes, and which choices of their knobs span the recorded space.

The spaces of products, attention and convolutions have millions of legal schedules. Of them a part is recorded, and
replayed as the whole space: all combinations of the choices below, with every other knob at its default. These keep
the knobs and the range of choices that decide speed, good and bad, so that the space stays as hard to search as the
whole one, and its best as good (the figures of suite ``tune`` say how good). Smaller spaces are recorded as they are.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from tessera import op
from tessera.compiler.tune.tuning import CompilerBackend
from tessera.doors.windows import Layout
from tessera.scheduling.language.knobs import Space
from tessera.scheduling.language.schedule import KnobValue
from tessera.scheduling.lowering.microkernel.matrix_unit import MATRIX, VECTOR
from tessera.tuning.interfaces import TuningBackend, TuningProblem

Choices: TypeAlias = dict[str, tuple[KnobValue, ...]]
Shapes: TypeAlias = tuple[int, ...] | list[tuple[int, ...]]

MOST = 1500
"""Schedules recorded of one problem at most: of more, as many drawn at random."""


@dataclass(frozen=True)
class Problem:
    """An operator, shapes (as `autotune` takes them) and a dtype, recorded with the choices that `choices` gives for
    the whole space; knobs that it leaves out stay at their default.
    """

    operator: str
    title: str
    call: Callable[..., Any]
    shapes: Shapes
    choices: Callable[[Space[Any]], Choices]
    dtype: str = "fp32"
    most: int = MOST

    @property
    def name(self) -> str:
        """What files and tables call it."""
        return f"{self.operator}-{self.dtype}-{self.title}"

    def posed(self, backend: TuningBackend | None = None) -> Posed:
        """The tuning problem for a compiler, this machine's by default, and for as many threads as torch has; and the
        part that is recorded.
        """
        whole = (backend or CompilerBackend()).subject(self.call, self.shapes, self.dtype)
        if not isinstance(whole.space, Space):
            raise TypeError(f"{self.name}: {type(whole.space).__name__} is no space of knobs")
        return Posed(whole, whole.space, whole.space.restricted(with_defaults(whole.space, self.choices(whole.space))))


@dataclass(frozen=True)
class Posed:
    """A problem on one machine: as the tuner gets it, its whole space, and the recorded part."""

    problem: TuningProblem
    whole: Space[Any]
    space: Space[Any]


def with_defaults(space: Space[Any], choices: Mapping[str, Iterable[KnobValue]]) -> Choices:
    """Choices for all knobs of a space: the given ones and the default's, in the knob's order, or by size."""
    result: Choices = {}
    for knob in space.knobs:
        wanted = {*choices.get(knob.name, ()), space.default[knob.name]}
        listed = tuple(value for value in knob.choices if value in wanted)
        others = wanted.difference(listed)
        result[knob.name] = listed if not others else tuple(sorted(wanted))
    return result


def _lanes(space: Space[Any]) -> int:
    """Elements of fp32 in a vector register."""
    lanes: int = space.problem.target.vector_bits // 32
    return lanes


def _blocks(*axes: Sequence[int]) -> tuple[tuple[int, ...], ...]:
    return tuple(itertools.product(*axes))


def _micro(space: Space[Any], *tiles: tuple[int, int]) -> tuple[tuple[int, int], ...]:
    """Register tiles given as rows and vectors."""
    return tuple((rows, vectors * _lanes(space)) for rows, vectors in tiles)


def _with_rows(space: Space[Any], knob: str, rows: Sequence[int]) -> tuple[KnobValue, ...]:
    """The choices of a knob that begin with one of these numbers."""
    choices = space.by_name[knob].choices
    return tuple(value for value in choices if isinstance(value, tuple) and value[0] in rows)


def square(space: Space[Any]) -> Choices:
    """Products with many rows. Of bf16, whose sums stay in registers or scratch memory, one block holds all of K."""
    _, _, depth = space.default.integers("tile")
    deep = space.problem.out_dtype != space.problem.accumulator
    return {
        "tile": _blocks((16, 144), (32, 256, 2048), (depth,) if deep else (8, 64, depth)),
        "micro": _micro(space, (1, 1), (2, 1), (1, 2), (1, 4), (2, 2), (8, 2), (12, 2), (14, 2)),
        "unroll": (1, 2, 4) if deep else (),
        "pack_a": (False, True),
        "pack_b": (False, True),
        **_of_both_units(space),
    }


def few_rows(space: Space[Any]) -> Choices:
    """Products with few rows, which wait for B. Of bf16 sums wait for the next block of K in scratch memory only."""
    rows, _, depth = space.default.integers("tile")
    deep = space.problem.out_dtype != space.problem.accumulator
    return {
        "tile": _blocks((rows,), (256, 1024, 4096), tuple({64, 256, min(depth, 16)})),
        "micro": _micro(space, (1, 1), (1, 2), (1, 4), (2, 2), (8, 1), (8, 2), (12, 2), (16, 1)),
        "unroll": (1, 4),
        "pack_b": (False, True),
        "sums": ("output", "scratch"),
        "order": ("columns", "rows") if deep else (),
        **_of_both_units(space),
    }


def _of_both_units(space: Space[Any]) -> Choices:
    """Where a matrix unit could multiply: vectors, too, and where the sums of either wait."""
    if not space.problem.has_unit:
        return {}
    return {"unit": (VECTOR, MATRIX), "sums": ("registers", "output", "scratch"), "order": ("columns", "rows")}


def attention(space: Space[Any]) -> Choices:
    """Blocks of up to 256 queries; register tiles of 1, 2, 4, 8 or 16 keys."""
    return {
        "tile": _with_rows(space, "tile", (1, 4, 8, 16, 32, 64, 128, 256)),
        "micro": _with_rows(space, "micro", (1, 2, 4, 8, 16)),
        "lanes": ("queries", "head"),
        "unit": (VECTOR, MATRIX) if space.problem.has_unit else (),
    }


def decode(space: Space[Any]) -> Choices:
    """Attention of few queries: blocks of few; keys may be cut into parts."""
    return {
        "tile": _with_rows(space, "tile", (1, 4, 8, 16, 32)),
        "micro": space.by_name["micro"].choices,
        "lanes": ("queries", "head"),
        "parts": (1, 2, 4),
    }


def convolution(space: Space[Any]) -> Choices:
    """Blocks (of windows of several pixels every other), register tiles, orders of loops, and how the image is read."""
    found = {name: space.by_name[name].choices for name in ("tile", "micro", "pack_a", "merge", "order")}
    if space.problem.kernel != (1, 1):
        found["tile"] = found["tile"][::2]
    return found | {"unroll": (1, 4)}


def windows(space: Space[Any]) -> Choices:
    """Kernels of windows: all that differs for one worker; with channels along vectors there are so many register tiles
    that the distance of prefetching stays the default.
    """
    found = everything(space)
    return found | {"pipeline_depth": ()} if space.problem.lanes_axis == "c" else found


def everything(space: Space[Any]) -> Choices:
    """All choices of all knobs but of those that one worker has no use for, and of fusion, which needs neighbours."""
    return {knob.name: knob.choices for knob in space.knobs if knob.name not in ("parallel", "fusion")}


def _product(m: int, k: int, n: int, dtype: str = "fp32", most: int = MOST) -> Problem:
    choices = square if m > 128 else few_rows
    return Problem("matmul", f"{m}x{n}x{k}", op.matmul, (m, n, k), choices, dtype, most)


def _attention(heads: int, size: int, queries: int, keys: int, causal: bool = False, dtype: str = "fp32") -> Problem:
    shapes: Shapes = [(1, heads, length, size) for length in (queries, keys, keys)]
    title = f"{heads}x{queries}x{keys}x{size}" + "-causal" * causal
    call = partial(op.flash_attention, causal=causal)
    return Problem("attention", title, call, shapes, attention if queries > 16 else decode, dtype)


def _convolution(side: int, channels: int, outputs: int, window: int, dtype: str = "fp32") -> Problem:
    shapes: Shapes = [(1, side, side, channels), (outputs, channels, window, window)]
    call = partial(op.conv2d, padding=window // 2, layout="NHWC")
    return Problem("convolution", f"{side}x{channels}-{outputs}x{window}", call, shapes, convolution, dtype)


def _depthwise(batch: int, channels: int, side: int, window: int, layout: Layout = "NCHW") -> Problem:
    image = (batch, channels, side, side) if layout == "NCHW" else (batch, side, side, channels)
    call = partial(op.depthwise_conv2d, padding=window // 2, layout=layout)
    title = f"{batch}x{channels}x{side}-{window}-{layout}"
    return Problem("depthwise", title, call, [image, (channels, 1, window, window)], windows)


def _rowwise(operator: str, rows: int, columns: int, dtype: str = "fp32") -> Problem:
    calls: dict[str, Callable[..., Any]] = {"softmax": op.softmax, "layer_norm": op.layer_norm}
    return Problem(operator, f"{rows}x{columns}", calls[operator], [(rows, columns)], everything, dtype)


PROBLEMS: tuple[Problem, ...] = (
    _product(512, 512, 512),
    _attention(12, 64, 512, 512),
    _convolution(28, 128, 128, 3),
    _depthwise(1, 256, 112, 3),
    _rowwise("softmax", 1024, 1024),
    _rowwise("layer_norm", 4096, 768),
    _product(256, 256, 256),
    _product(8, 4096, 4096),
    _attention(12, 64, 128, 128),
    _convolution(56, 64, 64, 3),
    _depthwise(8, 512, 28, 3),
    _rowwise("softmax", 4096, 128),
    _rowwise("softmax", 64, 16384),
    _rowwise("layer_norm", 512, 4096),
    _rowwise("layer_norm", 256, 256),
    _depthwise(1, 128, 56, 5),
    _product(1, 4096, 4096),
    _product(64, 4096, 4096),
    _attention(12, 64, 256, 256),
    _attention(12, 64, 512, 512, causal=True),
    _convolution(14, 256, 256, 3),
    _product(512, 512, 512, "bf16"),
    _depthwise(1, 256, 56, 3, "NHWC"),
    _rowwise("softmax", 1024, 1024, "bf16"),
    _rowwise("softmax", 4096, 4096),
    _rowwise("layer_norm", 4096, 4096),
    _product(1024, 1024, 1024),
    _attention(4, 64, 1024, 1024),
    _convolution(56, 64, 256, 1),
    _product(8, 4096, 11008),
    _product(64, 4096, 4096, "bf16"),
    _attention(12, 64, 512, 512, dtype="bf16"),
    _convolution(28, 128, 128, 3, "bf16"),
    _attention(32, 128, 1, 4096),
    _product(1024, 1024, 1024, "bf16"),
    _product(2048, 2048, 2048, most=100),
)
"""All that tables are recorded of, the most important first: one of each operator, then a second shape of each."""


def matching(names: Sequence[str]) -> list[Problem]:
    """The problems whose operator or name is one of `names`, or all of them without any. Raises KeyError for a name
    that none has.
    """
    for name in names:
        if not any(name in (problem.operator, problem.name) for problem in PROBLEMS):
            raise KeyError(name)
    return [problem for problem in PROBLEMS if not names or problem.operator in names or problem.name in names]
