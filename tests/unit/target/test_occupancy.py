"""Occupancy: what holds warps back, against NVIDIA's calculator's published cases."""

from __future__ import annotations

import pytest

from tessera import target
from tessera.target.occupancy import occupancy

H100, MI300X = target.gpu("sm90").gpu, target.gpu("gfx942").gpu
assert H100 is not None
assert MI300X is not None


@pytest.mark.parametrize(
    ("warps", "registers", "shared", "blocks", "binds"),
    [
        (8, 32, 0, 8, "warps"),
        (1, 32, 0, 32, "blocks"),
        (8, 128, 0, 2, "registers"),
        (8, 129, 0, 1, "registers"),
        (4, 32, 100 << 10, 2, "shared memory"),
        (4, 32, 113 << 10, 2, "shared memory"),
        (4, 32, (113 << 10) + 1, 1, "shared memory"),
    ],
)
def test_what_binds_on_hopper(warps: int, registers: int, shared: int, blocks: int, binds: str) -> None:
    assert H100 is not None
    held = occupancy(H100, warps, registers, shared)
    assert (held.blocks, held.binds) == (blocks, binds)
    assert held.fraction == blocks * warps / 64


def test_a_block_that_fits_no_multiprocessor_has_none() -> None:
    assert MI300X is not None
    held = occupancy(MI300X, 8, 64, 96 << 10)
    assert (held.blocks, held.fraction, held.binds) == (0, 0.0, "shared memory")


def test_wavefronts_share_the_register_file() -> None:
    assert MI300X is not None
    assert occupancy(MI300X, 4, 128, 0).warps == 16
    assert occupancy(MI300X, 4, 512, 0).warps == 4


def test_tensor_memory_is_shared_by_the_blocks_of_a_multiprocessor() -> None:
    b200 = target.gpu("sm100").gpu
    assert b200 is not None
    held = occupancy(b200, 4, 64, 16 << 10, tensor_memory_columns=256)
    assert (held.blocks, held.binds) == (2, "tensor memory")
    assert occupancy(b200, 4, 64, 16 << 10).blocks > 2
