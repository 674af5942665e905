"""Rules of operators that move elements."""

from __future__ import annotations

import math
import random

from tessera.ops.applications.rule import AbstractValue, Application, WantedOperand, like


def of_reshapes(chance: random.Random, x: AbstractValue) -> Application:
    """Of `reshape`: all in one dimension, two neighbours joined, one taken apart, an extent of 1 added."""
    shape = list(x.shape)
    kind = chance.choice(("flat", "join", "part", "one"))
    at = chance.randint(0, len(shape))
    if kind == "flat":
        shape = [math.prod(shape)]
    elif kind == "join" and at + 1 < len(shape):
        shape[at : at + 2] = [shape[at] * shape[at + 1]]
    elif kind == "part" and at < len(shape) and shape[at]:
        first = chance.choice([count for count in (1, 2, 3, 4, 5, 7, 16) if shape[at] % count == 0])
        shape[at : at + 1] = [first, shape[at] // first]
    else:
        shape.insert(at, 1)
    return Application((like(x),), {"shape": tuple(shape)})


def of_broadcasts(chance: random.Random, x: AbstractValue) -> Application:
    """Of `broadcast_to`: extents of 1 repeated, and maybe a dimension more in front."""
    shape = tuple(chance.choice((1, 2, 7)) if extent == 1 else extent for extent in x.shape)
    return Application((like(x),), {"shape": (*chance.choice(((), (1,), (3,))), *shape)})


def of_transposes(chance: random.Random, x: AbstractValue) -> Application:
    """Of `transpose`: any order of the dimensions."""
    return Application((like(x),), {"permutation": tuple(chance.sample(range(len(x.shape)), len(x.shape)))})


def of_slices(chance: random.Random, x: AbstractValue) -> Application:
    """Of `slice`: any part, in steps, forwards and backwards."""
    starts, sizes, steps = [], [], []
    for extent in x.shape:
        step = chance.choice((1, 1, 1, 2, 3, -1, -2))
        start = chance.choice((0, 0, chance.randint(0, extent)))
        if step < 0:
            start = max(extent - 1 - start, 0)
        most = -(-(extent - start) // step) if step > 0 else (start // -step + 1 if extent else 0)
        sizes.append(chance.choice((most, most, chance.randint(min(1, most), most))))
        starts.append(start)
        steps.append(step)
    return Application((like(x),), {"starts": tuple(starts), "sizes": tuple(sizes), "steps": tuple(steps)})


def of_concatenations(chance: random.Random, x: AbstractValue) -> Application | None:
    """Of `concat`: up to four parts, of different extents along the axis."""
    if not x.shape:
        return None
    axis = chance.randrange(len(x.shape))
    extents = [chance.choice((x.shape[axis], x.shape[axis], 1, 3, 0)) for _ in range(chance.randint(0, 3))]
    parts = [WantedOperand((*x.shape[:axis], extent, *x.shape[axis + 1 :]), x.dtype) for extent in extents]
    parts.insert(chance.randint(0, len(parts)), like(x))
    return Application(tuple(parts), {"axis": axis})


PAD_MODES = ("constant", "reflect", "replicate", "circular")


def _widest(mode: str, extent: int) -> int:
    """How much padding is drawn at most for an extent in a mode."""
    if mode == "reflect":
        return min(max(extent - 1, 0), 3)
    return 3 if mode == "constant" else min(extent, 3)


def of_padding(chance: random.Random, x: AbstractValue) -> Application:
    """Of `pad`: in all modes, by different amounts at the two ends of each axis."""
    mode = chance.choice(PAD_MODES)
    most = [_widest(mode, extent) for extent in x.shape]
    before, after = (tuple(chance.randint(0, width) for width in most) for _ in range(2))
    filling = (WantedOperand((), x.dtype),) if mode == "constant" else ()
    return Application((like(x), *filling), {"before": before, "after": after, "mode": mode})


def of_numbering(chance: random.Random, x: AbstractValue) -> Application:
    """Of `iota`: the numbers of a value's elements, or those along one of its axes."""
    if x.shape and chance.random() < 0.7:
        axis = chance.randrange(len(x.shape))
        return Application((), {"shape": tuple(extent if d == axis else 1 for d, extent in enumerate(x.shape))})
    return Application((), {"shape": x.shape})
