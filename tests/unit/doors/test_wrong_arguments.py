"""Arguments of a wrong kind are refused as Tessera's errors at the call, not as errors from inside of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import op
from tessera.errors import ArgumentError

IMAGE, WINDOW, MATRIX, FOUR = torch.ones(1, 4, 8, 8), torch.ones(4, 4, 3, 3), torch.ones(4, 6), torch.ones(4)

CALLS: dict[str, Callable[[Any], Any]] = {
    "conv2d stride": lambda value: op.conv2d(IMAGE, WINDOW, stride=value),
    "conv2d padding": lambda value: op.conv2d(IMAGE, WINDOW, padding=value),
    "conv2d dilation": lambda value: op.conv2d(IMAGE, WINDOW, dilation=value),
    "conv2d groups": lambda value: op.conv2d(IMAGE, WINDOW, groups=value),
    "conv2d layout": lambda value: op.conv2d(IMAGE, WINDOW, layout=value),
    "avg_pool2d divisor_override": lambda value: op.avg_pool2d(IMAGE, 2, divisor_override=value),
    "batch_norm eps": lambda value: op.batch_norm(IMAGE, FOUR, FOUR, eps=value),
    "layer_norm eps": lambda value: op.layer_norm(MATRIX, eps=value),
    "rms_norm eps": lambda value: op.rms_norm(MATRIX, eps=value),
    "pad widths": lambda value: op.pad(MATRIX, value),
    "pad value": lambda value: op.pad(MATRIX, (1, 1), value=value),
    "full shape": lambda value: op.full(value, 1.0),
    "stack tensors": op.stack,
    "concat tensors": op.concat,
    "fft2 sizes": lambda value: op.fft2(MATRIX, s=value),
    "fft2 axes": lambda value: op.fft2(MATRIX, axes=value),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("value", ["x", {"a": 1}, object()], ids=["text", "dict", "object"])
def test_what_is_neither_a_number_nor_several_is_refused(name: str, value: object) -> None:
    with pytest.raises(ArgumentError) as caught:
        CALLS[name](value)
    assert __file__ in str(caught.value)  # the user's line


@pytest.mark.parametrize("name", ["pad widths", "stack tensors", "concat tensors", "fft2 axes"])
@pytest.mark.parametrize("value", [None, 1, 1.5, True])
def test_one_is_not_several(name: str, value: object) -> None:
    with pytest.raises(ArgumentError, match="a list or a tuple"):
        CALLS[name](value)
