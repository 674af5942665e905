"""Rules of operators that find elements by their places, or places by their elements."""

from __future__ import annotations

import random

from tessera.dtypes import int64
from tessera.lazy.structures.structure import Shape
from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, like


def _places(chance: random.Random, shape: Shape, extent: int) -> WantedOperand:
    """Indices below an extent; none where there is nothing to index."""
    return WantedOperand(shape if extent else tuple(0 for _ in shape) or (0,), int64, below=max(extent, 1))


def of_takes(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `take`: any shape of indices."""
    if not x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    shape = chance.choice(((), (3,), (x.shape[axis],), (2, 3)))
    return Application((like(x), _places(chance, shape, x.shape[axis])), {"axis": axis})


def of_gathers(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `gather`: fewer elements along all axes, any number of them along one."""
    if not x.shape or 0 in x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    wanted = tuple(chance.choice((extent, chance.randint(1, extent))) for extent in x.shape)
    return Application((like(x), _places(chance, wanted, x.shape[axis])), {"axis": axis})


def of_sums_at_places(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `put_sum`: the operand's slices, each added at a place."""
    if not x.shape:
        return None
    extent = chance.choice((1, 4, 9))
    return Application((like(x), WantedOperand(x.shape[:1], int64, below=extent)), {"axis": 0, "extent": extent})


def of_replacements(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `put`: one part at most, since of two at one place torch, which judges, gives both its gradient."""
    if not x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    shape = chance.choice(((), (1,), (1, 1))) if x.shape[axis] else (0,)
    source = WantedOperand((*x.shape[:axis], *shape, *x.shape[axis + 1 :]), x.dtype)
    return Application((like(x), _places(chance, shape, x.shape[axis]), source), {"axis": axis})


def of_scattered_sums(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scatter_add`."""
    if not x.shape or 0 in x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    wanted = tuple(chance.randint(1, extent) for extent in x.shape)
    source = tuple(extent + chance.choice((0, 0, 2)) for extent in wanted)
    return Application(
        (like(x), WantedOperand(wanted, int64, below=x.shape[axis]), WantedOperand(source, x.dtype)), {"axis": axis}
    )


def of_lone_places(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scatter`: one element at most along the axis, since of two at one place torch, which judges, gives both the
    gradient.
    """
    if not x.shape or 0 in x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    wanted = tuple(1 if d == axis else chance.randint(1, extent) for d, extent in enumerate(x.shape))
    source = tuple(extent + chance.choice((0, 0, 2)) for extent in wanted)
    return Application(
        (like(x), WantedOperand(wanted, int64, below=x.shape[axis]), WantedOperand(source, x.dtype)), {"axis": axis}
    )


def of_scattered_extremes(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scatter_extreme`: any number of elements at a place."""
    found = of_scattered_sums(chance, x)
    return found and Application(found.operands, {**found.attributes, "largest": chance.random() < 0.5})


def of_checks(chance: random.Random, x: AbstractValue) -> Application:
    """Of `checked_index`: indices that are right."""
    flags = {"from_end": chance.random() < 0.5}
    return Application((WantedOperand(x.shape, int64, below=7),), {"what": "test", "extent": 7, **flags})


def of_scattering(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `scatter_along`: one element at most along the axis, since of two at one place either may win."""
    if not x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    one = tuple(1 if d == axis else extent for d, extent in enumerate(x.shape))
    extent = chance.choice((1, 3, 5))
    return Application(
        (WantedOperand(one, x.dtype), WantedOperand(one, int64, below=extent)), {"axis": axis, "extent": extent}
    )


def of_ranks(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `topk`: any number of elements along any axis."""
    if not x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    flags = {"largest": chance.random() < 0.5, "ordered": True}
    return Application((like(x),), {"k": chance.randint(0, x.shape[axis]), "axis": axis, **flags})


def of_refitting(chance: random.Random, x: AbstractValue) -> Application:
    """Of `refit`: cut, or filled up with zeros, along every axis."""
    return Application((like(x),), {"shape": tuple(chance.randint(0, extent + 3) for extent in x.shape)})


def of_spreading(chance: random.Random, x: AbstractValue) -> Application:
    """Of `spread`: elements apart, zeros between them and behind them."""
    steps = tuple(chance.randint(1, 3) for _ in x.shape)
    shape = tuple(extent * step + chance.randint(0, 2) for extent, step in zip(x.shape, steps, strict=True))
    return Application((like(x),), {"shape": shape, "steps": steps})


def of_running_sums(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `cumsum`: along any axis, from either end."""
    if not x.shape:
        return None
    return Application((like(x),), {"axis": chance.randrange(len(x.shape)), "reverse": chance.random() < 0.5})


def of_counters(chance: random.Random, x: AbstractValue) -> Application:
    """Of `philox`: a counter of a value's shape, and one seed."""
    return Application((WantedOperand(x.shape, int64, below=1 << 20), WantedOperand((), int64, below=1 << 20)))


def of_orders(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `sort`: along any axis, in either order."""
    if not x.shape:
        return None
    return Application((like(x),), {"axis": chance.randrange(len(x.shape)), "descending": chance.random() < 0.5})


def of_whole_values(chance: random.Random, x: AbstractValue) -> Application:
    """Of what leaves a value as it is."""
    return Application((like(x),))
