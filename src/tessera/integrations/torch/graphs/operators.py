"""Operators that the backend adds to torch's, for what ATen says in a way that costs more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

_library: Any = torch.library.Library("tessera", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define(
    "max_pool2d_backward(Tensor grad, Tensor input, int[2] kernel, int[2] stride, int[2] padding, int[2] dilation, "
    "bool ceil_mode) -> Tensor"
)


def _computed(
    grad: torch.Tensor,
    x: torch.Tensor,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> torch.Tensor:
    windows = (kernel, stride, padding, dilation, ceil_mode)
    _, places = torch.ops.aten.max_pool2d_with_indices(x, *windows)
    result: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *windows, places)
    return result


def _fake(grad: torch.Tensor, x: torch.Tensor, *windows: object) -> torch.Tensor:
    return torch.empty_like(x)


_library.impl("max_pool2d_backward", _computed, "CompositeExplicitAutograd")
_library.impl("max_pool2d_backward", _fake, "Meta")

max_pool2d_backward = torch.ops.tessera.max_pool2d_backward.default
"""The gradient of max-pooling by the image alone: the places of maxima are looked for again instead of being kept."""
