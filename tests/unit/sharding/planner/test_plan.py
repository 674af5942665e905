"""Plans: what is enumerated, what fits, how long a step takes, and what the table says."""

from __future__ import annotations

import math
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import dist
from tessera.errors import ArgumentError, MemoryLimitError
from tessera.sharding.pipeline.generators import schedule
from tessera.sharding.pipeline.simulator import ProgramTimes, simulate
from tessera.sharding.planner import plan as planning
from tessera.sharding.planner.calibration import EFFICIENCIES
from tessera.sharding.planner.candidates import ORDERS, Parallelism, PlanCandidates, enumerate_candidates
from tessera.sharding.planner.communication import cost
from tessera.sharding.planner.memory import kept_bytes, memory_bytes
from tessera.sharding.planner.rates import DeviceRates, device_rates
from tessera.sharding.planner.step_time import step_times
from tessera.sharding.planner.transformer import Transformer
from tessera.target.topology import topology

SMALL = Transformer(12, 1024, 16, 4096, 32_000, 2048, name="small")
GPT = Transformer(96, 12_288, 96, 49_152, 51_200, 2048, name="GPT-3 175B")


def rack() -> DeviceRates:
    return device_rates(topology("gb200-nvl72"), "bf16", EFFICIENCIES["GB200"])


