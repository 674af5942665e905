"""Mixtures of experts beside a loop over tokens in torch, and on meshes beside one process, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tessera import dist, grad, graph, op
from tessera.errors import ArgumentError, MeshError, ShapeMismatchError, TesseraError
from tessera.lazy.evaluation import evaluate
from tests.mesh.mixtures import (
    EXPERTS,
    WIDTH,
    by_loop,
    expert_of,
    fault_of,
    mixture,
    nested_fault_of,
    numbers,
    pinned_fault_of,
)
from tests.mesh.references import by_references


@pytest.mark.parametrize("capacity", [None, 1.0, 0.25])
@pytest.mark.parametrize("groups", [1, 3])
def test_a_mixture_is_the_loop_over_tokens(capacity: float | None, groups: int) -> None:
    x, router, up, down = numbers()
    with by_references():
        made = mixture(*map(op.tensor, (x, router, up, down)), capacity=capacity, groups=groups).torch()
    wanted = by_loop(x, router, up, down, capacity, groups)
    assert torch.equal(made, wanted)
    if capacity == 0.25:
        assert (wanted == 0).all(1).any(), "some tokens find no place"


def test_weights_are_the_softmax_of_the_chosen_scores() -> None:
    x, router, up, _ = (value / 4 for value in numbers())

    def squares(x: Any, router: Any, up: Any) -> Any:
        return op.sum(op.moe(x.reshape(2, 12, WIDTH), router, up, capacity=None) ** 2)

    with by_references():
        made = op.moe(op.tensor(x), router, up, capacity=None).torch()
        found = [each.torch() for each in grad.grad(squares, (0, 1, 2))(*map(op.tensor, (x, router, up)))]
    leaves = [value.clone().requires_grad_() for value in (x, router, up)]
    scores, chosen = (leaves[0] @ leaves[1]).topk(2)
    each = torch.einsum("td,edf->tef", leaves[0], leaves[2]).gather(1, chosen[..., None].expand(-1, -1, up.shape[-1]))
    wanted = (each * scores.softmax(-1)[..., None]).sum(1)
    (wanted**2).sum().backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(made, wanted.detach())
    torch.testing.assert_close(found, [leaf.grad for leaf in leaves])


@pytest.mark.parametrize(
    ("grid", "split", "capacity"),
    [
        ({"ep": 2}, ("ep",), None),
        ({"ep": 4}, ("ep",), 0.5),
        ({"dp": 2, "ep": 2}, ("dp", "ep"), 0.5),
        ({"dp": 2, "ep": 2}, ("ep", "dp"), None),
        ({"ep": 2, "tp": 2}, ("ep",), 0.5),
        ({"ep": 3, "tp": 2}, ("tp", "ep"), 0.5),  # more experts on some devices than on others
        ({"ep": 4}, (), 0.5),
    ],
)
def test_a_mesh_gives_the_bits_of_one_process(
    grid: dict[str, int], split: tuple[str, ...], capacity: float | None
) -> None:
    mesh = dist.Mesh(list(grid), shape=tuple(grid.values()), backend="emulated")
    with by_references():
        assert fault_of(mesh, split, capacity) is None


@pytest.mark.parametrize("capacity", [None, 0.75])
def test_experts_that_are_mixtures_give_the_bits_of_one_process(capacity: float | None) -> None:
    with by_references():
        assert nested_fault_of(dist.Mesh(["ep", "tp"], shape=(2, 2), backend="emulated"), capacity) is None


@pytest.mark.parametrize(
    ("grid", "split", "capacity", "parts"),
    [
        ({"ep": 4}, ("ep",), 0.5, [0, 1, 2, 3]),
        ({"ep": 4}, ("ep",), None, [slice(0, 2), slice(0, 2), slice(2, 4), slice(2, 4)]),
        ({"ep": 2, "tp": 2}, ("ep",), 0.5, [0, 0, 1, 1]),
        ({"dp": 2, "ep": 4}, ("dp", "ep"), 0.75, [slice(0, 2), slice(0, 2), slice(2, 4), slice(2, 4)]),
        ({"ep": 2}, (), None, [slice(0, 2)] * 4),
    ],
)
def test_different_functions_on_parts_of_the_mesh_give_the_bits_of_one_process(
    grid: dict[str, int], split: tuple[str, ...], capacity: float | None, parts: list[int | slice]
) -> None:
    mesh = dist.Mesh(list(grid), shape=tuple(grid.values()), backend="emulated")
    with by_references():
        assert pinned_fault_of(mesh, [mesh["ep", part] for part in parts], split, capacity) is None


def test_a_number_of_an_expert_may_be_one_of_the_loss() -> None:
    mesh = dist.Mesh(["ep"], shape=(4,), backend="emulated")
    x, router, up, _ = numbers()
    wholes = x, router[:, :2], up[0, :, :WIDTH], up[1, :, :WIDTH]
    parts = mesh["ep", 0:2], mesh["ep", 2:4]

    def loss(*values: Any, pinned: bool = False) -> Any:
        experts: list[Any] = [lambda rows, weight=weight: op.matmul(rows, weight) * 2.0 for weight in values[2:]]
        experts = [dist.pin(*each) for each in zip(experts, parts, strict=True)] if pinned else experts
        return op.sum(op.moe(values[0], values[1], experts, weighting="scores", capacity=None) * 2.0)

    there = [
        dist.distribute(whole, spec, place)
        for whole, spec, place in zip(
            wholes, (dist.ShardSpec((0,), ("ep",)), None, None, None), (mesh, mesh, *parts), strict=True
        )
    ]
    with by_references():
        one = grad.grad(loss, (0, 1, 2, 3))(*map(op.tensor, wholes))
        many = grad.grad(lambda *values: loss(*values, pinned=True), (0, 1, 2, 3))(*there)
        for alone, shared in zip(one, many, strict=True):
            assert torch.equal(alone.torch(), shared.full().torch())


def test_rows_go_to_their_experts_and_back_by_an_exchange_each() -> None:
    mesh = dist.Mesh(["dp", "ep"], devices=range(8), shape=(2, 4))
    x = dist.tensor((64, 16), dist.ShardSpec((0,), (("dp", "ep"),)), mesh)
    router, experts = dist.tensor((16, 8), None, mesh), dist.tensor((8, 16, 16), dist.ShardSpec((0,), ("ep",)), mesh)
    made = op.moe(x, router, experts, capacity=1.0)
    (program,) = graph.explain(made).meshes
    assert [move.step for move in program.moves] == ["AllToAll[ep]", "AllToAll[ep]"]
    assert not any(move.implicit for move in program.moves)
    # 8 tokens of each device, 2 experts of each, 8 experts: 2 places of each expert, of 16 numbers.
    assert program.bytes == 2 * (3 / 4) * (8 * 2 * 16 * 4)
    assert made.layout is x.layout


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"top_k": EXPERTS + 1}, ArgumentError),
        ({"capacity": 0.0}, ArgumentError),
        ({"groups": 5}, ArgumentError),
        ({"weighting": "sum"}, ArgumentError),
        ({"batch": 1}, ShapeMismatchError),
        ({"router": torch.ones(WIDTH + 1, EXPERTS)}, ShapeMismatchError),
        ({"router": lambda tokens: tokens.sum()}, ShapeMismatchError),
        ({"experts": lambda rows: rows[:1]}, ShapeMismatchError),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], error: type[TesseraError]) -> None:
    x, router, up, _ = numbers()
    with pytest.raises(error):
        op.moe(x, **{"router": router, "experts": up, **options})


def test_an_axis_that_the_mesh_has_not_is_refused() -> None:
    mesh = dist.Mesh(["tp"], shape=(2,), backend="emulated")
    x, router, up, _ = (dist.distribute(whole, None, mesh) for whole in numbers())
    with pytest.raises(MeshError, match="axis='ep'"):
        op.moe(x, router, up)
    assert op.moe(x, router, up, axis=None).shape == (24, 6)


def test_pins_that_are_no_equal_parts_of_the_axis_are_refused() -> None:
    mesh = dist.Mesh(["ep"], devices=range(4))
    x = dist.tensor((24, WIDTH), dist.ShardSpec((0,), ("ep",)), mesh)
    router = dist.tensor((WIDTH, 2), None, mesh)
    left, right = mesh["ep", 0:2], mesh["ep", 2:4]
    uneven = [dist.pin(op.relu, mesh["ep", 0:1]), dist.pin(op.relu, mesh["ep", 1:4])]
    wrong: list[list[Any]] = [
        uneven,
        [dist.pin(op.relu, right), dist.pin(op.relu, left)],
        [dist.pin(op.relu, left), op.relu],
    ]
    for experts in wrong:
        with pytest.raises(MeshError):
            op.moe(x, router, experts)
    with pytest.raises(ArgumentError, match="3 functions as the experts of 2"):
        op.moe(x, router, [op.relu] * 3)
    elsewhere = dist.tensor((WIDTH, WIDTH), None, left)
    experts = [dist.pin(op.relu, left), dist.pin(lambda rows: op.matmul(rows, elsewhere), right)]
    made = op.moe(x, router, experts)
    assert made.layout is x.layout
    here = dist.Mesh(["ep"], shape=(4,), backend="emulated")
    lost = dist.tensor((WIDTH, WIDTH), None, here["ep", 0:2])
    experts = [dist.pin(op.relu, here["ep", 0:2]), dist.pin(lambda rows: op.matmul(rows, lost), here["ep", 2:4])]
    tokens = dist.tensor((24, WIDTH), dist.ShardSpec((0,), ("ep",)), here)
    made = op.moe(tokens, dist.tensor((WIDTH, 2), None, here), experts)
    with pytest.raises(MeshError, match=r"ranks \[0, 1\], which ranks \[2, 3\] read"):
        made.eval()


@pytest.mark.parametrize("settings", [{}, {"chunk": 2, "bucket_bytes": 0}])
def test_pinned_experts_learn_what_they_learn_on_one_device(settings: dict[str, Any]) -> None:
    mesh = dist.Mesh(["dp", "ep"], shape=(2, 2), backend="emulated")
    x, router, up, down = (whole.double() for whole in numbers())  # sums of whole numbers are exact
    wholes = [up[0], down[0], up[1, :, :WIDTH]]

    def trained(x: Any, router: Any, weights: list[Any], parts: list[dist.Mesh] | None) -> list[Any]:
        def loss(first: Any, second: Any, other: Any) -> Any:
            experts = [expert_of(0, [first, second]), expert_of(1, [other])]
            pinned = experts if parts is None else [dist.pin(*each) for each in zip(experts, parts, strict=True)]
            return op.sum(op.moe(x, router[:, :2], pinned, top_k=1, weighting="scores", capacity=None, groups=4))

        value = None
        for _ in range(2):
            value, gradients = grad.value_and_grad(loss, (0, 1, 2))(*weights)
            weights = [weight - 0.5 * gradient for weight, gradient in zip(weights, gradients, strict=True)]
        made = [value, *weights]
        evaluate(made)
        return made

    left, right = mesh["ep", 0], mesh["ep", 1]
    columns = dist.ShardSpec((1,), ("dp",))
    laid = [dist.distribute(whole, columns, part) for whole, part in zip(wholes, (left, left, right), strict=True)]
    with by_references(), dist.communication(**settings):
        alone = trained(op.tensor(x), op.tensor(router), list(map(op.tensor, wholes)), None)
        tokens = dist.distribute(x, dist.ShardSpec((0,), (("dp", "ep"),)), mesh)
        shared = trained(tokens, dist.distribute(router, None, mesh), list(laid), [left, right])
        assert [each.mesh for each in shared] == [mesh, left, left, right]
        for one, other in zip(alone, shared, strict=True):
            assert torch.equal(one.torch(), other.full().torch())
