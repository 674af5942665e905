"""How ATen operators are taken apart before they are mapped: torch's own tables, but for what has a row."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions, get_decompositions

from tessera.integrations.torch.graphs import foreach, losses, randomness
from tessera.integrations.torch.graphs.operators import max_pool_backward
from tessera.integrations.torch.mapping import MAPPING
from tessera.integrations.torch.options import Random

aten = torch.ops.aten

FURTHER = (
    aten.elu,
    aten.elu_backward,
    aten.gelu_backward,
    aten.grid_sampler_2d,
    aten.hardswish_backward,
    aten.index_copy,
    aten.linalg_vector_norm,
    aten.mse_loss,
    aten.mse_loss_backward,
    aten.native_batch_norm_backward,
    aten.native_dropout,
    aten.native_group_norm_backward,
    aten.native_layer_norm_backward,
    aten.silu_backward,
    aten.smooth_l1_loss_backward,
    aten.upsample_bicubic2d,
    aten.upsample_bilinear2d,
    aten.upsample_trilinear3d,
)
"""What is taken apart beside the operators that torch takes apart into its core."""


def _max_pool_backward(sides: int) -> Callable[..., torch.Tensor]:
    def apart(grad: torch.Tensor, x: torch.Tensor, kernel: Any, stride: Any, *rest: Any) -> torch.Tensor:
        *windows, _ = rest  # the places of maxima come last
        result: torch.Tensor = max_pool_backward[sides](grad, x, kernel, stride or kernel, *windows)
        return result

    return apart


def _stable_sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """A sort that keeps the order of equal elements, where torch promises none."""
    values, indices = aten.sort.stable(x, stable=True, dim=dim, descending=descending)
    return values, indices


def _made_stable(x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return NotImplemented if stable else _stable_sort(x, dim, descending)


LOSSES: dict[Any, Callable[..., Any]] = {
    aten.nll_loss_forward.default: losses.nll_loss_forward,
    aten.nll_loss2d_forward.default: losses.nll_loss_forward,
    aten.nll_loss_backward.default: losses.nll_loss_backward,
    aten.nll_loss2d_backward.default: losses.nll_loss_backward,
}


@cache
def decompositions(random: Random = "generator") -> dict[Any, Callable[..., Any]]:
    """The function that takes an operator apart, by overload; dropout by where its random numbers come from."""
    found: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    found.update(get_decompositions(FURTHER))
    found.update(foreach.decompositions())
    for target in MAPPING:
        found.pop(target, None)
    found[aten.max_pool2d_with_indices_backward.default] = _max_pool_backward(2)
    found[aten.max_pool3d_with_indices_backward.default] = _max_pool_backward(3)
    found.update(LOSSES)
    found.update({aten.sort.default: _stable_sort, aten.sort.stable: _made_stable})
    for target, function in randomness.decompositions(random).items():
        if function is None:
            found.pop(target, None)
        else:
            found[target] = function
    return found
