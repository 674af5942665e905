"""Plans that run, on emulated meshes: the step of one process, in the layouts of the plan."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera import Tensor, dist, grad, op
from tessera.errors import AbstractMeshError, ArgumentError, MeshError
from tessera.sharding.planner.applied import spec_of
from tests.mesh.pipelined import whole_numbers
from tests.mesh.references import by_references

SMALL = dist.Transformer(4, 8, 2, 16, 64, 4, name="small")


def loss(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return op.mean(op.matmul(op.relu(op.matmul(x, w1)), w2) ** 2)


def training(w1: Tensor, w2: Tensor, x: Tensor) -> Any:
    return grad.value_and_grad(loss, (0, 1))(w1, w2, x)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_planned_step_gives_what_one_process_gives(tp: int) -> None:
    plan = dist.plan(training, (8, 16), (16, 8), (32, 8), devices=4, fixed={"tp": tp})
    applied = plan.apply(backend="emulated")
    numbers = whole_numbers(8, 16, seed=0), whole_numbers(16, 8, seed=1), whole_numbers(32, 8, seed=2)
    with by_references():
        value, gradients = training(*map(op.tensor, numbers))
        found, own = applied(*numbers)

        assert dict(applied.mesh.shape) == {"dp": 4 // tp, "tp": tp}
        assert applied.mesh.topology == "gb200-nvl72"
        assert found.item() == value.item()
        assert isinstance(own, tuple)
        for here, there, spec in zip(gradients, own, applied.results[1:], strict=True):
            assert torch.equal(there.full().torch(), here.torch())
            assert there.layout == spec.layout(applied.mesh, 2)


def test_layouts_are_those_that_the_table_prints_and_what_lies_so_is_not_moved() -> None:
    plan = dist.plan(training, (4096, 16_384), (16_384, 4096), (64, 4096), devices=8, fixed={"tp": 8})
    applied = plan.apply(backend="emulated")
    printed = [str(spec.layout(applied.mesh, 2)) for spec in applied.arguments]
    assert printed == list(plan.best.arguments)
    assert printed[:2] == ["-, tp", "tp, -"]
    up, down, x = (whole_numbers(*shape, seed=7) for shape in ((8, 16), (16, 8), (16, 8)))
    placed = [dist.distribute(w, spec, applied.mesh) for w, spec in zip((up, down), applied.arguments, strict=False)]
    with by_references(), dist.communication(implicit="error"):
        value, gradients = applied(*placed, x)
        assert [str(each.layout) for each in gradients] == ["-, tp", "tp, -"]
        assert value.item() == loss(*map(op.tensor, (up, down, x))).item()


def test_a_plan_for_devices_that_are_not_there_is_a_plan() -> None:
    plan = dist.plan(loss, (64, 64), (64, 64), (72, 64), devices=72)
    applied = plan.apply()
    assert applied.mesh.state == "abstract"
    shapes = ((64, 64), (64, 64), (72, 64))
    value = applied(
        *[dist.tensor(shape, spec, applied.mesh) for shape, spec in zip(shapes, applied.arguments, strict=True)]
    )
    with pytest.raises(AbstractMeshError, match="tessera run --ranks 72"):
        value.eval()


def test_arguments_and_results_of_another_number_are_refused() -> None:
    shapes: list[tuple[int, ...]] = [(8, 8), (8, 8)]
    made: list[Any] = [lambda x, y: (x + y, x)]

    def step(x: Tensor, y: Tensor) -> object:
        return made[0](x, y)

    applied = dist.plan(step, *shapes, devices=2).apply(backend="emulated")
    x = torch.ones(8, 8)
    with pytest.raises(ArgumentError, match="1 arguments of a step that was planned with 2"):
        applied(x)
    made[0] = lambda x, y: x
    with pytest.raises(ArgumentError, match="fewer tensors than the 2"):
        applied(x, x)
    made[0] = lambda x, y: (x, y, x)
    with pytest.raises(ArgumentError, match="more tensors than were planned"):
        applied(x, x)
    elsewhere = dist.distribute(x, None, dist.Mesh(["other"], shape=(2,), backend="emulated"))
    with pytest.raises(MeshError, match="the mesh has no axis"):
        dist.plan(lambda x: x + 1, (64, 64), devices=2, fixed={"tp": 2}).apply(backend="emulated")(elsewhere)


def test_the_specs_of_zero_split_a_dimension_that_is_whole() -> None:
    assert spec_of(((), ("tp",)), "dp") == dist.ShardSpec((0, 1), ("dp", "tp"))
    assert spec_of((("tp",),), "dp") == dist.ShardSpec((0,), (("tp", "dp"),))
    assert spec_of(((), ())) == dist.ShardSpec()


def block(weights: Any, x: Any) -> Tensor:
    """A stage of a transformer with its weights as the planner names them; linear attention, so that sums are exact."""
    q = op.einsum("bsh,hne->bsne", x, weights["queries"])
    scores = op.einsum("bsne,btne->bnst", q, q)
    mixed = op.einsum("bnst,btne->bsne", scores, q)
    x = x + op.einsum("bsne,neh->bsh", mixed, weights["projection"])
    inner = op.relu(op.einsum("bsh,hi->bsi", x, weights["up"]))
    made: Tensor = x + op.einsum("bsi,ih->bsh", inner, weights["down"])
    return made


def squares(y: Tensor, wanted: Tensor) -> Tensor:
    made: Tensor = op.sum((y - wanted) ** 2) / 4096
    return made


@pytest.mark.parametrize(("zero", "schedule"), [(1, "1f1b"), (3, "zb1p")])
def test_a_planned_transformer_is_a_pipeline_of_sharded_stages(zero: int, schedule: str) -> None:
    fixed = {"tp": 2, "pp": 2, "dp": 2, "microbatch": 2, "zero": zero, "schedule": schedule}
    applied = dist.plan(SMALL, batch=8, devices=8, fixed=fixed).apply(backend="emulated")
    assert applied.mesh.axes[-1] == "tp"
    assert dict(applied.mesh.shape) == {"dp": 2, "pp": 2, "cp": 1, "tp": 2}
    assert (applied.stages, applied.microbatches, applied.schedule) == (2, 2, schedule)
    if zero == 3:
        assert applied.weights == applied.state
        assert applied.weights["up"] == dist.ShardSpec((0, 1), ("dp", "tp"))
    shapes = {"queries": (8, 2, 4), "projection": (2, 4, 8), "up": (8, 16), "down": (16, 8)}
    numbers = [
        {name: whole_numbers(*shape, seed=10 * stage + place) / 2 for place, (name, shape) in enumerate(shapes.items())}
        for stage in range(2)
    ]
    x, wanted = whole_numbers(8, 4, 8, seed=90), whole_numbers(8, 4, 8, seed=91)
    step = dist.pipeline(
        [block] * applied.stages,
        applied.mesh,
        microbatches=applied.microbatches,
        schedule=schedule,
        loss=squares,
        reduction="sum",
    )
    with by_references():
        flat = [op.tensor(each) for stage in numbers for each in stage.values()]

        def whole(*given: Tensor) -> Tensor:
            first, second = (dict(zip(shapes, given[at : at + 4], strict=True)) for at in (0, 4))
            return squares(block(second, block(first, op.tensor(x))), op.tensor(wanted))

        value, gradients = grad.value_and_grad(whole, tuple(range(8)))(*flat)
        weights = [
            {name: dist.distribute(each, applied.weights[name], step.mesh(stage)) for name, each in own.items()}
            for stage, own in enumerate(numbers)
        ]
        batch = [dist.distribute(each, applied.batch, applied.mesh) for each in (x, wanted)]
        found, own = step(weights, *batch)

        assert found == pytest.approx(value.item(), rel=1e-5)
        for number, (here, there) in enumerate(
            zip(gradients, [each for stage in own for each in stage.values()], strict=True)
        ):
            torch.testing.assert_close(there.full().torch(), here.torch(), rtol=1e-5, atol=1e-4)
            assert there.layout == list(applied.weights.values())[number % 4].layout(step.mesh(0), there.ndim)


def test_experts_have_no_layout_yet() -> None:
    mixture = dist.Transformer(4, 1024, 8, 1024, 1024, 512, experts=8, top_k=2, name="mixture")
    with pytest.raises(ArgumentError, match="experts over 4 devices"):
        dist.plan(mixture, batch=16, devices=8, fixed={"ep": 4}).apply()
