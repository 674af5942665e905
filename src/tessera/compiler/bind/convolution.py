"""Convolutions of a program as kernels see them: their arrays over merged axes, and their packed weights.

    image [N, H, W, C]              ->  [N, (G,) H, x, W, C / G]     element (x, w) is column  stride x + w
    weights [O, C / G, KH, KW]      ->  panels [G O' KH KW C / G, 32]   (bf16: [..., 32, 2])
    result [N, OH, OW, O]           ->  [N, (G,) y, x, O / G]

A window of one pixel without padding walks the image as the result is walked: images, rows and columns that follow each
other in memory are then one row of pixels, and the convolution is a plain matrix product.
"""

from __future__ import annotations

import math

import torch

from tessera.compiler.bind.arrays import Call, Storage, View, over_others
from tessera.lazy.structure import contiguous_strides
from tessera.runtime.derived import derivation
from tessera.scheduling.families.convolution.weights import (
    GROUPS,
    form_of,
    is_packed,
    packed_argument,
    weights_layout,
)
from tessera.scheduling.lowering.spec import ConvolutionSpec, Spec
from tessera.target import Target


def packed_weights(call: Call, spec: Spec, target: Target) -> Call:
    """The call over packed weights where they are a constant (`op.constant`), with which the copy is kept; else the
    call itself.
    """
    assert isinstance(spec, ConvolutionSpec)
    index, shaped = spec.weights, call.shaped
    view, _ = call.arguments[index]
    if not view.storage.frozen or view.storage.leaf is None:
        return call
    strides = dict(zip(shaped.axes[index], shaped.strides[index], strict=True))
    shape, own = weights_layout(shaped.extents, strides)
    form = form_of(spec, view.dtype, shaped.extents["n"], target)
    made = derivation(form, view.dtype, shape, own, view.offset_bytes)
    kind, rows = packed_argument(form, shape)
    packed = View(Storage(0, view.storage.leaf, derivation=made), view.dtype, view.shape, view.strides)
    return over_others(call, {index: (kind, packed, (*rows, *contiguous_strides(rows)))})


def packed_weights_of(call: Call) -> int | None:
    """The number of the argument that holds packed weights; None where they are not packed."""
    found = [index for index, argument in enumerate(call.shaped.pattern.arguments) if is_packed(argument)]
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
