"""Memory that users hand in to be written to (`out=`)."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from tessera.errors import ArgumentError, DeviceError, DTypeError, ShapeMismatchError
from tessera.lazy import evaluation, sources
from tessera.lazy.devices import CPU, is_cpu_memory
from tessera.lazy.leaf import Leaf
from tessera.lazy.node import Node
from tessera.lazy.transfer import on_device


def evaluate_into(node: Node, out: torch.Tensor | numpy.ndarray[Any, Any]) -> None:
    """Evaluates a node into `out`, a torch tensor or numpy array of its shape and dtype; the node then is that tensor.

    Raises ShapeMismatchError, DTypeError, DeviceError (E_DEVICE) for memory of another device, and ArgumentError
    (E_ARGUMENT) where `out` overlaps an input or itself.
    """
    leaf = _leaf_of(out)
    if leaf.shape != node.shape:
        raise ShapeMismatchError(f"out= of shape {leaf.shape} for a result of shape {node.shape}")
    if leaf.dtype is not node.dtype:
        raise DTypeError(f"out= of {leaf.dtype} for a result of {node.dtype}", hints=[f"allocate it in {node.dtype}"])
    device = node.structure.device or CPU
    if leaf.device != device and is_cpu_memory(leaf.device) and is_cpu_memory(device):
        leaf = on_device(leaf, device)
    if leaf.device != device:
        raise DeviceError(f"out= on {leaf.device} for a result on {device}", hints=[f"allocate it on {device}"])
    _refuse_overlap(leaf, node.leaves)
    evaluation.evaluate_into(node, leaf)
    if isinstance(out, torch.Tensor) and not out.is_inference():
        # Kernels write behind torch's back; autograd and later checks of inputs must see that.
        torch.autograd.graph.increment_version(out)
        leaf.version = out._version


def _leaf_of(out: object) -> Leaf:
    if isinstance(out, torch.Tensor):
        with torch.no_grad():
            if out.requires_grad:
                raise ArgumentError("out= of a tensor that requires grad", hints=["pass a tensor without gradient"])
            return sources.from_torch(out)
    if isinstance(out, numpy.ndarray):
        leaf = sources.from_numpy(out)
        if leaf.owner is not out or not out.flags.writeable:
            raise ArgumentError("out= of a read-only or byte-swapped array, or one with negative strides")
        return leaf
    raise ArgumentError(f"out= of type {type(out).__name__}", hints=["out= is a torch tensor or a numpy array"])


def _refuse_overlap(out: Leaf, inputs: tuple[Leaf, ...]) -> None:
    reached = 1
    for extent, stride in sorted(zip(out.shape, out.strides, strict=True), key=lambda pair: pair[1]):
        # Sufficient for distinct elements: each stride steps over all that the smaller ones reach.
        if extent > 1 and stride < reached:
            raise ArgumentError("out= overlaps itself", hints=["pass a tensor without repeated elements"])
        reached += (extent - 1) * stride
    if out.overlaps(inputs):
        raise ArgumentError("out= shares memory with an input", hints=["pass other memory, or evaluate without out="])
