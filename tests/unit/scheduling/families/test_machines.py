"""Defaults, costs and shares follow from what a machine does, and from no name: other facts, other schedules."""

from __future__ import annotations

from dataclasses import replace

from tessera.scheduling.families.cost import RooflineModel
from tessera.scheduling.families.family import PARALLEL_BYTES, PARALLEL_FLOPS, pays
from tessera.scheduling.families.product.space import default_schedule, space
from tessera.scheduling.families.rows.space import default_schedule as default_row_schedule
from tessera.scheduling.model.machine import machine
from tessera.target import MemoryLevel, Target
from tests.unit.scheduling.families.test_cost import CPU, product, rows
from tests.unit.scheduling.problems import ZEN4_CORE

TWO_STARTS = replace(ZEN4_CORE, fma_per_cycle=2)


def with_caches(target: Target, *sizes: int) -> Target:
    """The machine with other caches, nearest first."""
    names = ("L1", "L2", "L3")
    caches = [MemoryLevel(name, size, 64, 1) for name, size in zip(names, sizes, strict=True)]
    return replace(target, memory=(*caches, target.memory[-1]))


def tile(target: Target, side: int = 2048, workers: int = 1) -> tuple[int, ...]:
    """The cache blocks of a square product by default."""
    return default_schedule(replace(product(side, side, side, workers), target=target)).integers("tile")


def test_a_machines_name_decides_nothing() -> None:
    for name in ("znver4", "sapphirerapids", "haswell"):
        other = replace(CPU, arch=name, name=name)
        assert tile(other) == tile(CPU)
        assert machine(None, other, 1).cycle_s == machine(None, CPU, 1).cycle_s


def test_other_caches_have_other_blocks() -> None:
    assert tile(CPU) == (144, 2048, 256)
    assert tile(with_caches(CPU, 32 << 10, 256 << 10, 32 << 20)) == (48, 2048, 256)
    assert tile(with_caches(CPU, 32 << 10, 1 << 20, 4 << 20)) == (144, 512, 256)
    assert tile(CPU, workers=16) == (144, 512, 256)  # each of them packs blocks of its own into the same cache
    seen = replace(ZEN4_CORE, fma_per_cycle=2, caches=(("L3", 4 << 20),))  # a virtual machine that keeps an eighth
    assert tile(CPU.with_core(seen)) == (144, 512, 256)


def test_one_multiply_add_a_cycle_needs_smaller_register_tiles() -> None:
    problem = product(512, 512, 512)
    micro = [
        default_schedule(replace(problem, target=CPU.with_core(core)))["micro"]
        for core in (None, TWO_STARTS, ZEN4_CORE)
    ]
    assert micro == [(12, 32), (12, 32), (8, 32)]


def test_tiles_of_few_registers_read_a_where_it_lies() -> None:
    few = replace(CPU, vector_registers=16)
    problem = replace(product(1024, 1024, 1024), target=few)
    panels = replace(problem, b_panels=16)
    assert [default_schedule(each)["pack_a"] for each in (problem, panels)] == [False, False]
    assert [default_schedule(replace(each, a_contiguous="m"))["pack_a"] for each in (problem, panels)] == [True, True]
    assert default_schedule(replace(panels, target=CPU))["pack_a"] is True


def test_rows_of_weights_far_apart_are_walked_as_many_at_a_time_as_are_fetched_ahead() -> None:
    few = product(16, 4096, 4096)
    followed = [CPU.with_core(replace(TWO_STARTS, streams=streams)) for streams in (0, 4, 16, 64, 500)]
    depths = [default_schedule(replace(few, target=target)).integers("tile")[2] for target in followed]
    assert depths == [16, 8, 16, 64, 64]


def test_reading_a_where_it_lies_is_judged_by_the_ways_of_the_first_cache() -> None:
    problem = product(1024, 1024, 1024)
    broad = space(problem).starts[0]
    assert (broad["micro"], broad["pack_a"], broad["order"]) == ((6, 64), False, "rows")
    assert not space(problem).violations(broad)
    gains = []
    for near in (32 << 10, 48 << 10):  # eight ways, and twelve: as many as there are rows of A, a page apart
        model = RooflineModel(None, with_caches(CPU, near, 2 << 20, 32 << 20).with_core(TWO_STARTS))
        packed, in_place = (default_schedule(problem).replace(pack_a=packs) for packs in (True, False))
        gains.append(model.estimate(problem, packed).seconds / model.estimate(problem, in_place).seconds)
    assert gains[0] < 0.9
    assert gains[1] > 1


def test_results_bypass_a_small_cache_earlier() -> None:
    streams = [
        default_row_schedule(replace(rows(1024, 1024), target=target))["nontemporal"]
        for target in (CPU, with_caches(CPU, 32 << 10, 1 << 20, 8 << 20))
    ]
    assert streams == [False, True]


def test_a_worker_is_woken_for_more_where_waking_it_costs_more() -> None:
    slow, slower = (CPU.with_core(replace(TWO_STARTS, wake_s=seconds)) for seconds in (10e-6, 1.0))
    assert pays(CPU, flops=PARALLEL_FLOPS)
    assert pays(CPU, nbytes=PARALLEL_BYTES)
    assert pays(CPU.with_core(ZEN4_CORE), flops=PARALLEL_FLOPS)
    assert not pays(slow, flops=8 * PARALLEL_FLOPS)
    assert pays(slow, flops=16 * PARALLEL_FLOPS)  # eight times the cost, at twice the speed
    assert not pays(slow, nbytes=4 * PARALLEL_BYTES)
    assert pays(slower, nbytes=64 * PARALLEL_BYTES)
    doubtful = CPU.with_core(replace(TWO_STARTS, wake_s=1.0, in_doubt=True))
    assert pays(doubtful, nbytes=4 * PARALLEL_BYTES)  # whoever wanted the cores may be gone


def test_the_model_counts_what_was_measured() -> None:
    core = replace(TWO_STARTS, fma_latency=8, wake_s=50e-6, tlb_pages=96, streams=64, loads_per_cycle=2)
    plain, found = (RooflineModel(None, target) for target in (CPU.with_core(TWO_STARTS), CPU.with_core(core)))
    few = product(4, 64, 512)
    schedule = default_schedule(few).replace(micro=(4, 16), tile=(144, 4096, 256))
    assert found.estimate(few, schedule).terms["wait"] == 2 * plain.estimate(few, schedule).terms["wait"]
    shared = product(512, 512, 512, 2)
    waking = [model.estimate(shared, default_schedule(shared)).terms["launch"] for model in (plain, found)]
    assert waking[1] - waking[0] > 45e-6
    counted = machine(None, found.target, 1)
    assert (counted.tlb_pages, counted.streams) == (96, 64)
    assert counted.byte_per_s["L1"] == 2 * machine(None, plain.target, 1).byte_per_s["L1"]
    narrow = product(16, 2000, 4096)  # whose rows fall into many sets of L1, so that only prefetching is lost
    far = default_schedule(narrow).replace(tile=(144, 1024, 64), micro=(12, 32), pack_b=False)
    assert found.estimate(narrow, far).terms["DRAM"] < plain.estimate(narrow, far).terms["DRAM"]
    assert machine(None, with_caches(CPU, 48 << 10, 1 << 20, 32 << 20), 1).near_ways == 12
