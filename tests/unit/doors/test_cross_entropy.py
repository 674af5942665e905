"""cross_entropy: against torch in float64, its gradient, what stays out of memory, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tessera import grad, op
from tessera.compiler.bind.arrays import View
from tessera.compiler.bind.launches import Launch
from tessera.compiler.tune.tuning import launches_of_operator
from tessera.errors import ArgumentError, DTypeError, IndexRangeError, ShapeMismatchError
from tessera.handle import Tensor
from tests.property.checking import evaluated
from tests.unit.doors.tile_oracle import interpreted
from tests.whole import examples

functional = torch.nn.functional


def targets_of(shape: tuple[int, ...], classes: int, seed: int, ignored: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    targets = torch.randint(0, classes, shape, generator=generator)
    if ignored is not None:
        targets[torch.rand(shape, generator=generator) < 0.3] = ignored
    return targets


@given(data=st.data())
@settings(max_examples=examples(8, 15))
def test_losses_are_torchs(data: st.DataObject) -> None:
    rows, classes = data.draw(st.sampled_from((1, 2, 7, 33))), data.draw(st.sampled_from((1, 3, 17, 50, 1031)))
    rest = data.draw(st.sampled_from(((), (), (3,), (2, 5))))
    dtype = data.draw(st.sampled_from((torch.float32, torch.float32, torch.float64, torch.bfloat16)))
    seed = data.draw(st.integers(0, 1 << 16))
    x = (torch.randn((rows, classes, *rest)) * 5).to(dtype)
    ignored = data.draw(st.sampled_from((-100, 0, 2)))
    targets = targets_of((rows, *rest), classes, seed, data.draw(st.sampled_from((None, ignored))))
    weight = data.draw(st.sampled_from((None, torch.rand(classes, dtype=torch.float64) + 0.1)))
    options: dict[str, Any] = {
        "ignore_index": ignored,
        "label_smoothing": data.draw(st.sampled_from((0.0, 0.1))),
        "reduction": data.draw(st.sampled_from(("mean", "sum", "none"))),
    }
    own = None if weight is None else weight.to(dtype)
    expected = functional.cross_entropy(x.double(), targets, None if own is None else own.double(), **options)
    result = op.cross_entropy(x, targets, own, **options)
    assert result.dtype.torch == dtype
    tolerance = 2.0**-7 if dtype == torch.bfloat16 else 1e-5 if dtype == torch.float32 else 1e-12
    torch.testing.assert_close(evaluated(result).double(), expected, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("classes", [50257, 7])
def test_one_kernel_makes_the_losses_and_one_the_gradient(classes: int) -> None:
    targets = op.tensor(targets_of((4,), classes, 1))

    def loss(x: Tensor) -> Tensor:
        return op.cross_entropy(x, targets, reduction="none")

    def summed(x: Tensor) -> Tensor:
        return loss(x).sum()

    launches = launches_of_operator(loss, [(4, classes)], "fp32")
    read = [launch for launch in launches if any(math.prod(view.shape) > 4 for view in _arrays(launch))]
    assert len(read) == 1  # the other kernel has four elements
    assert all(view.storage.leaf is not None for view in _arrays(read[0]) if math.prod(view.shape) > 4)
    gradient = launches_of_operator(grad.grad(summed), [(4, classes)], "fp32")
    whole = [view for each in gradient for view in _arrays(each) if math.prod(view.shape) > 4]
    assert sum(view.storage.leaf is None for view in whole) == 1  # the gradient itself


def _arrays(launch: Launch) -> list[View]:
    return [view for view, _ in launch.call.arguments if not view.is_counted]


def test_on_the_tile_interpreter() -> None:
    x, targets = torch.randn(5, 77), targets_of((5,), 77, 3)
    hit = op.tensor(targets[:, None]) == op.arange(77)
    losses = op.logsumexp(x, 1) - op.where(hit, op.tensor(x), 0.0).sum(1)
    expected = functional.cross_entropy(x, targets, reduction="none")
    torch.testing.assert_close(interpreted(Tensor(losses.state)), expected)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_gradients_are_torchs(smoothing: float) -> None:
    x, targets = torch.randn(6, 9, dtype=torch.float64), targets_of((6,), 9, 5, ignored=-100)
    weight = torch.rand(9, dtype=torch.float64)
    ours = grad.grad(lambda a: op.cross_entropy(a, targets, weight, label_smoothing=smoothing))(x)
    leaf = x.clone().requires_grad_()
    functional.cross_entropy(leaf, targets, weight, label_smoothing=smoothing).backward()  # type: ignore[no-untyped-call]
    torch.testing.assert_close(ours.torch(), leaf.grad)


def test_classes_along_another_axis() -> None:
    x, targets = torch.randn(2, 3, 11), targets_of((2, 3), 11, 7)
    expected = functional.cross_entropy(x.reshape(6, 11), targets.reshape(6))
    torch.testing.assert_close(op.cross_entropy(x, targets, axis=-1).torch(), expected)
    torch.testing.assert_close(
        op.cross_entropy(x[0, 0], targets[0, 0]).torch(), functional.cross_entropy(x[0, 0], targets[0, 0])
    )


def test_what_is_not_finite() -> None:
    inf, nan = math.inf, math.nan
    x = torch.tensor([[1.0, -inf, 2.0], [0.0, 1.0, 9.0], [nan, 0.0, 1.0], [-inf, -inf, 0.0], [nan, 0.0, 1.0]])
    targets = torch.tensor([1, 0, 1, 2, -100])
    expected = functional.cross_entropy(x, targets, reduction="none")
    torch.testing.assert_close(op.cross_entropy(x, targets, reduction="none").torch(), expected, equal_nan=True)
    nothing = op.cross_entropy(x, torch.full((5,), -100)).torch()
    assert torch.isnan(nothing)


@pytest.mark.parametrize("wrong", [3, -1, 1 << 40])
def test_a_target_out_of_range_has_its_value_and_place(wrong: int) -> None:
    targets = torch.tensor([0, 1, wrong, 2])
    with pytest.raises(IndexRangeError, match=rf"index {wrong} at \(2,\) of the indices, where there are 3"):
        op.cross_entropy(torch.ones(4, 3), targets).torch()
    assert op.cross_entropy(torch.ones(4, 3), targets, ignore_index=wrong).torch().isfinite()


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_rows_have_torchs_loss(reduction: Any) -> None:
    x, targets = torch.empty(0, 5), torch.empty(0, dtype=torch.long)
    expected = functional.cross_entropy(x, targets, reduction=reduction)
    for _ in range(2):
        torch.testing.assert_close(
            op.cross_entropy(x, targets, reduction=reduction).torch(), expected, rtol=0, atol=0, equal_nan=True
        )


def test_the_place_of_a_wrong_target_is_the_users_line() -> None:
    losses = op.cross_entropy(torch.zeros(4, 5), torch.tensor([0, 5, 1, 1]))
    with pytest.raises(IndexRangeError) as caught:
        losses.eval()
    assert caught.value.where is not None
    assert "test_cross_entropy.py" in caught.value.where


def test_what_is_refused() -> None:
    x, targets = torch.ones(4, 3), torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ShapeMismatchError, match=r"targets of shape \(3,\)"):
        op.cross_entropy(x, targets[:3])
    with pytest.raises(ShapeMismatchError, match=r"weight of shape \(2,\)"):
        op.cross_entropy(x, targets, torch.ones(2))
    with pytest.raises(DTypeError, match="targets of fp32"):
        op.cross_entropy(x, targets.float())
    with pytest.raises(DTypeError, match="logits are floats"):
        op.cross_entropy(x.long(), targets)
    with pytest.raises(ArgumentError, match="reduction='avg'"):
        op.cross_entropy(x, targets, reduction="avg")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="label_smoothing=2"):
        op.cross_entropy(x, targets, label_smoothing=2)


def test_on_the_interpreter() -> None:
    x, targets = torch.randn(4, 33), targets_of((4,), 33, 3)
    there = op.cross_entropy(op.tensor(x, device="interpreter"), op.tensor(targets, device="interpreter"))
    torch.testing.assert_close(there.torch(), functional.cross_entropy(x, targets))
