"""Plans of traced steps: operators by the axes of their anchors, gradients and all, without computing anything."""

from __future__ import annotations

import math
from typing import Any

import pytest

from tessera import Tensor, dist, grad, op
from tessera.dtypes import dtype_of
from tessera.errors import ArgumentError, MemoryLimitError
from tessera.lazy.leaves.leaf import scalar_leaf
from tessera.lazy.node import joined, leaf_node
from tessera.sharding.planner.calibration import EFFICIENCIES
from tessera.sharding.planner.layouts import SplitAxis, choose_layouts
from tessera.sharding.planner.rates import device_rates
from tessera.sharding.planner.traced import TracedStep, traced
from tessera.target.topology import topology
from tests.fuzz.drawing import draw
from tests.fuzz.program import Step
from tests.fuzz.ways import nodes_of

RATES = device_rates(topology("gb200-nvl72"), "bf16", EFFICIENCIES["GB200"])


def step_of(function: Any, *shapes: tuple[int, ...]) -> TracedStep:
    tensors = [dist._stand_in(shape) for shape in shapes]
    made = function(*tensors)
    return traced(joined(made if isinstance(made, tuple) else (made,))[0])


def mlp(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
    return op.mean(op.matmul(op.relu(op.matmul(x, w1)), w2) ** 2)


def training(w1: Tensor, w2: Tensor, x: Tensor) -> object:
    return grad.value_and_grad(mlp, (0, 1))(w1, w2, x)


def test_a_product_is_read_off_its_anchor() -> None:
    step = step_of(op.matmul, (6, 8), (8, 10))
    product = next(operator for operator in step.operators if operator.name == "matmul")
    (m, k), (other, n) = product.operands
    assert k == other
    assert product.result == (m, n)
    assert [step.extents[factor] for factor in (m, k, n)] == [6, 8, 10]
    assert product.flops == 2 * 6 * 8 * 10
    assert product.whole == frozenset()
    assert [step.operators[number].name for number in (*step.leaves.values(), *step.results)] == [
        "leaf 0",
        "leaf 1",
        "result",
    ]


def test_rows_windows_and_repeated_elements_stay_whole() -> None:
    softmax = next(o for o in step_of(op.softmax, (4, 8)).operators if o.name == "softmax")
    rows, along = softmax.operands[0]
    assert along in softmax.whole
    assert rows not in softmax.whole
    added = next(o for o in step_of(lambda x, b: x + b, (4, 8), (1, 8)).operators if o.name == "add")
    assert added.operands[1][0] in added.whole
    assert added.operands[0][1] == added.operands[1][1] == added.result[1]
    image = step_of(op.conv2d, (2, 3, 8, 8), (4, 3, 3, 3))
    window = next(o for o in image.operators if o.name == "conv2d")
    assert set(window.operands[0][1:3]) <= window.whole
    assert window.operands[0][0] not in window.whole


def test_what_is_summed_over_a_split_axis_is_combined_before_it_leaves() -> None:
    step = step_of(lambda x: op.sum(x, axis=0), (1 << 26, 4))
    found = choose_layouts(step.operators, step.extents, [SplitAxis("tp", 8, 1)], RATES, training=False)
    total = next(layout for layout in found.layouts if layout.operator == "sum")
    assert total.split["tp"] == step.operators[1].operands[0][0]
    assert total.of(step.operators[1].result, pending=True) == "- | sum tp"
    assert found.layouts[step.results[0]].of(step.operators[step.results[0]].result, pending=True) in ("-", "tp")


def test_a_training_step_of_few_tokens_splits_weights_and_of_many_splits_tokens() -> None:
    few = dist.plan(training, (4096, 16_384), (16_384, 4096), (64, 4096), devices=8, fixed={"tp": 8})
    assert few.best.arguments[0] == "-, tp"
    assert few.best.arguments[1] == "tp, -"
    assert few.best.results[1:] == ("-, tp", "tp, -")
    many = dist.plan(training, (512, 512), (512, 512), (1 << 20, 512), devices=8, fixed={"tp": 8})
    assert many.best.arguments[2] == "tp, -"
    assert many.best.arguments[:2] == ("-, -", "-, -")


def test_meshes_are_all_divisions_the_fastest_first() -> None:
    found = dist.plan(training, (4096, 16_384), (16_384, 4096), (4608, 4096), devices=72)
    assert {(row.axes["tp"], row.axes["dp"]) for row in found.rows} == {
        (n, 72 // n) for n in range(1, 73) if 72 % n == 0
    }
    assert [row.seconds for row in found.rows] == sorted(row.seconds for row in found.rows)
    whole = 2 * (2 * 4096 * 16_384 * 2 + 4608 * 4096)
    assert all(whole / 72 <= row.memory <= 2 * whole for row in found.rows)
    text = str(found)
    assert "all of it is predicted" in text
    assert "no traced step was compared with a measurement" in text
    alone = dist.plan(training, (4096, 16_384), (16_384, 4096), (4608, 4096), devices=1)
    assert found.best.seconds > alone.best.seconds / 72
    assert found.best.seconds < alone.best.seconds
    assert math.prod(found.best.axes.values()) == 72


def test_tensors_are_planned_as_their_shapes_are_and_not_computed() -> None:
    w1, w2, x = (dist.tensor(shape, dtype="bf16") for shape in ((64, 128), (128, 64), (32, 64)))
    found = dist.plan(mlp, w1, w2, x, devices=4)
    assert found.best.results == ("one number",)
    assert found.rows == dist.plan(mlp, (64, 128), (128, 64), (32, 64), devices=4).rows


def test_an_argument_that_nothing_reads_is_named() -> None:
    assert dist.plan(lambda x, y: x + 1, (8, 8), (4, 4), devices=2).best.arguments[1] == "unused"


def test_a_number_may_be_a_result() -> None:
    number = leaf_node(scalar_leaf(2.0, dtype_of("fp32")))
    assert dist.plan(lambda x: (x + 1, number), (8, 8), devices=2).best.results[1] == "one number"


def test_what_is_no_step_is_refused() -> None:
    with pytest.raises(ArgumentError, match="gives tensors, or tuples of them, not float"):
        dist.plan(lambda x: 1.0, (4, 4), devices=2)
    with pytest.raises(ArgumentError, match="'pp' is no axis of a traced step's plan"):
        dist.plan(mlp, (8, 8), (8, 8), (8, 8), devices=2, fixed={"pp": 2})
    with pytest.raises(ArgumentError, match="is no mesh of 8 devices"):
        dist.plan(mlp, (8, 8), (8, 8), (8, 8), devices=8, fixed={"tp": 3})
    with pytest.raises(ArgumentError, match="a step's batch is in the shapes"):
        dist.plan(mlp, (8, 8), (8, 8), (8, 8), devices=8, batch=3)  # type: ignore[call-overload]
    with pytest.raises(ArgumentError, match="planned by its batch alone"):
        dist.plan(dist.Transformer(1, 8, 1, 8, 8, 8), devices=8)  # type: ignore[call-overload]
    with pytest.raises(MemoryLimitError, match="fit on no mesh of 8 devices"):
        dist.plan(mlp, (4096, 4096), (4096, 4096), (8, 4096), devices=8, memory=1e6)


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_drawn_programs_of_all_operators_keep_their_shapes_and_get_layouts(seed: int) -> None:
    program = draw(seed)
    nodes = nodes_of(program)
    roots = [nodes[root] for root in program.roots if isinstance(program.entries[root], Step)]
    structure, leaves = joined(roots)
    step = traced(structure)
    extent_of = step.extents.__getitem__
    for root, number in zip(roots, step.results, strict=True):
        assert tuple(map(extent_of, step.operators[number].result)) == root.shape
    for leaf, number in step.leaves.items():
        assert tuple(map(extent_of, step.operators[number].result)) == leaves[leaf].structure.shape
    for operator in step.operators:
        for dims, source in zip(operator.operands, operator.sources, strict=True):
            if source is not None:
                assert tuple(map(extent_of, dims)) == tuple(map(extent_of, step.operators[source].result))
    found = choose_layouts(step.operators, step.extents, [SplitAxis("tp", 2, 1)], RATES, training=False)
    for operator, layout in zip(step.operators, found.layouts, strict=True):
        assert layout.split["tp"] not in operator.whole
    assert 0 <= found.seconds < math.inf
