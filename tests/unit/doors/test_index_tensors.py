"""Indexing by tensors, and tensors with elements replaced: torch's results for all kinds of indices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tessera import grad, op
from tessera.errors import ArgumentError, DTypeError, IndexRangeError, ShapeMismatchError, ValueControlFlowError
from tessera.handle import Tensor
from tessera.lazy.structures.structure import Structure

SOURCE = torch.Generator().manual_seed(5)
X = torch.randn(4, 5, 6, generator=SOURCE)
I = torch.tensor([3, -1, 0])  # noqa: E741 - places
J = torch.tensor([[1], [-2]])
MASK = torch.rand(4, 5, generator=SOURCE) > 0.5
ROW = torch.tensor([True, False, False, True, True])
ALL = slice(None)

INDICES: list[Any] = [
    I, J, (ALL, I), (..., I), (I, slice(1, 4)), (I, I), (ALL, I, I), (I, ALL, I), (0, ALL, I), (I, 0), (None, I),
    (I, None, I), (J, I), (J, ALL, I), ([0, 2],), [1, 2], [], (..., [0, 1]), (slice(None, None, 2), I[1:]),
    (slice(None, None, -1), I), torch.tensor(2), (torch.tensor(1), slice(2)), torch.zeros(0, dtype=torch.int64),
    I.numpy(), I.int(), MASK, (MASK, 2), (MASK, slice(None, None, 2)), (ALL, ROW), (ALL, ROW, None), X > 0,
    torch.zeros(4, dtype=torch.bool), (torch.ones(4, dtype=torch.bool), torch.tensor([1, 2, 3, 0])),
    (ROW[:4], ALL, I[:2]),
]  # fmt: skip
"""Every kind of index that has a tensor in it."""

BASIC: list[Any] = [
    1, -1, (1, 2), slice(1, 3), (ALL, slice(None, None, 2)), (ALL, slice(None, None, -2)), (0, slice(1, 3)), ...,
    (..., -1), (ALL, None, 2), (slice(1, 3), slice(2, 4), 0), slice(3, 3),
]  # fmt: skip


def _torchs(index: Any) -> Any:
    """The index as torch takes it: it has no steps backwards, and reads no arrays among other entries."""
    return torch.from_numpy(index) if not isinstance(index, tuple | list | torch.Tensor) else index


def _expected(index: Any, change: Callable[[torch.Tensor, Any], None]) -> torch.Tensor:
    changed = X.clone()
    change(changed, index)
    return changed


@pytest.mark.parametrize("place", range(len(INDICES)))
def test_elements_are_torchs(place: int) -> None:
    index = INDICES[place]
    if isinstance(index, tuple) and slice(None, None, -1) in [each for each in index if isinstance(each, slice)]:
        expected = X.flip(0)[:, I]
    else:
        expected = X[_torchs(index)]
    found = op.tensor(X)[index]
    assert torch.equal(found.torch(), expected)
    assert torch.equal((op.tensor(X) * 2)[index].torch(), expected * 2)


@pytest.mark.parametrize("place", range(len(INDICES)))
def test_elements_are_replaced_by_a_number(place: int) -> None:
    index = INDICES[place]
    if isinstance(index, tuple) and slice(None, None, -1) in [each for each in index if isinstance(each, slice)]:
        return

    def change(x: torch.Tensor, index: Any) -> None:
        x[_torchs(index)] = 7.5

    assert torch.equal(op.tensor(X).at[index].set(7.5).torch(), _expected(index, change))


@pytest.mark.parametrize("place", range(len(BASIC)))
def test_elements_of_basic_indices_are_replaced(place: int) -> None:
    index = BASIC[place]
    numbers = torch.arange(X.numel()).reshape(X.shape)
    chosen = op.tensor(numbers)[index].torch()
    value = torch.randn(chosen.shape, generator=SOURCE)
    flat = X.flatten()
    for name, changed in (("set", value), ("add", flat[chosen] + value), ("mul", flat[chosen] * value)):
        expected = flat.clone()
        expected[chosen] = changed
        found = getattr(op.tensor(X).at[index], name)(value)
        assert torch.equal(found.torch(), expected.reshape(X.shape)), name


def test_values_broadcast_and_take_the_dtype() -> None:
    whole = torch.arange(12).reshape(3, 4)
    expected = whole.clone()
    expected[1:] = torch.tensor([9, 8, 7, 6])
    assert torch.equal(op.tensor(whole).at[1:].set(torch.tensor([9.9, 8.1, 7.0, 6.5])).torch(), expected)
    assert op.tensor(5.0).at[...].set(3).item() == 3.0
    with pytest.raises(ShapeMismatchError, match="for elements of shape"):
        op.tensor(whole).at[1:].set(torch.ones(3))


def test_several_values_at_one_place() -> None:
    places = torch.tensor([1, 1, 3])
    added = op.tensor(X).at[places].add(torch.ones(3, 5, 6))
    assert torch.equal(added.torch(), X.index_put((places,), torch.ones(3, 5, 6), accumulate=True))
    assert torch.equal(
        op.tensor(X).at[places].sub(1.0).torch(), X.index_put((places,), -torch.ones(()), accumulate=True)
    )
    assert op.zeros(3).at[torch.tensor([0, 0])].set(torch.tensor([1.0, 2.0])).tolist() == [2.0, 0.0, 0.0]
    with pytest.raises(ArgumentError, match="twice"):
        op.tensor(X).at[places].mul(2.0)


def test_a_mask_and_a_number_are_a_map() -> None:
    launches = (op.tensor(X).at[X > 1].set(0.0) * 2).inspect("schedule")
    assert launches.count("tessera.schedule.kernel") == 1
    expected = torch.where(X > 1, X * 3, X)
    assert torch.equal(op.tensor(X).at[X > 1].mul(3.0).torch(), expected)

    @op.kernel
    def capped(x: Tensor) -> Tensor:
        return x.at[x > 1].set(1.0)

    assert torch.equal(capped(X).torch(), X.clamp(max=1.0))  # type: ignore[arg-type]


def test_gradients_go_where_elements_came_from() -> None:
    weight = torch.randn(3, 5, generator=SOURCE)
    whole = torch.randn(X.shape, generator=SOURCE)
    cases: list[tuple[Callable[[Any], Any], Callable[[torch.Tensor], torch.Tensor]]] = [
        (lambda x: (x[I, :, I] * weight).sum(), lambda x: (x[I, :, I] * weight).sum()),
        (lambda x: (x[MASK] ** 2).sum(), lambda x: (x[MASK] ** 2).sum()),
        (
            lambda x: (x.at[1:3, 2].set(x[:2, 0]) * whole).sum(),
            lambda x: (torch.cat([x[:1], torch.cat([x[1:3, :2], x[:2, :1], x[1:3, 3:]], 1), x[3:]]) * whole).sum(),
        ),
        (lambda x: (x.at[I].add(x[:3]) * whole).sum(), lambda x: (x.index_add(0, I % 4, x[:3]) * whole).sum()),
    ]
    for ours, theirs in cases:
        leaf = X.clone().requires_grad_()
        theirs(leaf).backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(grad.grad(ours)(X).torch(), leaf.grad)


def test_values_that_do_not_stay_have_no_gradient() -> None:
    weight, values = torch.tensor([2.0, 3.0, 5.0]), torch.ones(3, 3)
    for place in (0, 1):
        index: Any = (torch.tensor([1, 1, 0]),) if place == 0 else (ALL, torch.tensor([1, 1, 0]))
        by_x, by_values = grad.grad(lambda x, y, index=index: (x.at[index].set(y) * weight).sum(), (0, 1))(
            torch.zeros(3, 3), values
        )
        kept = torch.tensor([0.0, 1.0, 1.0])
        assert torch.equal(by_x.torch()[2 if place == 0 else (ALL, 2)], weight if place == 0 else torch.full((3,), 5.0))
        expected = kept[:, None] * weight if place == 0 else kept * torch.tensor([3.0, 3.0, 2.0])
        assert torch.equal(by_values.torch(), expected.expand(3, 3))


def test_what_is_refused() -> None:
    x = op.tensor(X)
    for wrong, there in ((4, 4), (-5, 4)):
        with pytest.raises(IndexRangeError, match=rf"index {wrong} at \(1,\) of the indices, where there are {there}"):
            x[torch.tensor([0, wrong])].eval()
    with pytest.raises(ArgumentError, match="an index of type float"):
        x[0.5]
    with pytest.raises(DTypeError, match="an index of fp32"):
        x[torch.tensor([0.5])]
    with pytest.raises(ShapeMismatchError, match="bools of shape"):
        x[torch.tensor([True, False])]
    with pytest.raises(ShapeMismatchError, match="do not meet"):
        x[torch.tensor([0, 1]), torch.tensor([0, 1, 2])]
    with pytest.raises(ArgumentError, match="of a tensor of 3"):
        x[MASK, 0, 0]


def test_bools_inside_a_kernel_say_what_to_do() -> None:
    @op.kernel
    def chosen(x: Tensor) -> Tensor:
        return x[x > 0]

    with pytest.raises(ValueControlFlowError, match="a size that their values decide") as caught:
        chosen(X)  # type: ignore[arg-type]
    assert any("x.at[mask]" in hint for hint in caught.value.hints)


def test_basic_indices_make_no_new_structure_twice() -> None:
    def structure() -> Structure:
        made: Tensor = (op.tensor(X) * 2)[1:, I]
        return made.structure

    assert structure() is structure()
