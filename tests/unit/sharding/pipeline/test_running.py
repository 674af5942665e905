"""Pipelines that run, on emulated meshes: equal to one process, by the schedule, within its memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from tessera import Tensor, dist, op
from tessera.errors import AbstractMeshError, ArgumentError, MeshError, PipelineError, ShapeMismatchError
from tessera.lazy.leaves.leaf import Leaf
from tessera.sharding.execution import ShardedPlan
from tessera.sharding.pipeline.actions import Action
from tessera.sharding.pipeline.generators import schedule
from tessera.sharding.pipeline.simulator import peaks
from tessera.sharding.pipeline.transfers import with_transfers
from tests.mesh.pipelined import SCHEDULES, fault_of, layer, loss, one_process, whole_numbers
from tests.mesh.references import by_references


def emulated(ranks: int) -> dist.Mesh:
    return dist.Mesh(["pp"], shape=(ranks,), backend="emulated")


@pytest.mark.parametrize("manner", ["plain", "tuples"])
@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_every_schedule_gives_what_one_process_gives(name: str, chunks: int, manner: str) -> None:
    with by_references():
        assert fault_of(emulated(3 if manner == "plain" else 2), name, chunks, manner, steps=2) is None


@pytest.mark.parametrize("name", ["1f1b", "zero-bubble"])
def test_stages_lie_on_parts_of_a_mesh(name: str) -> None:
    mesh = dist.Mesh(["dp", "pp", "tp"], shape=(2, 2, 2), backend="emulated")
    with by_references():
        assert fault_of(mesh, name, 1, "sharded", steps=2) is None


@contextmanager
def moves_along_dp() -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """What is moved along "dp" meanwhile, and of which tensors."""
    found: list[tuple[str, tuple[int, ...]]] = []
    run = ShardedPlan.run

    def recorded(plan: ShardedPlan, leaves: tuple[Leaf, ...]) -> tuple[Leaf, ...]:
        steps = [(move.step.kind, plan.program.values[move.operand].shape) for move in plan.program.moves]
        axes = [move.step.axis for move in plan.program.moves]
        found.extend([step for step, axis in zip(steps, axes, strict=True) if axis == "dp"])
        return run(plan, leaves)

    with patch.object(ShardedPlan, "run", recorded):
        yield found


@pytest.mark.parametrize("name", ["1f1b", "zero-bubble", "a table without REDUCE"])
@pytest.mark.parametrize(("over", "kind"), [((), "AllReduce"), (("dp",), "ReduceScatter")])
def test_gradients_are_summed_over_devices_once_a_step(name: str, over: tuple[str, ...], kind: str) -> None:
    mesh = dist.Mesh(["pp", "dp"], shape=(2, 2), backend="emulated")
    width, rows = 64, dist.ShardSpec((0,), ("dp",))
    numbers = [whole_numbers(width, width, seed=n) for n in range(2)]
    # So many rows that weights are gathered, and not activations exchanged.
    x, wanted = whole_numbers(1024, width, seed=7), whole_numbers(1024, width, seed=8)

    def stage(weight: Tensor, x: Tensor) -> Tensor:
        made: Tensor = op.relu(op.matmul(x, weight))
        return made

    found = {}
    for microbatches in (2, 4):
        table = with_transfers(schedule("1f1b", 2, microbatches)) if name.startswith("a table") else name
        step = dist.pipeline([stage] * 2, mesh, microbatches=microbatches, schedule=table, loss=loss, reduction="sum")
        weights = [
            dist.distribute(each, dist.ShardSpec((0,) * len(over), over), step.mesh(n))
            for n, each in enumerate(numbers)
        ]
        with by_references(), moves_along_dp() as moves:
            _, gradients = step(weights, *(dist.distribute(each, rows, mesh) for each in (x, wanted)))
        found[microbatches] = [each.full().torch() for each in gradients]
        assert [each.layout for each in gradients] == [each.layout for each in weights]
        sums = [move for move in moves if move[0] in ("AllReduce", "ReduceScatter") and move[1]]
        assert sums == [(kind, (width, width))] * 2
        # A table without GATHER has programs bring weights together, of each microbatch; else it is once a step.
        gathers = moves.count(("AllGather", (width, width)))
        assert gathers >= 3 * microbatches if over and name.startswith("a table") else gathers == 2 * len(over)
    assert torch.equal(torch.stack(found[2]), torch.stack(found[4]))


def test_kernels_compute_the_same() -> None:
    assert fault_of(emulated(2), "zero-bubble", 1, "plain") is None


@pytest.mark.parametrize(("name", "chunks"), SCHEDULES)
def test_no_rank_keeps_more_than_the_simulator_says(name: str, chunks: int) -> None:
    count = 3 * chunks
    weights = [
        {"w": op.tensor(whole_numbers(4, 4, seed=n)), "b": op.tensor(whole_numbers(4, seed=n))} for n in range(count)
    ]
    step = dist.pipeline([layer] * count, emulated(3), microbatches=6, schedule=name, loss=loss)
    with by_references():
        step(weights, whole_numbers(12, 4, seed=7), whole_numbers(12, 4, seed=8))

    assert step.peaks == peaks(step.schedule)


def test_means_are_over_microbatches_and_sums_of_halves_are_wide() -> None:
    with by_references():
        numbers = [{"w": whole_numbers(4, 4, seed=n), "b": whole_numbers(4, seed=n)} for n in range(2)]
        x, wanted = whole_numbers(8, 4, seed=7), whole_numbers(8, 4, seed=8)
        wide = [{name: op.tensor(each) for name, each in stage.items()} for stage in numbers]
        value, gradients = one_process(layer, wide, op.tensor(x), op.tensor(wanted))
        step = dist.pipeline([layer] * 2, emulated(2), microbatches=4, loss=loss)
        found, own = step(wide, x, wanted)
        assert found == value / 4
        assert torch.equal(own[1]["w"].torch(), gradients[1]["w"].torch() / 4)

        # A sum of halves that each hold, and that would not be added up in halves.
        def first(weights: Tensor, x: Tensor) -> Tensor:
            made: Tensor = x * weights
            return made

        large = dist.pipeline(
            [first], emulated(1), microbatches=4, loss=lambda y: op.sum(y.to("fp32")), reduction="sum"
        )
        parts = torch.tensor([[2048.0], [1.0], [1.0], [2.0]]).half()
        _, (gradient,) = large([op.tensor(torch.ones(1).half())], parts)
        assert gradient.dtype == "fp16"
        assert gradient.tolist() == [2052.0]


def test_what_a_stage_reads_beside_its_arguments_is_read_at_every_step() -> None:
    factor: list[object] = [2.0]

    def scaled(weights: Tensor, x: Tensor) -> Tensor:
        made: Tensor = x * weights * factor[0]
        return made

    step = dist.pipeline([scaled] * 2, emulated(2), microbatches=2, loss=op.sum, reduction="sum")
    weights, x = [op.tensor(torch.ones(3))] * 2, torch.ones(4, 3)
    with by_references():
        found = []
        for each in (2.0, 3.0, op.tensor(torch.full((3,), 5.0)), op.tensor(torch.full((3,), 7.0))):
            factor[0] = each
            value, gradients = step(weights, x)
            found.append((value, gradients[0].tolist()))

    assert found == [(12.0 * f * f, [4.0 * f * f] * 3) for f in (2.0, 3.0, 5.0, 7.0)]


def test_what_cannot_run_is_refused() -> None:
    mesh = emulated(2)
    weights = [
        {"w": op.tensor(whole_numbers(4, 4, seed=n)), "b": op.tensor(whole_numbers(4, seed=n))} for n in range(2)
    ]
    x = whole_numbers(8, 4, seed=7)
    step = dist.pipeline([layer] * 2, mesh, microbatches=4, loss=loss)
    with pytest.raises(PipelineError, match=r"4 microbatches of a batch of shape \(7, 4\)"):
        step(weights, x[:7], x[:7])
    with pytest.raises(ArgumentError, match="weights of 1 stages of 2"):
        step(weights[:1], x, x)
    with pytest.raises(ShapeMismatchError, match="a loss of shape"):
        dist.pipeline([layer] * 2, mesh, microbatches=4, loss=lambda y, t: y - t)(weights, x, x)
    elsewhere = {"w": dist.distribute(whole_numbers(4, 4, seed=1), None, mesh["pp", 1]), "b": weights[0]["b"]}
    with pytest.raises(PipelineError, match="on the part of the mesh"):
        step([elsewhere, weights[1]], x, x)
    with pytest.raises(PipelineError, match="stage 0 gives 7"):
        dist.pipeline([lambda w, x: 7] * 2, mesh, microbatches=4, loss=loss)(weights, x, x)
    with pytest.raises(MeshError, match="no axis 'tp'"):
        dist.pipeline([layer] * 2, mesh, "tp")
    with pytest.raises(ArgumentError, match="3 stages on 2 ranks"):
        dist.pipeline([layer] * 3, mesh)
    with pytest.raises(ArgumentError, match="one stage a rank"):
        dist.pipeline([layer] * 4, mesh, schedule="1f1b")
    with pytest.raises(ArgumentError, match="reduction="):
        dist.pipeline([layer] * 2, mesh, reduction="max")  # type: ignore[arg-type]
    with pytest.raises(AbstractMeshError, match="tessera run --ranks 8"):
        dist.pipeline([layer] * 8, dist.Mesh(["pp"], devices=range(8)), loss=loss)([None] * 8, x, x)


def test_a_batch_split_over_stages_is_refused() -> None:
    mesh = dist.Mesh(["dp", "pp"], shape=(1, 2), backend="emulated")
    step = dist.pipeline([layer] * 2, mesh, microbatches=2, loss=loss)
    x = dist.distribute(whole_numbers(8, 4, seed=7), dist.ShardSpec((0,), ("pp",)), mesh)
    with pytest.raises(PipelineError, match="split over the stages"):
        step([{}, {}], x, x)


def test_a_table_of_ones_own_runs_and_a_wrong_one_does_not() -> None:
    table = schedule("1f1b", 2, 4)
    mesh = emulated(2)
    step = dist.pipeline([layer] * 2, mesh, schedule=table, loss=loss)
    assert step.schedule.microbatches == 4
    with pytest.raises(ArgumentError, match="a table of 2 ranks"):
        dist.pipeline([layer] * 3, emulated(3), schedule=table, loss=loss)
    missing = replace(table, ranks=(table.ranks[0][:-1], table.ranks[1]))
    with pytest.raises(PipelineError, match="once"):
        dist.pipeline([layer] * 2, mesh, schedule=missing, loss=loss)
    moved = dist.pipeline([layer] * 2, mesh, microbatches=4, loss=loss).schedule
    first, second = Action("SEND", 0, 0, "F"), Action("SEND", 0, 1, "F")
    row = [second if each == first else first if each == second else each for each in moved.ranks[0]]
    with pytest.raises(PipelineError, match="transfers"):
        dist.pipeline([layer] * 2, mesh, schedule=replace(moved, ranks=(tuple(row), moved.ranks[1])), loss=loss)
