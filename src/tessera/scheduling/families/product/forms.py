"""Panels in memory: how the second operand of a product lies where it was packed, and which operands can be.

w [K, N]      ->      panels [N / 32, K, 32]      (bf16: [N / 32, K / 2, 32, 2])
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from tessera.dtypes import DType, bf16, fp8_e4m3, fp8_e5m2, fp16, fp32, int8, int32
from tessera.scheduling.families.family import Packed
from tessera.scheduling.language.expression import Value
from tessera.scheduling.lowering.microkernel.matrix_unit import UNIT_ROWS
from tessera.scheduling.lowering.spec import (
    Argument,
    ContractionSpec,
    Panels,
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


def packed_argument(argument: Argument, form: PackedPanels) -> Argument:
    """The argument of a kernel that reads an operand's panels."""
    batch = tuple([axis for axis in argument.axes if axis not in ("k", "n")])
    axes, dtype = (*batch, "n", "k"), form.stored or argument.dtype
    return replace(argument, dtype=dtype, axes=axes, strides=(None,) * len(axes), panels=form.panels)


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
    return index, form_of(spec, spec.b, n, target)


def form_of(spec: ContractionSpec, b: Value, n: int, target: Target) -> PackedPanels:
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
    pairs = target.multiplies_bf16_pairs and raw == (bf16, bf16) and sums == fp32
    quads = target.has_avx512vnni and raw == (int8, int8) and sums == int32
    lanes = max(target.vector_bits // (8 * sums.itemsize), target.vector_bits // 32)
    width = lanes if n <= lanes or spec.sibling is not None else 2 * lanes
    in_unit = (pairs and target.has_amx_bf16) or (quads and target.has_amx_int8)
    return PackedPanels(Panels(width, 4 if quads else 2 if pairs else 1, UNIT_ROWS if in_unit else 1), stored)


def constant_panels(
    spec: ContractionSpec, extents: Mapping[str, int], constants: Mapping[int, Sequence[int]], target: Target
) -> Mapping[int, Packed]:
    """The second operands of products as kernels read them, where all of them are constants read as they are."""
    loads = [load for product in spec.products if (load := exact_load(product.b)) is not None]
    indices = [load.argument for load in loads]
    if len(set(indices)) < len(spec.products) or not all(_is_constant(spec, index, constants) for index in indices):
        return {}
    values = (spec.a, *(output.value for output in spec.outputs))
    if any(index in loaded_arguments(value) for value in values for index in indices):
        return {}
    # Kernels read extents of others.
    others = {axis for place, each in enumerate(spec.arguments) if place not in indices for axis in each.axes}
    if not all(others.issuperset(spec.arguments[index].axes) for index in indices):
        return {}
    forms = [form_of(spec, product.b, extents["n"], target) for product in spec.products]
    if any(form.panels != forms[0].panels for form in forms):
        return {}
    return {
        index: _packed(spec, index, form, extents, constants[index]) for index, form in zip(indices, forms, strict=True)
    }


def _is_constant(spec: ContractionSpec, index: int, constants: Mapping[int, Sequence[int]]) -> bool:
    """Whether an argument is a matrix, or several, that stays."""
    return index in constants and {"k", "n"} <= set(spec.arguments[index].axes)


def _packed(
    spec: ContractionSpec, index: int, form: PackedPanels, extents: Mapping[str, int], strides: Sequence[int]
) -> Packed:
    argument = spec.arguments[index]
    walked = dict(zip(argument.axes, strides, strict=True))
    axes = (*[axis for axis in argument.axes if axis not in ("k", "n")], "k", "n")
    shape = tuple([extents[axis] for axis in axes])
    panels = form.shape(shape)
    inner = panels if form.panels.group > 1 else panels[:-1]
    return Packed(form, shape, tuple([walked[axis] for axis in axes]), packed_argument(argument, form), inner)
