"""Tensor maps (`CUtensorMap`): what the bulk copy engine of Hopper and later reads tiles of a tensor by.

The driver encodes them (`cuTensorMapEncodeTiled`); extents, strides and box are given with the innermost dimension
first, strides in bytes and without the innermost one's, which is one element.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import c_uint, c_uint64

from tessera.backend.contract import TensorMapFacts
from tessera.errors import ArgumentError
from tessera.runtime.cuda.libcuda import Libcuda
from tessera.runtime.cuda.structures import (
    TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    TENSOR_MAP_INTERLEAVE_NONE,
    TENSOR_MAP_L2_PROMOTION_L2_128B,
)
from tessera.target.facts import TENSOR_MAP_BOX

_ALIGNMENT = 16
_MOST_RANK = 5
_MOST_EXTENT = 1 << 32
_MOST_STRIDE_BYTES = 1 << 40


def encode(
    library: Libcuda,
    memory: int,
    facts: TensorMapFacts,
    address: int,
    extents: Sequence[int],
    strides: Sequence[int],
) -> None:
    """Writes the tensor map of a tensor at `address`, of these extents and strides in elements, to `memory`.

    Raises ArgumentError for a tensor that no map can describe: an innermost stride other than 1, an address or stride
    that is no multiple of 16 bytes, an extent below 1 or past 2^32.
    """
    problem = _problem(facts, address, extents, strides)
    if problem is not None:
        raise ArgumentError(
            f"a tensor of extents {tuple(extents)} and strides {tuple(strides)} at address {address:#x} cannot be "
            f"copied by a tensor map: {problem}",
            hints=["index this operand by pointers"],
        )
    rank = len(extents)
    sizes = [*reversed(extents)]
    bytes_apart = [stride * facts.element_bytes for stride in reversed(strides)][1:]
    library.call(
        "cuTensorMapEncodeTiled",
        memory,
        facts.element_type,
        rank,
        address,
        (c_uint64 * rank)(*sizes),
        (c_uint64 * rank)(*bytes_apart, 0),
        (c_uint * rank)(*reversed(facts.box)),
        (c_uint * rank)(*[1] * rank),
        TENSOR_MAP_INTERLEAVE_NONE,
        facts.swizzle,
        TENSOR_MAP_L2_PROMOTION_L2_128B,
        TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )


def _problem(facts: TensorMapFacts, address: int, extents: Sequence[int], strides: Sequence[int]) -> str | None:
    """What the documentation of `cuTensorMapEncodeTiled` forbids of this tensor, None where it is allowed."""
    if not 1 <= len(extents) <= _MOST_RANK or len(facts.box) != len(extents):
        return f"rank {len(extents)}, where 1 to {_MOST_RANK} dimensions and a box of as many are meant"
    if any(not 1 <= extent <= _MOST_EXTENT for extent in extents):
        return "every extent is between 1 and 2^32"
    if any(not 1 <= side <= TENSOR_MAP_BOX for side in facts.box):
        return f"every side of the box {facts.box} is between 1 and {TENSOR_MAP_BOX}"
    if strides[-1] != 1:
        return "the innermost dimension has to be contiguous"
    if address % _ALIGNMENT:
        return f"the address is no multiple of {_ALIGNMENT} bytes"
    outer = [stride * facts.element_bytes for stride in strides[:-1]]
    if any(stride % _ALIGNMENT or not 0 < stride < _MOST_STRIDE_BYTES for stride in outer):
        return f"strides have to be positive multiples of {_ALIGNMENT} bytes"
    return None
