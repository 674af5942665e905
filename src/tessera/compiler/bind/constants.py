"""Constant operands of products: weights that are packed once, into the panels that register tiles read.

    x [M, K] @ w [K, N]      ->      x [M, K] @ panels [N / 32, K, 32]      (bf16: [N / 32, K / 2, 32, 2])

One copy serves every number of rows and every schedule, since all schedules of a product with packed weights have
register tiles of that one width. The kernel reads it in place of the constant, through a slot of its own
(`runtime/derived.py`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from tessera.compiler.bind.arrays import Call, ShapedArrays, Storage, View
from tessera.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int8, int32
from tessera.lazy.structure import contiguous_strides
from tessera.runtime.derived import derivation
from tessera.scheduling.families.product.problem import UNIT_GROUPS
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.spec import (
    ContractionSpec,
    Panels,
    Spec,
    cast_dtypes,
    exact_load,
    loaded_arguments,
    under_cast,
)
from tessera.target import Target

Shape = tuple[int, ...]


@dataclass(frozen=True)
class PackedPanels:
    """A form (`runtime.derived.Form`): of a tensor [..., K, N] the panels [..., N / width, K / group, width, group].

    With `stored` the elements are kept in that dtype, which holds all of them.
    """

    panels: Panels
    stored: DType | None = None

    def shape(self, shape: Sequence[int]) -> Shape:
        """The extents of the copy, whose last dimension, `group`, may be 1."""
        *batch, k, n = shape
        width, group = self.panels.width, self.panels.group
        return (*batch, -(-n // width), self.panels.groups(k), width, group)

    def nbytes(self, shape: Shape, dtype: DType) -> int:
        """The size of the copy."""
        return math.prod(self.shape(shape)) * (self.stored or dtype).itemsize

    def fill(self, source: torch.Tensor, target: torch.Tensor) -> None:
        """Writes the panels, zero where K and N have no more elements."""
        shape = self.shape(tuple(source.shape))
        source = source if self.stored is None else source.to(self.stored.torch)
        integers = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[source.element_size()]
        panels, values = target.view(integers).view(shape), source.view(integers)  # bits: all dtypes are copied alike
        *_, k, n = source.shape
        width, group = self.panels.width, self.panels.group
        whole_n, whole_k = n // width, k // group
        if n % width:
            panels[..., whole_n:, :, :, :] = 0
        if whole_k < shape[-3]:
            panels[..., whole_k:, :, :] = 0
        _fill(panels[..., :whole_n, :whole_k, :, :], values[..., : whole_k * group, : whole_n * width])
        rest_n, rest_k = n - whole_n * width, k - whole_k * group
        if rest_n:
            last = panels[..., whole_n, :whole_k, :rest_n, :].unsqueeze(-4)
            _fill(last, values[..., : whole_k * group, whole_n * width :])
        if rest_k:
            _fill(
                panels[..., :whole_n, whole_k : whole_k + 1, :, :rest_k],
                values[..., whole_k * group :, : whole_n * width],
            )
        if rest_n and rest_k:
            corner = panels[..., whole_n, whole_k : whole_k + 1, :rest_n, :rest_k].unsqueeze(-4)
            _fill(corner, values[..., whole_k * group :, whole_n * width :])


def _fill(panels: torch.Tensor, values: torch.Tensor) -> None:
    """Writes values [..., k, n] to panels [..., n / width, k / group, width, group], all whole."""
    *batch, count, deep, width, group = panels.shape
    apart = values.view(*batch, deep, group, count, width)
    rank = len(batch)
    panels.copy_(apart.permute(*range(rank), rank + 2, rank, rank + 3, rank + 1))


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
    forms = [_form(spec, product.b, call.shaped.extents["n"], target) for product in spec.products]
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


def panels_of(spec: ContractionSpec, n: int, target: Target) -> tuple[int, PackedPanels] | None:
    """Which argument of a product can be packed, and how for `n` columns; None where its second operand is not read as
    it is, or for something else, too, or alone knows an extent: kernels read extents elsewhere then.
    """
    raw = exact_load(spec.b)
    if raw is None or spec.sibling is not None:
        return None
    index = raw.argument
    argument = spec.arguments[index]
    others = {axis for place, each in enumerate(spec.arguments) if place != index for axis in each.axes}
    is_plain = argument.panels is None and argument.counted is None and {"k", "n"} <= set(argument.axes) <= others
    values = (spec.a, *(output.value for output in spec.outputs))
    if not is_plain or any(index in loaded_arguments(value) for value in values):
        return None
    return index, _form(spec, spec.b, n, target)


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


def _form(spec: ContractionSpec, b: Value, n: int, target: Target) -> PackedPanels:
    """Panels of two vectors of sums, of one where there are no more columns or another product's sums stand beside.

    8-bit floats are kept in 16 bits: taking them apart in every kernel costs more than the bytes (Zen 4, 8 rows by 4096
    x 4096: 0.74 of the speed of fp32 as bytes, 1.1 as bf16).
    """
    raw_b, casts = exact_load(b), cast_dtypes(b)
    assert raw_b is not None
    dtype = raw_b.dtype
    wide = fp16 if fp16 in casts else bf16
    stored = wide if dtype in (fp8_e4m3, fp8_e5m2) else None
    raw = under_cast(spec.a).dtype, casts[1] if len(casts) > 1 else stored or dtype
    sums = spec.accumulator.dtype
    pairs = target.has_avx512bf16 and raw == (bf16, bf16) and sums == fp32
    quads = target.has_avx512vnni and raw == (int8, int8) and sums == int32
    lanes = max(target.vector_bits // (8 * sums.itemsize), target.vector_bits // 32)
    width = lanes if n <= lanes or spec.sibling is not None else 2 * lanes
    in_unit = (pairs and target.has_amx_bf16) or (quads and target.has_amx_int8)
    return PackedPanels(Panels(width, 4 if quads else 2 if pairs else 1, UNIT_GROUPS if in_unit else 1), stored)


def over_panels(call: Call, index: int, form: PackedPanels, packed: View) -> Call:
    """The call with an operand's packed elements in its place."""
    panels, shaped = form.panels, call.shaped
    axes = _packed_axes(shaped, index)
    extents = form.shape(tuple([shaped.extents[axis] for axis in axes]))
    extents = extents if panels.group > 1 else extents[:-1]
    arguments = list(call.arguments)
    arguments[index] = packed, (*extents, *contiguous_strides(extents))
    kinds = list(shaped.pattern.arguments)
    batch_n_k = (*axes[:-2], "n", "k")
    kinds[index] = replace(kinds[index], axes=batch_n_k, strides=(None,) * len(axes), panels=panels)
    if form.stored is not None:
        kinds[index] = replace(kinds[index], dtype=form.stored)
    pattern = replace(shaped.pattern, arguments=tuple(kinds))
    return Call(call.item, tuple(arguments), shaped._replace(pattern=pattern))
