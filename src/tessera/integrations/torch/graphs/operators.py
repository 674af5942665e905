"""Operators that the backend adds to torch's, for what ATen says in a way that costs more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

_library: Any = torch.library.Library("tessera", "FRAGMENT")  # type: ignore[no-untyped-call]


def _max_pool_backward(sides: int) -> Any:
    """The operator of pools over so many sides."""
    name = f"max_pool{sides}d_backward"
    windows = ", ".join(f"int[{sides}] {each}" for each in ("kernel", "stride", "padding", "dilation"))
    _library.define(f"{name}(Tensor grad, Tensor input, {windows}, bool ceil_mode) -> Tensor")
    forward = getattr(torch.ops.aten, f"max_pool{sides}d_with_indices")
    backward = getattr(torch.ops.aten, f"max_pool{sides}d_with_indices_backward")

    def computed(grad: torch.Tensor, x: torch.Tensor, *windows: Any) -> torch.Tensor:
        _, places = forward(x, *windows)
        result: torch.Tensor = backward(grad, x, *windows, places)
        return result

    def fake(grad: torch.Tensor, x: torch.Tensor, *windows: Any) -> torch.Tensor:
        return torch.empty_like(x)

    _library.impl(name, computed, "CompositeExplicitAutograd")
    _library.impl(name, fake, "Meta")
    return getattr(torch.ops.tessera, name).default


max_pool_backward: Mapping[int, Any] = {sides: _max_pool_backward(sides) for sides in (2, 3)}
"""The gradient of max-pooling by the image or volume alone, by the number of sides: the places of maxima are looked for
again instead of being kept.
"""

_library.define("checked_targets(Tensor target, SymInt classes, int ignored) -> Tensor")


def _checked(target: torch.Tensor, classes: int, ignored: int) -> torch.Tensor:
    wrong = target[((target < 0) | (target >= classes)) & (target != ignored)]
    if wrong.numel():
        raise IndexError(f"Target {wrong[0].item()} is out of bounds.")
    return target.clone()


def _fake_checked(target: torch.Tensor, classes: int, ignored: int) -> torch.Tensor:
    return torch.empty_like(target)


_library.impl("checked_targets", _checked, "CompositeExplicitAutograd")
_library.impl("checked_targets", _fake_checked, "Meta")

checked_targets = torch.ops.tessera.checked_targets.default
"""Numbers of classes as they are, refused (IndexError) where there is no such class and it is not the ignored one."""

_library.define("log_softmax_gradient(Tensor grad, Tensor input, int axis) -> Tensor")


def _log_softmax_gradient(grad: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.ops.aten._log_softmax_backward_data(grad, x.log_softmax(axis), axis, x.dtype)  # type: ignore[no-any-return]


def _fake_log_softmax_gradient(grad: torch.Tensor, x: torch.Tensor, axis: int) -> torch.Tensor:
    return torch.empty_like(grad)


_library.impl("log_softmax_gradient", _log_softmax_gradient, "CompositeExplicitAutograd")
_library.impl("log_softmax_gradient", _fake_log_softmax_gradient, "Meta")

log_softmax_gradient = torch.ops.tessera.log_softmax_gradient.default
"""The gradient of log_softmax by its operand instead of its result."""
