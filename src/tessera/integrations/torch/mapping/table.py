"""The mapping: by ATen overload, the function that writes its call with Tessera's operators."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

import torch

from tessera.dtypes import DType, accumulator, dtype_of
from tessera.handle import Tensor
from tessera.lazy.symbols.integers import is_symbolic
from tessera.ops import reverse

Target: TypeAlias = Any
"""What a node of an FX graph calls: an `OpOverload` or a Python function."""

Results: TypeAlias = Any
"""A `Tensor`, or a tuple with one (or None, where nobody asks for it) for each result."""

F = TypeVar("F", bound=Callable[..., Results])


class Unsupported(Exception):  # noqa: N818 - what is missing, not what went wrong
    """A call that Tessera has no counterpart for; the text says what of it. torch then computes it."""


@dataclass(frozen=True)
class Wanted:
    """What torch says of a call: shape and dtype of each result, and which of them anybody uses."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[torch.dtype, ...]
    used: frozenset[int]
    in_place: bool = False
    """Whether the result is written to the memory of the first operand, of which the rest stays as it is."""
    strides: tuple[int, ...] | None = None
    """How torch has the first operand in memory, for rows that ask; None where that is no tensor that begins where its
    memory does.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The extents of the first result."""
        return self.shapes[0]

    @property
    def dtype(self) -> DType:
        """The element type of the first result."""
        return dtype_of(self.dtypes[0])

    def cast(self, *results: Tensor | None) -> tuple[Tensor | None, ...]:
        """Results in the dtypes that torch gives them."""
        return tuple(
            result if result is None else result.to(dtype_of(dtype))
            for result, dtype in zip(results, self.dtypes, strict=True)
        )


@dataclass(frozen=True)
class Row:
    """One row of the mapping: `translate(*arguments, **options)` gives the results of the call as lazy tensors."""

    translate: Callable[..., Results]
    asks: bool
    """Whether `translate` takes the keyword `wanted`."""
    asks_for_strides: bool = False
    """Whether it reads the strides of `wanted`."""

    def __call__(self, wanted: Wanted | None, arguments: Sequence[Any], options: Mapping[str, Any]) -> Results:
        """The results; `wanted` may be None where the row does not ask for it. Raises Unsupported, and what Tessera's
        operators raise.
        """
        given = {name: value for name, value in options.items() if name not in _PLACEMENT}
        if self.asks:
            return self.translate(*arguments, **given, wanted=wanted)
        return self.translate(*arguments, **given)


_PLACEMENT = frozenset(("device", "layout", "pin_memory", "memory_format", "non_blocking"))
"""Keywords that say where and how results lie, which the graph around a partition looks after."""

_rows: dict[Target, Row] = {}

MAPPING: Mapping[Target, Row] = MappingProxyType(_rows)
"""All rows by target; the modules of `mapping` put them here."""


def row_of(target: Target) -> Row | None:
    """The row of a target, None where it has none. Libraries register operators of their own when they are imported,
    which may be later: their rows are found by name.
    """
    return _rows.get(target) or _rows.get(str(target))


def maps(*targets: Target, strides: bool = False) -> Callable[[F], F]:
    """Enters a function as the row of each target, one of another library by its name ("transformers.f.default");
    `strides` says that it reads those of `wanted`.
    """

    def enter(translate: F) -> F:
        row = Row(translate, "wanted" in inspect.signature(translate).parameters, strides)
        for target in targets:
            assert target not in _rows, f"two rows for {target}"
            _rows[target] = row
        return translate

    return enter


def floating(x: Tensor) -> Tensor:
    """x in the floating-point dtype that torch's functions of real numbers compute it in."""
    return x if x.dtype.kind == "float" else x.to(torch.get_default_dtype())


def adjoint(function: Callable[[Tensor], Tensor], shape: Sequence[int], g: Tensor) -> Tensor:
    """The cotangent of the operand, of `shape`, of a linear function whose result has the cotangent g. What is added up
    on the way is so in the dtype that sums of g's elements are formed in.
    """
    found: Tensor = reverse.adjoint(function, tuple(shape), g.to(accumulator(g.dtype)))
    return found.to(g.dtype)


def refuse_symbolic(*sizes: int) -> None:
    """Raises Unsupported for symbolic sizes, of which no table of numbers can be made: each is then bound anew."""
    if any(is_symbolic(size) for size in sizes):
        raise Unsupported("a table of numbers for sizes that change")


def axes_of(dim: int | Sequence[int] | None) -> int | tuple[int, ...] | None:
    """The `axis` of Tessera's reductions: torch's empty list, too, means all."""
    if dim is None or isinstance(dim, int):
        return dim
    return tuple(dim) or None