@settings(max_examples=25)
@given(st.integers(1, 72), st.sampled_from([24, 64, 144, 1536]))
def test_candidates_use_all_devices_and_divide_the_batch(devices: int, batch: int) -> None:
    found = enumerate_candidates(SMALL, devices, batch, offload=True, fixed={})
    assert np.all(found.tp * found.pp * found.dp * found.cp == devices)
    assert np.all(batch % (found.dp * found.microbatch) == 0)
    stages = found.pp * found.chunks
    assert np.all((found.chunks == 1) | (SMALL.layers % stages == 0) | ((SMALL.layers + 2) % stages == 0))
    assert np.all((found.chunks == 1) | (batch // (found.dp * found.microbatch) % found.pp == 0))
    rows = {found[row] for row in range(0, len(found), 7)}
    assert len(rows) == len(range(0, len(found), 7))


def test_rows_and_columns_are_the_same_candidates() -> None:
    rows = [
        Parallelism(tp=2, pp=3, dp=4, cp=5, order=ORDERS[1], schedule="zb1p"),
        Parallelism(recompute="full", zero=3),
    ]
    columns = PlanCandidates.of(rows)
    assert [columns[0], columns[1]] == rows
    assert [int(columns.stride(axis)[0]) for axis in ("tp", "cp", "pp", "dp")] == [1, 2, 10, 30]


def one(**changes: Any) -> PlanCandidates:
    return PlanCandidates.of([parallelism(**changes)])


def parallelism(**changes: Any) -> Parallelism:
    return Parallelism(**{"tp": 2, "pp": 1, "dp": 4, "zero": 0, "microbatch": 2, **changes})


def test_memory_falls_with_each_stage_of_zero_and_with_recomputation() -> None:
    stages = [float(memory_bytes(GPT, rack(), one(zero=zero), 64)[0]) for zero in range(4)]
    assert stages == sorted(stages, reverse=True)
    assert len(set(stages)) == 4
    local = GPT.parameters / 2
    assert stages[0] - stages[1] == pytest.approx(12 * local * 3 / 4)
    assert stages[1] - stages[2] == pytest.approx(4 * local * 3 / 4)
    kept, full = (float(memory_bytes(GPT, rack(), one(recompute=way), 64)[0]) for way in ("none", "full"))
    assert full < kept


def test_activations_of_an_unfused_block_are_those_of_the_paper() -> None:
    model = replace(GPT, fused_attention=False, dropout=True)
    found = float(kept_bytes(model, rack(), one(tp=8, microbatch=1), np.array([float(model.sequence)]))[0])
    s, h, a = model.sequence, model.hidden, model.heads
    # Korthikanti et al., equation 4: s b h (34 + 5 a s / h) / t, with sequence parallelism.
    assert found == pytest.approx(s * h / 8 * (34 + 5 * a * s / h))


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved", "zb1p"])
def test_the_bubble_is_that_of_the_simulated_schedule(name: str) -> None:
    device = replace(rack(), efficiency=replace(EFFICIENCIES["GB200"], hidden_pipeline=1.0))
    chunks = 3 if name == "interleaved" else 1
    model = replace(GPT, layers=24, vocabulary=8)  # a head that takes no time
    way = parallelism(pp=4, dp=1, tp=1, schedule=name, chunks=chunks, microbatch=1)
    times = step_times(model, device, PlanCandidates.of([way]), 8)
    stage = (
        float(sum(getattr(times, f.name)[0] for f in fields(times) if f.name not in ("bubble", "data", "optimizer")))
        / 8
    )
    weights = float(times.products[0]) / 3 / 8
    program = ProgramTimes((stage - weights) / 2 / chunks, (stage - weights) / 2 / chunks, weights / chunks)
    line = simulate(schedule(name, 4, 8, chunks), program)
    idle = line.seconds - max(line.work_s)
    assert float(times.bubble[0]) == pytest.approx(idle, rel=0.02)


def test_a_step_is_at_least_its_arithmetic_and_falls_with_devices() -> None:
    device = rack()
    alone = step_times(SMALL, device, one(tp=1, dp=1, microbatch=4), 64)
    floor = 64 * SMALL.sequence * SMALL.model_flops / device.linear
    assert float(alone.total[0]) > floor
    more = [float(step_times(SMALL, device, one(tp=1, dp=dp, microbatch=1), 64).total[0]) for dp in (1, 2, 4, 8)]
    assert more == sorted(more, reverse=True)
    assert more[0] / more[-1] <= 8


def test_gradients_of_far_replicas_take_the_slow_links() -> None:
    rates = device_rates(topology("dgx-a100"), "bf16", EFFICIENCIES["A100-SXM4-80GB"])
    ways = {order: parallelism(tp=1, pp=8, dp=8, schedule="1f1b", microbatch=1, order=order) for order in ORDERS}
    near, far = (float(step_times(SMALL, rates, PlanCandidates.of([ways[order]]), 64).data[0]) for order in ORDERS)
    nbytes = 2.0 * (SMALL.layers * SMALL.block_parameters + SMALL.embedding_parameters) / 8
    assert near == pytest.approx(cost(rates.topology, "all_reduce", nbytes, 8, 1).seconds / rates.efficiency.links)
    assert far == pytest.approx(cost(rates.topology, "all_reduce", nbytes, 8, 8).seconds / rates.efficiency.links)
    assert far > 5 * near


def test_a_plan_of_72_devices_shows_uneven_splits_beside_spare_ones() -> None:
    found = dist.plan(GPT, batch=1536, devices=72)
    assert [row.seconds for row in found.rows] == sorted(row.seconds for row in found.rows)
    assert {row.spare for row in found.rows} == {0, 8}
    for row in found.rows:
        assert row.candidate.devices + row.spare == 72
        assert math.isclose(sum(row.shares.values()), row.seconds)
        assert row.memory <= 0.95 * found.machine.memory
    text = str(found)
    assert "64 of 72 devices, 8 spare" in text
    assert "all times and bytes are predicted" in text
    assert "mean error 1.1 % on held-out rows of dense models in fp8; bf16 was compared with nothing" in text
    assert f"{found.considered} candidates" in text
    assert math.prod(found.axes.values()) == found.best.candidate.devices
    assert set(found.collectives) == {axis for axis, size in found.axes.items() if size > 1}


def test_a_plan_says_how_far_its_constants_can_be_trusted() -> None:
    assert (
        dist.plan(SMALL, batch=64, devices=8, precision="fp8").trust
        == "mean error 1.1 % on held-out rows of dense models"
    )
    assert dist.plan(SMALL, batch=64, devices=8, topology="dgx-h100").trust == "compared with no measurement"
    mixture = dist.plan(replace(SMALL, experts=8, top_k=2), batch=64, devices=8)
    assert "mixtures of experts were predicted 25 and 30 % too fast" in mixture.trust
    assert max(row.candidate.ep for row in mixture.rows) > 1


def test_uneven_heads_and_layers_are_named_and_cost() -> None:
    nine = dist.plan(GPT, batch=1536, devices=72, fixed={"tp": 9, "pp": 1, "cp": 1})
    assert "tp 9 leaves 96 heads uneven: the fullest has 11, 3 % more than even" in str(nine)
    deep = dist.plan(GPT, batch=1536, devices=72, fixed={"tp": 8, "pp": 9, "schedule": "1f1b"})
    assert "pp 9 leaves 96 layers uneven: the fullest stage has 11" in str(deep)
    device, none = rack(), replace(GPT, vocabulary=8)
    even, uneven = (
        float(step_times(replace(none, layers=layers), device, one(pp=9, schedule="1f1b"), 64).products[0])
        for layers in (99, 96)
    )
    assert uneven == pytest.approx(even, rel=1e-4)
    line = deep.timeline()
    assert line.schedule.name == "1f1b"
    assert line.seconds == pytest.approx(
        deep.best.seconds - deep.best.shares["data"] - deep.best.shares["optimizer"], rel=0.05
    )


def test_fixed_choices_are_kept() -> None:
    found = dist.plan(SMALL, batch=64, devices=8, fixed={"tp": 2, "zero": 3, "microbatch": 2, "recompute": "full"})
    for row in found.rows:
        way = row.candidate
        assert (way.tp, way.microbatch, way.recompute) == (2, 2, "full")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"devices": 73}, "73 devices of gb200-nvl72, which has 72"),
        ({"fixed": {"tq": 2}}, "'tq' is no choice of a plan"),
        ({"fixed": {"schedule": "2f2b"}}, "schedule is one of none, gpipe"),
        ({"fixed": {"tp": 0}}, "tp is a number of devices or pieces, not 0"),
        ({"fixed": {"tp": 7}}, "nothing divides batch 64"),
        ({"system": "loopback"}, "loopback has no fitted constants"),
        ({"system": "dgx-a100", "precision": "fp8"}, "no published peak of 'fp8'"),
        ({"batch": 0}, "a batch of 0 sequences"),
    ],
)
def test_what_cannot_be_planned_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        planning.plan(SMALL, **{"batch": 64, "devices": 8, **changes})


def test_a_model_that_fits_nowhere_says_what_it_would_take() -> None:
    with pytest.raises(
        MemoryLimitError, match=r"fits in no way on 8 devices: \d+\.\d GiB a device are needed at least"
    ):
        dist.plan(GPT, batch=64, devices=8, memory=20e9)


def test_a_transformer_has_positive_extents() -> None:
    with pytest.raises(ArgumentError, match="at least 1"):
        replace(SMALL, layers=0)
    assert GPT.parameters == pytest.approx(175.2e9, rel=1e-3)
