"""The cost model orders schedules as the machine does in the cases that everyone can reason about."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tessera.dtypes import bf16, fp32
from tessera.ops.counting import operation_count
from tessera.scheduling.families.cost import BINDINGS, RooflineModel
from tessera.scheduling.families.product.space import ContractionProblem, default_schedule, space
from tessera.scheduling.families.rows.space import MapReduceProblem
from tessera.scheduling.families.rows.space import default_schedule as default_row_schedule
from tessera.scheduling.language.schedule import KnobValue, Schedule
from tessera.scheduling.model.choice import modelled_choice
from tessera.scheduling.model.estimate import LEVELS, PARTS, RESOURCES, Estimate, Estimates
from tessera.scheduling.model.machine import estimated_ceilings, machine
from tessera.target import Ceilings, MemoryLevel, Target
from tessera.target.ceilings import ComputeCeiling, MemoryCeiling

CPU = Target(
    kind="cpu",
    arch="znver5",
    name="a CPU",
    features=frozenset({"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512bf16"}),
    vector_bits=512,
    vector_registers=32,
    cores=2,
    processors=2,
    memory=(
        MemoryLevel("L1", 32 << 10, 64, 1),
        MemoryLevel("L2", 1 << 20, 64, 1),
        MemoryLevel("L3", 32 << 20, 64, 2),
        MemoryLevel("DRAM", 16 << 30, 64, 2),
    ),
    machine="x86_64",
)
CEILINGS = Ceilings(
    CPU.arch,
    CPU.name,
    "measured",
    (ComputeCeiling("fp32", 1, 250e9), ComputeCeiling("fp32", 2, 500e9), ComputeCeiling("bf16", 1, 500e9)),
    tuple(
        MemoryCeiling(level, workers, rate)
        for level, *rates in (("L1", 5e11, 1e12), ("L2", 2e11, 4e11), ("L3", 8e10, 1.6e11), ("DRAM", 25e9, 40e9))
        for workers, rate in enumerate(rates, 1)
    ),
)
MODEL = RooflineModel(CEILINGS, CPU)


def product(m: int, n: int, k: int, workers: int = 1) -> ContractionProblem:
    """An fp32 matrix product of contiguous operands."""
    return ContractionProblem(
        m, n, k, 1, fp32, fp32, fp32, fp32, "k", "n", False, False, 1, 0, CPU, workers, native_bf16=False
    )


def rows(
    outer: int, lanes: int, passes: int = 1, dear: int = 0, again: int = 0, flops: int = 2, workers: int = 1
) -> MapReduceProblem:
    """A kernel over fp32 rows, one input and one output."""
    size = outer * lanes * 4
    return MapReduceProblem(outer, lanes, lanes, True, size, size, passes, dear, again, 3, flops, CPU, workers)


def cost(problem: ContractionProblem, **knobs: KnobValue) -> Estimate:
    """The estimate of the default schedule with some knobs changed."""
    return MODEL.estimate(problem, default_schedule(problem).replace(**knobs))


def row_cost(problem: MapReduceProblem, **knobs: KnobValue) -> Estimate:
    """The estimate of the default schedule with some knobs changed."""
    return MODEL.estimate(problem, default_row_schedule(problem).replace(**knobs))


def test_a_large_square_product_is_bound_by_arithmetic_and_close_to_the_peak() -> None:
    estimate = cost(product(2048, 2048, 2048))
    assert estimate.binding == "compute"
    assert 0.75 < 2 * 2048**3 / 250e9 / estimate.seconds <= 1.0


def test_a_vector_times_a_large_matrix_is_bound_by_memory() -> None:
    estimate = cost(product(1, 4096, 4096))
    assert estimate.binding == "DRAM"
    assert estimate.seconds >= 4096 * 4096 * 4 / 25e9


def test_a_tiny_product_is_bound_by_the_launch() -> None:
    assert cost(product(4, 32, 4)).binding == "launch"


def test_packing_does_not_pay_for_a_single_row() -> None:
    problem = product(1, 4096, 4096)
    assert cost(problem).seconds < cost(problem, pack_b=True).seconds


def test_a_copy_of_rows_from_memory_does_not_wait_for_them_as_sums_do() -> None:
    problem = product(1, 4096, 4096)
    few, many = (cost(problem, tile=(48, 4096, kc), pack_b=False) for kc in (8, 64))
    memory_s = 4096 * 4096 * 4 / 25e9
    assert few.terms["DRAM"] == pytest.approx(1.5 * memory_s, rel=0.01)
    assert many.terms["DRAM"] > 1.5 * few.terms["DRAM"]
    packed = [cost(problem, tile=(48, 4096, kc), pack_b=True) for kc in (8, 64)]
    assert packed[1].terms["packing"] < 1.4 * packed[0].terms["packing"]
    assert packed[1].seconds < many.seconds
    short = cost(problem, tile=(48, 256, 8), pack_b=True)  # rows in short runs cost a copy as much
    assert short.terms["packing"] > 1.2 * packed[0].terms["packing"]


def test_rows_that_caches_hold_are_read_in_place_as_fast_as_they_deliver() -> None:
    near = cost(product(1, 1024, 1024), tile=(48, 1024, 8), pack_b=False)
    assert near.terms["DRAM"] == 0.0
    assert near.terms["L3"] < 1.1 * 1024 * 1024 * 4 / 80e9


def test_few_accumulators_wait_for_the_latency_of_the_multiply_add() -> None:
    problem = product(1024, 1024, 1024)
    assert cost(problem, micro=(2, 16)).seconds > 2.5 * cost(problem, micro=(12, 32)).seconds


def test_rows_that_collide_in_the_cache_want_packing() -> None:
    colliding, spread = product(1024, 1024, 4096), product(1024, 1024, 4112)
    in_place = cost(colliding, micro=(24, 16), pack_a=False).seconds
    assert in_place > 2 * cost(spread, micro=(24, 16), pack_a=False).seconds
    assert in_place > 2 * cost(colliding, micro=(24, 16), pack_a=True).seconds


def test_rounding_up_to_register_tiles_costs_time() -> None:
    whole, ragged = cost(product(960, 960, 960)), cost(product(960, 961, 960))
    assert ragged.seconds > whole.seconds * 1.02


def test_a_dimension_that_cannot_be_shared_leaves_workers_idle() -> None:
    problem = product(8, 8192, 1024, workers=2)
    assert cost(problem, parallel="columns").seconds < 0.7 * cost(problem, parallel="rows").seconds


def test_two_workers_halve_what_is_bound_by_arithmetic_but_not_what_is_bound_by_memory() -> None:
    assert cost(product(2048, 2048, 2048)).seconds > 1.8 * cost(product(2048, 2048, 2048, workers=2)).seconds
    assert cost(product(1, 4096, 4096)).seconds < 1.7 * cost(product(1, 4096, 4096, workers=2)).seconds


def test_many_blocks_along_k_write_the_output_many_times() -> None:
    problem = product(2048, 2048, 2048)
    assert cost(problem, tile=(144, 2048, 16)).seconds > 1.2 * cost(problem, tile=(144, 2048, 256)).seconds


def test_a_block_of_a_beyond_the_caches_is_slower() -> None:
    problem = product(4096, 4096, 4096)
    assert cost(problem, tile=(768, 2048, 512)).seconds > cost(problem, tile=(192, 2048, 512)).seconds


def test_bf16_pairs_are_faster_than_fp32_where_the_machine_multiplies_them() -> None:
    problem = product(1024, 1024, 1024)
    pairs = replace(problem, a_dtype=bf16, b_dtype=bf16, native_bf16=True)
    assert MODEL.estimate(pairs, default_schedule(problem)).seconds < 0.7 * cost(problem).seconds


def test_empty_products_cost_a_launch_and_little_more() -> None:
    for extents in ((0, 64, 64), (64, 0, 64), (64, 64, 0)):
        assert 0 < cost(product(*extents)).seconds < 1e-4


def test_every_schedule_of_a_space_gets_a_finite_estimate_and_a_named_bound() -> None:
    problem = product(100, 300, 50, workers=2)
    schedules = space(problem)
    assert schedules.neighbours(schedules.default)
    for schedule in (schedules.default, *schedules.neighbours(schedules.default)):
        estimate = MODEL.estimate(problem, schedule)
        assert 0 < estimate.seconds < 1
        assert estimate.binding in BINDINGS
        assert set(estimate.terms) == {"compute", *PARTS, *LEVELS, "packing", "latency", "launch"}
        assert estimate.resource in {*RESOURCES.values(), *PARTS.values()}
        assert estimate.seconds >= max(estimate.terms.values())


def test_a_large_map_is_bound_by_memory_and_streaming_stores_help_it() -> None:
    problem = rows(4096, 4096)
    assert row_cost(problem).binding == "DRAM"
    assert row_cost(problem, nontemporal=True).seconds < row_cost(problem, nontemporal=False).seconds


def test_streaming_stores_hurt_what_stays_in_the_caches() -> None:
    problem = rows(256, 1024)
    assert row_cost(problem, nontemporal=True).seconds > row_cost(problem, nontemporal=False).seconds


def test_keeping_dear_values_pays_where_rows_fit_the_cache() -> None:
    exp = operation_count("exp", approximate=True)
    problem = rows(512, 1024, passes=3, dear=1, again=exp, flops=exp + 4)
    assert row_cost(problem, keep=1024).seconds < row_cost(problem, keep=0).seconds


def test_narrow_steps_wait_for_the_latency_of_a_reduction() -> None:
    problem = rows(4096, 512, passes=2)
    assert row_cost(problem, tile=(1, 16)).seconds > row_cost(problem, tile=(1, 64)).seconds


def test_one_row_cannot_be_shared() -> None:
    one, two = rows(1, 1 << 20), rows(1, 1 << 20, workers=2)
    assert row_cost(two).seconds > 0.9 * row_cost(one).seconds


def test_functions_cost_what_their_expansion_takes() -> None:
    assert operation_count("add") == 1
    assert operation_count("exp") < operation_count("erf") < operation_count("pow")
    assert operation_count("exp", approximate=True) < operation_count("exp")


def test_estimates_from_unmeasured_machines_say_so() -> None:
    problem = product(1024, 1024, 1024)
    estimate = RooflineModel(None, CPU).estimate(problem, default_schedule(problem))
    assert estimate.source.startswith("estimate")
    assert cost(problem).source == "measured"
    assert 1e-3 < estimate.seconds < 1e-1


def test_rates_for_more_workers_than_measured_scale_except_for_memory() -> None:
    four = machine(CEILINGS, replace(CPU, cores=4), 4)
    assert four.flop_per_s["fp32"] == pytest.approx(250e9)
    assert four.byte_per_s["L2"] == pytest.approx(200e9)
    assert four.byte_per_s["DRAM"] == pytest.approx(10e9)


def test_shared_caches_are_divided_among_the_workers() -> None:
    alone, together = machine(CEILINGS, CPU, 1), machine(CEILINGS, CPU, 2)
    assert together.capacity["L2"] == alone.capacity["L2"]
    assert together.capacity["L3"] == alone.capacity["L3"] / 2
    assert LEVELS[alone.home(100 << 20)] == "DRAM"
    assert LEVELS[alone.home(8 << 10)] == "L1"


def test_an_estimated_ceiling_follows_the_vector_width() -> None:
    narrow = replace(CPU, vector_bits=256, features=frozenset({"avx2", "fma"}))
    wide_peak, narrow_peak = (estimated_ceilings(cpu, 1).flop_per_s("fp32", 1) for cpu in (CPU, narrow))
    assert wide_peak is not None
    assert narrow_peak is not None
    assert wide_peak == 2 * narrow_peak
    assert estimated_ceilings(narrow, 1).flop_per_s("bf16", 1) is None


def test_a_schedule_without_the_spaces_knobs_is_a_key_error() -> None:
    problem = product(8, 8, 8)
    knobs = {knob: value for knob, value in default_schedule(problem).items() if knob != "tile"}
    with pytest.raises(KeyError, match="tile"):
        MODEL.estimate(problem, Schedule(knobs))


def test_a_much_better_neighbour_of_the_start_is_chosen_where_it_is_worth_a_kernel() -> None:
    large, small = product(1024, 1024, 1024), product(24, 32, 24)
    for problem, changes in ((large, True), (small, False)):
        poor = default_schedule(problem).replace(micro=(2, 16))
        choice = modelled_choice(replace(space(problem), default=poor), MODEL)
        assert (choice.schedule != poor) == changes
        assert choice.estimate.seconds <= MODEL.estimate(problem, poor).seconds


def test_without_measured_ceilings_the_start_stays() -> None:
    problem = product(1024, 1024, 1024)
    poor = default_schedule(problem).replace(micro=(2, 16))
    assert modelled_choice(replace(space(problem), default=poor), RooflineModel(None, CPU)).schedule == poor


@pytest.mark.parametrize(("memory_s", "saved_s"), [(1e-3, 2e-3), (4e-3, 1e-3), (9e-3, 0.0)])
def test_operations_one_by_one_save_spills_only_where_computing_is_what_takes_longest(
    memory_s: float, saved_s: float
) -> None:
    together = Estimate(max(5e-3, memory_s), "compute", {"compute": 5e-3, "spills": 2e-3, "DRAM": memory_s})
    fused, apart = Estimates.of([together, together]).taken_apart(np.array([False, True]), 3e-3, 0)
    assert fused.seconds == together.seconds
    assert apart.seconds == pytest.approx(together.seconds + 3e-3 - saved_s)
    assert apart.terms["DRAM"] == pytest.approx(memory_s + 3e-3)
