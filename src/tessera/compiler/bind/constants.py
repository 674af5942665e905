"""Constant operands of products: weights that are packed once, into the panels (`product/forms.py`) that tiles read.

One copy serves every number of rows and every schedule, since all schedules of a product with packed weights have
register tiles of that one width. The kernel reads it in place of the constant, through a slot of its own
(`runtime/derived.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tessera.compiler.bind.arrays import Call, Storage, View, over_others
from tessera.lazy.structure import contiguous_strides
from tessera.runtime.derived import derivation
from tessera.scheduling.binding.arrays import ShapedArrays
from tessera.scheduling.families.product.forms import PackedPanels, form_of, packed_argument
from tessera.scheduling.lowering.spec import (
    ContractionSpec,
    Spec,
    exact_load,
    loaded_arguments,
)
from tessera.target import Target


def packed_call(call: Call, spec: Spec, target: Target) -> Call:
    """The call over packed weights where the second operand of each product is a constant read as it is; else the call
    itself.
    """
    assert isinstance(spec, ContractionSpec)
    loads = [load for product in spec.products if (load := exact_load(product.b)) is not None]
    indices = [load.argument for load in loads]
    if len(set(indices)) < len(spec.products) or not all(_is_constant(call, index) for index in indices):
        return call
    others = {
        index for value in (spec.a, *(output.value for output in spec.outputs)) for index in loaded_arguments(value)
    }
    if not others.isdisjoint(indices) or not _known_elsewhere(call.shaped, indices):
        return call
    forms = [form_of(spec, product.b, call.shaped.extents["n"], target) for product in spec.products]
    if any(form.panels != forms[0].panels for form in forms):
        return call
    for index, form in zip(indices, forms, strict=True):
        call = over_panels(call, index, form, _constant_panels(call, index, form))
    return call


def _is_constant(call: Call, index: int) -> bool:
    """Whether an argument is a matrix, or several, that stays."""
    view, _ = call.arguments[index]
    walked = call.shaped.axes[index]
    return view.storage.frozen and view.storage.leaf is not None and {"k", "n"} <= set(walked)


def _constant_panels(call: Call, index: int, form: PackedPanels) -> View:
    """The packed copy that is kept with a constant."""
    view, _ = call.arguments[index]
    shaped = call.shaped
    walked = dict(zip(shaped.axes[index], shaped.strides[index], strict=True))
    axes = _packed_axes(shaped, index)
    shape, strides = tuple([shaped.extents[axis] for axis in axes]), tuple([walked[axis] for axis in axes])
    made = derivation(form, view.dtype, shape, strides, view.offset_bytes)
    return View(Storage(0, view.storage.leaf, derivation=made), view.dtype, view.shape, view.strides)


def is_packed(call: Call) -> bool:
    """Whether an operand of the call is packed."""
    return any(argument.panels is not None for argument in call.shaped.pattern.arguments)


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


def _known_elsewhere(shaped: ShapedArrays, indices: Sequence[int]) -> bool:
    """Whether other arguments walk all axes of these: kernels read extents there."""
    others = {axis for place, axes in enumerate(shaped.axes) if place not in indices for axis in axes}
    return all(others.issuperset(shaped.axes[index]) for index in indices)


def _packed_axes(shaped: ShapedArrays, index: int) -> tuple[str, ...]:
    return (*[axis for axis in shaped.axes[index] if axis not in ("k", "n")], "k", "n")


def over_panels(call: Call, index: int, form: PackedPanels, packed: View) -> Call:
    """The call with an operand's packed elements in its place."""
    panels, shaped = form.panels, call.shaped
    axes = _packed_axes(shaped, index)
    extents = form.shape(tuple([shaped.extents[axis] for axis in axes]))
    extents = extents if panels.group > 1 else extents[:-1]
    kind = packed_argument(shaped.pattern.arguments[index], form)
    return over_others(call, {index: (kind, packed, (*extents, *contiguous_strides(extents)))})
