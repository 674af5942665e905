"""Knobs that users pin: honoured through rewriting and fusion, refused by name where they cannot be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import tessera
from tessera import op
from tessera.compiler import pipeline
from tessera.compiler.device import compilers
from tessera.compiler.explain.inspection import schedules_of
from tessera.compiler.tune.problems import tuning_problem
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, ScheduleError, TuneSpaceEmptyError
from tessera.grad import grad
from tessera.scheduling.language.schedule import KnobValue, Schedule

TILE = (48, 64, 64)


@pytest.fixture
def a() -> torch.Tensor:
    return torch.randn(70, 130)


@pytest.fixture
def b() -> torch.Tensor:
    return torch.randn(130, 50)


def close(result: torch.Tensor, expected: torch.Tensor) -> None:
    """Both are sums of fp32 products in some order, which differ in the last bits."""
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


def only_schedule(tensor: tessera.Tensor) -> Schedule:
    (schedule,) = schedules_of(tensor.structure)
    return schedule


def test_a_pinned_knob_is_used_and_the_result_is_the_same(a: torch.Tensor, b: torch.Tensor) -> None:
    product = op.matmul(a, b).pin(tile=TILE, unroll=2)
    schedule = only_schedule(product)
    assert (schedule["tile"], schedule["unroll"]) == (TILE, 2)
    close(product.torch(), a @ b)


def test_a_result_seen_otherwise_pins_the_kernel_that_makes_it(a: torch.Tensor, b: torch.Tensor) -> None:
    turned = op.matmul(a, b).reshape(10, 350).pin(tile=TILE)
    assert only_schedule(turned)["tile"] == TILE
    close(turned.torch(), (a @ b).reshape(10, 350))


@pytest.mark.parametrize("maps", [lambda y: y, op.relu])
def test_kernels_of_images_in_channels_last_memory_are_pinned(maps: Any) -> None:
    image = torch.randn(2, 16, 11, 13).to(memory_format=torch.channels_last)
    taps, weights = torch.randn(16, 1, 3, 3), torch.randn(24, 16, 3, 3)
    convolve = torch.nn.functional.conv2d
    for result, expected, knobs in (
        (op.depthwise_conv2d(image, taps, padding=1), convolve(image, taps, padding=1, groups=16), {"rows": 2}),
        (op.max_pool2d(image, 3), torch.nn.functional.max_pool2d(image, 3), {"vectorize": 1}),
        (op.conv2d(image, weights), convolve(image, weights), {"unroll": 2}),
    ):
        pinned = maps(result).pin(**knobs)
        assert any(knobs.items() <= schedule.items() for schedule in schedules_of(pinned.structure)), knobs
        close(pinned.torch(), maps(op.tensor(expected)).torch())


def test_without_a_pin_the_same_algebra_keeps_its_own_schedule(a: torch.Tensor, b: torch.Tensor) -> None:
    pinned, free = op.matmul(a, b).pin(tile=TILE), op.matmul(a, b)
    assert only_schedule(pinned)["tile"] == TILE
    assert only_schedule(free)["tile"] != TILE


@pytest.mark.usefixtures("cache_dir")
def test_the_other_knobs_are_near_those_of_the_default(
    a: torch.Tensor, b: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compilers.kernel_compiler(), "tuned", None)  # no schedule that another test has tuned
    pipeline.forget_plans()
    default, pinned = only_schedule(op.matmul(a, b)), only_schedule(op.matmul(a, b).pin(unroll=1))
    assert [knob for knob in default if default[knob] != pinned[knob]] in (["unroll"], [])


def test_pins_go_along_where_the_operation_is_rewritten(a: torch.Tensor, b: torch.Tensor) -> None:
    product = op.matmul(op.transpose(op.softmax(a.T.contiguous())), b).pin(tile=TILE)
    assert "transpose" in product.inspect("rewrites")
    assert [schedule["tile"] for schedule in schedules_of(product.structure)][-1] == TILE
    close(product.torch(), torch.softmax(a.T, -1).T @ b)


def test_pins_inside_a_fused_kernel(a: torch.Tensor, b: torch.Tensor) -> None:
    fused = op.relu(op.matmul(a, b).pin(tile=TILE) + 1.0)
    assert only_schedule(fused)["tile"] == TILE
    close(fused.torch(), torch.relu(a @ b + 1))


def test_pinned_apart_the_operators_are_kernels_of_their_own(a: torch.Tensor, b: torch.Tensor) -> None:
    apart = op.relu(op.matmul(a, b).pin(fusion=False))
    assert len(schedules_of(apart.structure)) == 2
    close(apart.torch(), torch.relu(a @ b))


def test_rows_and_kernels_of_users(a: torch.Tensor) -> None:
    @op.kernel
    def weights(x: tessera.Tensor) -> tessera.Tensor:
        return op.softmax(x * 2.0).pin(ahead=True)

    close(weights(a).torch(), torch.softmax(a * 2, -1))  # type: ignore[arg-type]
    assert only_schedule(op.softmax(a).pin(ahead=True))["ahead"] is True


def test_a_later_pin_comes_before_an_earlier_one(a: torch.Tensor, b: torch.Tensor) -> None:
    twice = op.matmul(a, b).pin(tile=TILE, unroll=2).pin(unroll=1)
    assert (only_schedule(twice)["tile"], only_schedule(twice)["unroll"]) == (TILE, 1)


def test_gradients_pass_through() -> None:
    x = torch.randn(5, 7)

    def loss(x: tessera.Tensor) -> tessera.Tensor:
        return op.sum(op.exp(x).pin(nontemporal=False))

    close(grad(loss)(x).torch(), x.exp())


def test_what_is_tuned_around_pins_is_remembered_apart() -> None:
    def pinned(x: tessera.Tensor, y: tessera.Tensor) -> tessera.Tensor:
        return op.matmul(x, y).pin(tile=TILE)

    names = []
    for operator in (op.matmul, pinned):
        (launch,) = launches_of_operator(operator, [(70, 130), (130, 50)], None)
        problem = tuning_problem(launch.call, compilers.kernel_compiler())
        names.append(problem.identity.operator)
        tiles = {schedule["tile"] for schedule in problem.space.neighbours(problem.space.default)}
        assert (tiles == {TILE}) == (operator is pinned)
    assert names[0] != names[1]


@pytest.mark.parametrize(
    ("knobs", "kind", "said"),
    [
        ({"warp": 3}, ScheduleError, "warp=3"),
        ({"tile": (7, 3, 130)}, TuneSpaceEmptyError, "tile"),
        ({"unroll": 12345}, ScheduleError, "unroll=12345"),
    ],
)
def test_a_knob_that_cannot_be_is_refused_with_the_reason(
    a: torch.Tensor, b: torch.Tensor, knobs: dict[str, KnobValue], kind: type[Exception], said: str
) -> None:
    product = op.matmul(a, b).pin(**knobs)
    with pytest.raises(kind, match=said) as caught:
        product.eval()
    assert isinstance(caught.value, tessera.TesseraError)
    assert caught.value.hints
    assert caught.value.where is not None
    assert "test_pins.py" in caught.value.where


@pytest.mark.parametrize("tile", [(16, 16), (3, 5)])
def test_maps_walk_one_row_in_a_step(a: torch.Tensor, tile: tuple[int, int]) -> None:
    with pytest.raises(TuneSpaceEmptyError, match=r"tile") as caught:
        op.relu(a).pin(tile=tile).eval()
    assert any("one row" in hint for hint in caught.value.hints)


def test_two_pins_in_one_kernel_that_disagree(a: torch.Tensor, b: torch.Tensor) -> None:
    both = op.relu(op.matmul(a, b).pin(tile=TILE)).pin(tile=(96, 64, 64))
    with pytest.raises(ScheduleError, match=r"matmul_relu.*\(48, 64, 64\).*\(96, 64, 64\)") as caught:
        both.eval()
    assert caught.value.where is not None
    assert "test_pins.py" in caught.value.where


def test_what_has_no_kernel_cannot_be_pinned(a: torch.Tensor) -> None:
    for tensor in (op.tensor(a), op.tensor(a).T, op.concat([a, a]), op.cumsum(a, 0)):
        with pytest.raises(ArgumentError, match="no kernel to pin"):
            tensor.pin(tile=TILE)
    with pytest.raises(ArgumentError, match="no knob"):
        op.relu(a).pin()
    with pytest.raises(ArgumentError, match=r"tile=1\.5"):
        op.relu(a).pin(tile=1.5)  # type: ignore[arg-type]
