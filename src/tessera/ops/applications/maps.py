"""Rules of maps, reductions, rows and norms."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tessera.dtypes import COMPLEX, SUPPORTED, bool_
from tessera.lazy.structures.structure import Shape
from tessera.ops.applications.rule import AbstractValue, Application, Rule, WantedOperand, floating, like


def broadcasting(chance: random.Random, shape: Shape) -> Shape:
    """A shape that broadcasts to `shape`: the same mostly, else with extents of 1, or without leading dimensions."""
    kind = chance.choice(("same", "same", "same", "ones", "fewer", "number"))
    if kind == "ones":
        return tuple(chance.choice((1, extent)) for extent in shape)
    if kind == "fewer":
        return shape[chance.randint(0, len(shape)) :]
    return () if kind == "number" else shape


def of_maps(count: int, attributes: Callable[[random.Random], Mapping[str, Any]] | None = None) -> Rule:
    """The rule of a map of so many operands of one dtype, which broadcast against the first."""

    def rule(chance: random.Random, x: AbstractValue) -> Application:
        others = [WantedOperand(broadcasting(chance, x.shape), x.dtype) for _ in range(count - 1)]
        return Application((like(x), *others), attributes(chance) if attributes else {})

    return rule


def of_choices(chance: random.Random, x: AbstractValue) -> Application:
    """Of `where`: a condition, and two values."""
    condition, other = (broadcasting(chance, x.shape) for _ in range(2))
    return Application((WantedOperand(condition, bool_), like(x), WantedOperand(other, x.dtype)))


def of_powers(chance: random.Random, x: AbstractValue) -> Application:
    """Of `pow`: exponents from 0 to 3, which integers have powers of."""
    return Application((like(x), WantedOperand(broadcasting(chance, x.shape), x.dtype, below=4)))


def bounds(chance: random.Random) -> Mapping[str, Any]:
    """Attributes of `clamp`."""
    return chance.choice(({"minimum": -1}, {"maximum": 2}, {"minimum": -0.75, "maximum": 1.5}))


REAL = tuple(sorted(SUPPORTED - COMPLEX, key=lambda dtype: dtype.name))
"""The dtypes of real numbers, in the order of their names."""


def approximations(chance: random.Random) -> Mapping[str, Any]:
    """Attributes of `gelu`."""
    return {"approximate": chance.choice(("none", "tanh"))}


def real_dtypes(chance: random.Random) -> Mapping[str, Any]:
    """Attributes of `cast`: any dtype of real numbers."""
    return {"dtype": chance.choice(REAL)}


# -- reductions and rows ----------------------------------------------------------------------------------------------


def of_reductions(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of reductions over any axes."""
    if not x.shape:
        return None
    axes = sorted(chance.sample(range(len(x.shape)), chance.randint(1, len(x.shape))))
    return Application((like(x),), {"axes": tuple(axes), "keepdims": chance.random() < 0.5})


def of_places(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of reductions that give one place: along one axis, or along all."""
    if not x.shape or 0 in x.shape:
        return None
    axes = chance.choice([(axis,) for axis in range(len(x.shape))] + [tuple(range(len(x.shape)))])
    return Application((like(x),), {"axes": axes, "keepdims": chance.random() < 0.5})


def along_axis(**attributes: Sequence[Any]) -> Rule:
    """The rule of an operator of one operand that works along an `axis`; of further attributes, the choices."""

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        if not x.shape:
            return None
        drawn = {name: chance.choice(choices) for name, choices in attributes.items()}
        return Application((like(x),), {"axis": chance.randrange(len(x.shape)), **drawn})

    return rule


def of_norms(parameters: int) -> Rule:
    """The rule of a norm over the last dimension with up to so many parameters. Its eps is large: rows of nearly equal
    elements would make noise of rounding errors.
    """

    def rule(chance: random.Random, x: AbstractValue) -> Application | None:
        if not x.shape:
            return None
        dtype = floating(x.dtype)
        given = [WantedOperand(x.shape[-1:], dtype)] * chance.randint(0, parameters)
        return Application((WantedOperand(x.shape, dtype), *given), {"eps": chance.choice((0.5, 1e-2))})

    return rule
