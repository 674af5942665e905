"""Memory that users hand in to be written to (`out=`)."""

from __future__ import annotations

from typing import Any

import numpy
import torch

from tessera.errors import ArgumentError, DeviceError, DTypeError, ShapeMismatchError
from tessera.lazy import evaluation, issuing
from tessera.lazy.devices import CPU, is_cpu_memory
from tessera.lazy.leaves import sources, writes
from tessera.lazy.leaves.leaf import Leaf
from tessera.lazy.leaves.transfer import on_device
from tessera.lazy.node import Node


def evaluate_into(node: Node, out: torch.Tensor | numpy.ndarray[Any, Any]) -> None:
    """Evaluates a node into `out`, a torch tensor or numpy array of its shape and dtype; the node then is that tensor.

    Raises ShapeMismatchError, DTypeError, DeviceError (E_DEVICE) for memory of another device, and ArgumentError
    (E_ARGUMENT) where `out` overlaps an input or itself.
    """
    leaf = target_of(node, out)
    evaluation.evaluate_into(node, leaf)
    note_written(leaf)


def issue_into(node: Node, out: torch.Tensor | numpy.ndarray[Any, Any], stream: object) -> None:
    """As `evaluate_into`, by a stream; torch counts the write from the call on. Raises what `lazy.issuing.issue`
    raises, too.
    """
    leaf = target_of(node, out)
    issuing.issue_into(node, leaf, stream)
    note_written(leaf)
    node.store(leaf)


def target_of(node: Node, out: torch.Tensor | numpy.ndarray[Any, Any]) -> Leaf:
    """`out` as the leaf that a node's value can be written to. Raises as `evaluate_into` does."""
    leaf = writable_leaf(out, "out=")
    if leaf.shape != node.shape:
        raise ShapeMismatchError(f"out= of shape {leaf.shape} for a result of shape {node.shape}")
    if leaf.dtype is not node.dtype:
        raise DTypeError(f"out= of {leaf.dtype} for a result of {node.dtype}", hints=[f"allocate it in {node.dtype}"])
    device = node.structure.device or CPU
    if leaf.device != device and is_cpu_memory(leaf.device) and is_cpu_memory(device):
        leaf = on_device(leaf, device)
    if leaf.device != device:
        raise DeviceError(f"out= on {leaf.device} for a result on {device}", hints=[f"allocate it on {device}"])
    refuse_repeated(leaf, "out=")
    if leaf.overlaps(node.leaves):
        raise ArgumentError("out= shares memory with an input", hints=["pass other memory, or evaluate without out="])
    return leaf


def note_written(leaf: Leaf) -> None:
    """Tells torch that a leaf's memory was written to, or is going to be: autograd and later checks of inputs must see
    that, since kernels write behind torch's back.
    """
    if isinstance(leaf.owner, torch.Tensor) and not leaf.owner.is_inference():
        writes.note(leaf.owner)
        leaf.version = leaf.owner._version


def writable_leaf(memory: object, role: str) -> Leaf:
    """The leaf of a torch tensor or numpy array that may be written to; `role` names it in errors.

    Raises ArgumentError (E_ARGUMENT) for what is read-only, requires grad, or is something else.
    """
    if isinstance(memory, torch.Tensor):
        with torch.no_grad():
            if memory.requires_grad:
                raise ArgumentError(f"{role} of a tensor that requires grad", hints=["pass a tensor without gradient"])
            return sources.from_torch(memory)
    if isinstance(memory, numpy.ndarray):
        leaf = sources.from_numpy(memory)
        if leaf.owner is not memory or not memory.flags.writeable:
            raise ArgumentError(f"{role} of a read-only or byte-swapped array, or one with negative strides")
        return leaf
    raise ArgumentError(f"{role} of type {type(memory).__name__}", hints=[f"{role} is a torch tensor or a numpy array"])


def refuse_repeated(leaf: Leaf, role: str) -> None:
    """Raises ArgumentError (E_ARGUMENT) for memory of which two elements may be one: none are in an empty tensor."""
    if 0 in leaf.shape:
        return
    reached = 1
    for extent, stride in sorted(zip(leaf.shape, leaf.strides, strict=True), key=lambda pair: pair[1]):
        # Sufficient for distinct elements: each stride steps over all that the smaller ones reach.
        if extent > 1 and stride < reached:
            raise ArgumentError(f"{role} overlaps itself", hints=["pass a tensor without repeated elements"])
        reached += (extent - 1) * stride
