"""What collectives cost: published all-reduces, the formulas of algorithms, and what binds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessera.errors import ArgumentError
from tessera.sharding.planner.communication import WIRE, Collective, cost, seconds, spread
from tessera.sharding.published.tables import AllReduces, all_reduces, table
from tessera.target.topology import TOPOLOGIES, topology

KINDS: tuple[Collective, ...] = tuple(dict.fromkeys(kind for kind, _ in WIRE))


@pytest.mark.parametrize("row", all_reduces(), ids=lambda row: row.topology)
def test_published_all_reduces_are_met_within_five_percent_at_every_point(row: AllReduces) -> None:
    assert table("all_reduce")["verified"]
    system = topology(row.topology)
    errors = {size: cost(system, "all_reduce", size, row.devices).seconds / s - 1 for size, s in row.seconds.items()}
    assert max(map(abs, errors.values())) <= 0.05, errors
    # Only the end points were fitted.
    assert max(abs(errors[min(errors)]), abs(errors[max(errors)])) <= 5e-4
    assert len(errors) >= 5


def test_fitted_constants_are_those_that_the_table_gives() -> None:
    fits = {}
    for row in all_reduces():
        (small, low), (large, high) = min(row.seconds.items()), max(row.seconds.items())
        byte_s = (high - low) / (large - small)
        fits[row.topology] = (low - byte_s * small, byte_s)
    latency, byte_s = fits["gb200-nvl72"]
    ring = TOPOLOGIES["gb200-nvl72"].levels[0].path("ring")
    assert ring is not None
    assert ring.hop_s == pytest.approx(latency / (2 * 71), rel=1e-3)
    assert ring.byte_per_s == pytest.approx(2 * 71 / 72 / byte_s, rel=1e-3)
    assert ring.byte_per_s < 900e9  # no more than the links have
    two = TOPOLOGIES["gb200-nvl72x2"]
    assert two.exposed == pytest.approx((fits["gb200-nvl72x2"][1] - byte_s) * 72 * 50e9, rel=1e-2)
    for name, racks in (("gb200-nvl72x2", 2), ("x20", 20)):
        outer = TOPOLOGIES[name].levels[1].path("ring")
        assert outer is not None
        assert outer.hop_s == pytest.approx((fits[name][0] - latency) / (2 * (racks - 1)), rel=1e-3)
    outer = TOPOLOGIES["x20"].levels[1].path("ring")
    assert outer is not None
    wire = 2 * 19 / 20 / 72
    assert outer.byte_per_s == pytest.approx(wire / (fits["x20"][1] - two.exposed * byte_s), rel=1e-3)


def test_the_cheapest_algorithm_is_taken_and_named_with_what_binds() -> None:
    rack = topology("gb200-nvl72")
    small, large = cost(rack, "all_reduce", 4096), cost(rack, "all_reduce", 2**32)
    assert (small.algorithm, small.bound, small.validated) == ("one-shot", "NVLink latency", False)
    assert (large.algorithm, large.bound, large.validated) == ("ring", "NVLink bandwidth", True)
    assert small.seconds < cost(rack, "all_reduce", 4096, algorithm="ring").seconds
    assert large.wire_bytes == pytest.approx(2 * 71 / 72 * 2**32)
    assert "predicted" in str(small)
    assert "not validated" in str(small)
    assert "not validated" not in str(large)
    nothing = cost(rack, "all_reduce", 2**20, 1)
    assert (nothing.seconds, nothing.algorithm, nothing.bound) == (0.0, "none", "nothing")


def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather() -> None:
    rack = topology("gb200-nvl72")
    halves = [cost(rack, kind, 2**30, 8, algorithm="ring").seconds for kind in ("reduce_scatter", "all_gather")]
    assert sum(halves) == pytest.approx(cost(rack, "all_reduce", 2**30, 8, algorithm="ring").seconds)


def test_over_two_levels_the_inner_one_sends_all_and_the_outer_one_a_share() -> None:
    found = cost(topology("dgx-a100"), "all_reduce", 8e9, 16)
    assert found.algorithm == "hierarchical"
    assert [(part.level, part.kind, part.devices) for part in found.parts] == [
        ("NVLink", "reduce_scatter", 8),
        ("InfiniBand", "all_reduce", 2),
        ("NVLink", "all_gather", 8),
    ]
    assert [part.wire_bytes for part in found.parts] == pytest.approx([7e9, 1e9, 7e9])
    assert all(part.source for part in found.parts)
    apart = cost(topology("dgx-a100"), "all_reduce", 8e9, 2, stride=8)
    assert [part.level for part in apart.parts] == ["InfiniBand"]
    moved = cost(topology("dgx-a100"), "permute", 25e9, 16)
    assert [part.level for part in moved.parts] == ["InfiniBand"]
    assert moved.seconds == pytest.approx(1.0, rel=1e-4)


def test_levels_that_move_chunks_at_once_hide_the_faster_one() -> None:
    system = topology("dgx-h100")
    found = cost(system, "all_reduce", 2**33, 64)
    inner = sum(part.transfer_s for part in found.parts if part.level == "NVLink")
    outer = sum(part.transfer_s for part in found.parts if part.level == "InfiniBand")
    latency = sum(part.latency_s for part in found.parts)
    assert inner > outer
    assert found.seconds == pytest.approx(latency + inner + system.exposed * outer)


@given(
    st.sampled_from(sorted(TOPOLOGIES)),
    st.sampled_from(KINDS),
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 8), st.floats(0, 2**34)), min_size=1, max_size=8),
)
def test_many_at_once_are_what_each_costs(name: str, kind: Collective, groups: list[tuple[int, int, float]]) -> None:
    system = topology(name)
    held = [(size, stride, n) for size, stride, n in groups if size * stride <= system.devices] or [(1, 1, 1.0)]
    sizes, strides, bytes_ = (np.array(column) for column in zip(*held, strict=True))
    found = seconds(system, kind, bytes_.astype(float), sizes, strides)
    for value, (size, stride, n) in zip(found, held, strict=True):
        assert value == pytest.approx(cost(system, kind, n, size, stride).seconds, rel=1e-9, abs=1e-15)


@given(st.integers(1, 1440), st.integers(1, 1440))
def test_a_group_is_spread_over_levels_that_hold_it(size: int, stride: int) -> None:
    counts = spread(topology("x20"), size, stride)
    assert math.prod(counts) >= size
    assert counts[0] <= max(1, 72 // stride)


def test_groups_and_algorithms_that_are_not_there_are_refused() -> None:
    with pytest.raises(ArgumentError, match="a group of 73 devices, 1 apart, in gb200-nvl72 of 72"):
        cost(topology("gb200-nvl72"), "all_reduce", 1.0, 73)
    with pytest.raises(ArgumentError, match="NVLink of gb200-nvl72 has no in-switch for all_reduce"):
        cost(topology("gb200-nvl72"), "all_reduce", 1.0, algorithm="in-switch")
    with pytest.raises(ArgumentError, match="'gb300' is no known topology"):
        topology("gb300")
