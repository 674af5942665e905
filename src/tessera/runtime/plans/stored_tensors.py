"""Tensors in artefacts: shape, strides and dtype as JSON, the elements as a blob."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from tessera.errors import ArtefactError
from tessera.runtime.plans.stored_plan import Blobs


def plain_tensor(tensor: torch.Tensor, blobs: Blobs) -> dict[str, Any]:
    """A tensor as JSON, its elements as a blob."""
    if tensor.layout != torch.strided or tensor.device.type != "cpu":
        raise ArtefactError(f"a constant of layout {tensor.layout} on {tensor.device} cannot be written down")
    once = tensor.detach()[_each_once(tensor.stride())].contiguous()
    return {
        "blob": blobs.keep(once.reshape(-1).view(torch.uint8).numpy().tobytes()),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "strides": list(tensor.stride()),
    }


def tensor_of(given: dict[str, Any], content: Callable[[int], memoryview]) -> torch.Tensor:
    """The tensor that `plain_tensor` has told of, in memory of its own, as it lay: plans read it by its strides."""
    shape, strides = given["shape"], given["strides"]
    made = torch.empty_strided(shape, strides, dtype=getattr(torch, given["dtype"]), device="cpu")
    if made.numel():
        once = made[_each_once(strides)]
        once.copy_(torch.frombuffer(content(given["blob"]), dtype=torch.uint8).view(made.dtype).view(once.shape))
    return made


def _each_once(strides: Sequence[int]) -> tuple[slice, ...]:
    """The index of the elements without repetitions, which have a stride of 0."""
    return tuple(slice(None if stride else 1) for stride in strides)
