"""Compiled results against references, in memory that was poisoned before."""

from __future__ import annotations

import ctypes

import torch

from tessera.dtypes import DType
from tessera.handle import Tensor
from tessera.lazy.node import joined
from tessera.ops import oracle
from tessera.runtime.memory import buffers
from tessera.runtime.plans.plan import BoundPlan

RELATIVE = {"fp64": 1e-13, "fp32": 2e-6, "fp16": 2.0**-10, "bf16": 2.0**-7, "fp8_e4m3": 2.0**-3, "fp8_e5m2": 2.0**-2}
"""The error of one operator by the dtype of its result: a few units in the last place."""

POISON_BYTE = 0xFF
"""NaN in every floating-point format, -1 in integers, and no bool at all."""


def poison(nbytes: int, blocks: int = 4) -> None:
    """Fills blocks of a size with poison and gives them back: the next results of that size lie there."""
    taken = [buffers.allocate(nbytes) for _ in range(blocks)]
    for block in taken:
        ctypes.memset(block.address, POISON_BYTE, nbytes)


def poison_plan(plan: BoundPlan) -> None:
    """Poisons the scratch memory that the next run of a plan will find."""
    if plan.arena_bytes:
        poison(plan.arena_bytes)
    for frame in plan.frames.idle:
        if frame.workspace is not None:
            ctypes.memset(frame.workspace.address, POISON_BYTE, frame.workspace.nbytes)


def evaluated(tensor: Tensor) -> torch.Tensor:
    """The compiled result of a pending tensor, computed twice: as it comes, and with all memory poisoned first.

    Asserts that both are the same, bit for bit.
    """
    second = Tensor(tensor.state)
    plan_holder = tensor.structure
    nbytes = tensor.size * tensor.dtype.itemsize
    poison(nbytes)
    first_result = tensor.torch().clone()
    if plan_holder.plan is not None:
        assert isinstance(plan_holder.plan, BoundPlan)
        poison_plan(plan_holder.plan)
    poison(nbytes)
    assert_same_bits(second.torch(), first_result)
    return first_result


def evaluated_together(tensors: list[Tensor]) -> list[torch.Tensor]:
    """The compiled results of several pending tensors in one evaluation, in poisoned memory."""
    from tessera.lazy.evaluation import evaluate

    structure, _ = joined(tensors)
    again = [Tensor(tensor.state) for tensor in tensors]
    evaluate(tensors)
    if isinstance(structure.plan, BoundPlan):
        poison_plan(structure.plan)
    for tensor in tensors:
        poison(tensor.size * tensor.dtype.itemsize)
    evaluate(again)
    results = [tensor.torch() for tensor in tensors]
    for tensor, result in zip(again, results, strict=True):
        assert_same_bits(tensor.torch(), result)
    return results


def assert_same_bits(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Asserts equality of every bit; NaNs are all alike."""
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    if result.is_complex():
        result, expected = torch.view_as_real(result), torch.view_as_real(expected)
    if result.is_floating_point():
        if result.itemsize == 1:  # torch compares few 8-bit floats; fp32 holds all of them
            result, expected = result.float(), expected.float()
        same = (result == expected) & (result.signbit() == expected.signbit()) | (result.isnan() & expected.isnan())
    else:
        same = result == expected
    assert bool(same.all()), f"{int((~same).sum())} of {same.numel()} elements differ, the first at {_first(~same)}"


def assert_close(
    result: torch.Tensor, reference: torch.Tensor, dtype: DType, scale: torch.Tensor | float = 0.0
) -> None:
    """Asserts that a result is its float64 reference rounded to `dtype`, NaN and infinities included.

    The error may be `RELATIVE` times the larger of the reference and `scale`, the magnitude of what was added up.
    """
    assert tuple(result.shape) == tuple(reference.shape)
    assert result.dtype == dtype.torch
    if dtype.kind != "float":
        assert_same_bits(result, reference.to(dtype.torch))
        return
    rounded, value = reference.to(dtype.torch).double(), result.double()
    same = (value == rounded) | (value.isnan() & rounded.isnan())
    info = torch.finfo(dtype.torch)
    least = 4 * info.smallest_normal * info.eps
    bound = RELATIVE[dtype.name] * torch.maximum(rounded.abs(), torch.as_tensor(scale, dtype=torch.float64)) + least
    wrong = ~(same | ((value - rounded).abs() <= bound))
    # Next to the largest number the last rounding decides between it and infinity.
    edge = min(0.99, 1 - info.eps) * info.max
    wrong &= ~((value.abs() >= edge) & (rounded.abs() >= edge) & (value.sign() == rounded.sign()))
    assert not bool(wrong.any()), _explain(wrong, value, reference)


def reference(tensor: Tensor) -> torch.Tensor:
    """The float64 value of a pending tensor by its operators' references."""
    return oracle.reference(tensor)


def _first(flags: torch.Tensor) -> list[int]:
    return [int(i) for i in flags.nonzero()[0]]


def _explain(wrong: torch.Tensor, value: torch.Tensor, expected: torch.Tensor) -> str:
    place = _first(wrong)
    return (
        f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {place}: "
        f"{value[tuple(place)].item()!r} instead of {expected[tuple(place)].item()!r}"
    )
