"""How the arguments of a call lie, as far as schedules depend on it."""

from __future__ import annotations

import math

from tessera.compiler.bind.arrays import Call
from tessera.scheduling.families.family import WIDEST_ACCESS_BYTES, Layouts
from tessera.scheduling.lowering.spec import Spec


def layouts_of(spec: Spec, call: Call, unaligned: frozenset[int] = frozenset()) -> Layouts:
    """How the arguments of a kernel lie in a call; the addresses of slots in `unaligned` may be anything."""
    found: dict[int, tuple[int, int]] = {}
    for index, (argument, (view, words)) in enumerate(zip(spec.arguments, call.arguments, strict=True)):
        if view.is_scalar:
            continue
        itemsize = argument.dtype.itemsize
        if 1 not in argument.strides or view.storage.slot in unaligned:
            found[index] = itemsize, itemsize
            continue
        unit, rank = argument.strides.index(1), len(words) // 2
        strides = [stride * itemsize for dim, stride in enumerate(words[rank:]) if dim != unit]
        divided = math.gcd(WIDEST_ACCESS_BYTES, view.offset_bytes, *strides)
        found[index] = divided, math.gcd(divided, words[unit] * itemsize)
    return found
