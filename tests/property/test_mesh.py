"""A share of the random graphs over random layouts and meshes; `python -m tests.mesh` checks more of them."""

from __future__ import annotations

import pytest

from tests.mesh.checking import fault_of
from tests.whole import examples

SHARE = examples(120, 200)
"""Seeds, each of which gives a graph whose results and one whose gradients are compared."""
PARTS = 10


@pytest.mark.parametrize("part", range(PARTS))
def test_a_mesh_gives_what_one_process_gives(part: int) -> None:
    seeds = range(part, SHARE, PARTS)
    assert [fault for seed in seeds for smooth in (False, True) if (fault := fault_of(seed, smooth))] == []


@pytest.mark.parametrize("seed", range(3000, 3003))
def test_kernels_on_a_mesh_give_what_one_process_gives(seed: int) -> None:
    for smooth in (False, True):
        assert fault_of(seed, smooth, compiled=True) is None
