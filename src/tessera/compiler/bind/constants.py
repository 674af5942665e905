"""Constant operands: copies that are made once, in the form in which kernels read them, and kept with the constant.

One copy of weights serves every number of rows and every schedule of a product: all schedules over packed weights have
register tiles of that one width. The kernel reads it in place of the constant, through a slot of its own
(`runtime/memory/derived.py`). Families say which constants are packed, and how.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import torch

from tessera.compiler.bind.arrays import Call, Storage, View
from tessera.compiler.bind.subjects import Subject
from tessera.compiler.graph.memo import Table
from tessera.lazy.structures.structure import contiguous_strides
from tessera.runtime.memory.derived import Derivation, derivation
from tessera.scheduling.binding.arrays import Pattern
from tessera.scheduling.families.convolution.weights import GROUPS
from tessera.scheduling.families.convolution.weights import is_packed as are_weights
from tessera.scheduling.families.family import PackedBy


class _Copies(NamedTuple):
    """What a kernel reads in the place of its constants: by argument the copy, and the words of its descriptor."""

    copies: Mapping[int, tuple[Derivation, tuple[int, ...]]]
    pattern: Pattern


_COPIES: Final = Table[tuple[tuple[int, tuple[int, ...], int], ...], _Copies | None](
    "constants that a kernel reads packed"
)


def over_constants(call: Call, subject: Callable[[Call], Subject], packed: PackedBy) -> Call:
    """The call over the packed copies that are kept with its constants; `subject` gives what the call is, `packed` says
    which constants are. Found once for each layout and constant's shape.
    """
    found = []
    for index, (view, words) in enumerate(call.arguments):
        if view.storage.frozen and view.storage.leaf is not None:
            found.append((index, words, view.offset_bytes))
    if not found:
        return call
    owner = subject(call)
    known, key = owner.memo.of(_COPIES), tuple(found)
    if key not in known:
        known[key] = _copies(call, owner, [index for index, _, _ in found], packed)
    made = known[key]
    if made is None:
        return call
    arguments = list(call.arguments)
    for index, (derived, words) in made.copies.items():
        view, _ = arguments[index]
        arguments[index] = View(Storage(0, view.storage.leaf, derivation=derived), *view[1:4]), words
    return Call(call.item, tuple(arguments), call.shaped._replace(pattern=made.pattern))


def _copies(call: Call, subject: Subject, constants: Sequence[int], packed: PackedBy) -> _Copies | None:
    strides = {index: call.shaped.strides[index] for index in constants}
    found = packed(subject.spec, call.shaped.extents, strides, subject.target)
    if not found:
        return None
    copies = {}
    kinds = list(call.shaped.pattern.arguments)
    for index, each in found.items():
        view, _ = call.arguments[index]
        derived = derivation(each.form, view.dtype, each.shape, each.strides, view.offset_bytes)
        copies[index] = derived, (*each.extents, *contiguous_strides(each.extents))
        kinds[index] = each.kind
    return _Copies(copies, replace(call.shaped.pattern, arguments=tuple(kinds)))


def is_packed(call: Call) -> bool:
    """Whether an operand of the call is packed: the second one of a product, or a convolution's weights."""
    return any(argument.panels is not None or are_weights(argument) for argument in call.shaped.pattern.arguments)


def packed_note(call: Call) -> str:
    """What to tell users about the packed operand of a call; nothing where there is none."""
    for (view, _), argument in zip(call.arguments, call.shaped.pattern.arguments, strict=True):
        if argument.panels is not None:
            what = "reads a constant packed in" if view.storage.derivation is not None else "all workers share"
            return f"; {what} panels of {argument.panels.width} columns"
    return ""


def operand_of(call: Call, index: int, panels: torch.Tensor) -> torch.Tensor:
    """The operand that panels hold, in the extents of the argument that they stand for."""
    form, shaped = call.shaped.pattern.arguments[index].panels, call.shaped
    assert form is not None
    whole = panels if form.group > 1 else panels.unsqueeze(-1)
    *batch, count, deep, width, group = whole.shape
    places = range(len(batch))
    rows = whole.permute(*places, len(batch) + 1, len(batch) + 3, len(batch), len(batch) + 2)
    matrix = rows.reshape(*batch, deep * group, count * width)[..., : shaped.extents["k"], : shaped.extents["n"]]
    view, alignment = call.arguments[index][0], call.item.loads[index][1]
    rank = len(call.item.domain)
    inner = [alignment.index(rank - 1), alignment.index(rank - (3 if shaped.pattern.turned else 2))]
    outer = sorted(set(range(len(alignment))) - set(inner), key=lambda place: alignment[place] or 0)
    order = [*outer, *inner]
    apart = matrix.reshape(*[view.shape[place] for place in order])
    return apart.permute(*[order.index(place) for place in range(len(order))])


def packed_weights_of(call: Call) -> int | None:
    """The number of the argument that holds packed weights; None where they are not packed."""
    found = [index for index, argument in enumerate(call.shaped.pattern.arguments) if are_weights(argument)]
    return found[0] if found else None


def unpacked(call: Call, panels: torch.Tensor) -> torch.Tensor:
    """The weights [O, C / G, KH, KW] that panels, as kernels walk them, hold."""
    extents = call.shaped.extents
    width, group = panels.shape[1], panels.shape[2] if panels.ndim > 2 else 1
    groups, outputs, depth = extents.get(GROUPS, 1), extents["n"], extents["c"]
    window, number = (extents["kh"], extents["kw"]), -(-outputs // width)
    pairs = panels.shape[0] // max(1, groups * number * math.prod(window))
    whole = panels.reshape(groups, number, *window, pairs, width, group)
    channels = pairs * group
    weights = whole.permute(0, 1, 5, 4, 6, 2, 3).reshape(groups, number * width, channels, *window)
    return weights[:, :outputs, :depth].reshape(groups * outputs, depth, extents["kh"], extents["kw"])
