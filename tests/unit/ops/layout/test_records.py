"""Layout operators on pending tensors and views of existing ones, against torch."""

from __future__ import annotations

from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera import op
from tessera.errors import ArgumentError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.lazy.leaves.leaf import Placeholder


def forms(x: torch.Tensor) -> list[Tensor]:
    """The same values, existing and pending."""
    return [op.tensor(x), op.tensor(x) * 1]


def names(tensor: Tensor) -> list[str]:
    return [node.structure.operator.name for node in tensor.structure.post_order() if node.structure.operator]


@st.composite
def indices(draw: st.DrawFn, rank: int = 3) -> tuple[Any, ...]:
    slices = st.slices(5).filter(lambda s: s.step is None or s.step > 0)
    entries: list[Any] = [draw(st.one_of(st.integers(-3, 2), slices)) for _ in range(draw(st.integers(0, rank)))]
    if draw(st.booleans()):
        entries.insert(draw(st.integers(0, len(entries))), None)
    if draw(st.booleans()):
        entries.insert(draw(st.integers(0, len(entries))), Ellipsis)
    return tuple(entries)


@given(indices())
def test_indexing(index: tuple[Any, ...]) -> None:
    x = torch.arange(60.0).reshape(3, 4, 5)
    for tensor in forms(x):
        assert torch.equal(tensor[index].torch(), x[index])


def test_indices_that_are_not_supported_are_refused() -> None:
    x = op.tensor(torch.ones(3, 4))
    for index in (3, -4, (0, 0, 0), slice(None, None, 0), 1.5, (..., ...)):
        with pytest.raises(ArgumentError):
            x[index]


def test_reshape_transpose_and_broadcast() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    for tensor in forms(x):
        assert torch.equal(tensor.reshape(4, -1).torch(), x.reshape(4, 6))
        assert torch.equal(tensor.reshape((24,)).torch(), x.reshape(24))
        assert torch.equal(tensor.transpose(2, 0, 1).torch(), x.permute(2, 0, 1))
        assert torch.equal(tensor.transpose().torch(), x.transpose(-1, -2))
        assert torch.equal(tensor.T.torch(), x.permute(2, 1, 0))
        assert torch.equal(tensor.broadcast_to(5, 2, 3, 4).torch(), x.broadcast_to(5, 2, 3, 4))
        assert torch.equal(op.reshape(tensor.T, (4, 6)).torch(), x.permute(2, 1, 0).reshape(4, 6))


def test_layouts_that_do_not_fit_are_refused() -> None:
    x = op.tensor(torch.ones(2, 3))
    for shape in ((4, -1), (7,), (-1, -1), (-2, -3)):
        with pytest.raises(ShapeMismatchError, match=r"\(2, 3\)"):
            x.reshape(shape)
    for permutation in ((0,), (0, 0), (0, 2)):
        with pytest.raises(ArgumentError):
            x.transpose(permutation)
    with pytest.raises(ShapeMismatchError, match="does not broadcast"):
        x.broadcast_to(2, 4)


def test_views_of_existing_tensors_are_no_operators() -> None:
    x = torch.randn(4, 6)
    tensor = op.tensor(x)
    views = [tensor.T, tensor[1:, ::2], tensor.reshape(2, 2, 6), tensor.broadcast_to(3, 4, 6), tensor[2]]
    assert all(not view.is_pending for view in views)
    assert names(tensor.T.reshape(24)) == ["reshape"]  # no strides walk that
    assert names((tensor * 1)[1:].T) == ["mul", "slice", "transpose"]


def test_views_of_a_traced_argument_stay_operators() -> None:
    argument = Tensor((op.tensor((4, 6)).structure, (Placeholder(op.tensor((4, 6)).structure),)))
    assert names(argument.T) == ["transpose"]
    assert argument.T.leaves == argument.leaves


def test_concat() -> None:
    a, b = torch.randn(2, 3), torch.randn(2, 5)
    assert torch.equal(op.concat([a, b], axis=-1).torch(), torch.cat([a, b], -1))
    assert torch.equal(op.concat([a]).torch(), a)
    mixed = op.concat([a, torch.ones(1, 3, dtype=torch.int64)])
    assert torch.equal(mixed.torch(), torch.cat([a, torch.ones(1, 3)]))
    with pytest.raises(ShapeMismatchError, match="only axis 0 may differ"):
        op.concat([a, b])
    with pytest.raises(ArgumentError):
        op.concat([])
    with pytest.raises(ShapeMismatchError):
        op.concat([torch.tensor(1.0)])


def test_products_of_vectors() -> None:
    m, v, w = torch.randn(3, 4), torch.randn(4), torch.randn(3)
    batch = torch.randn(2, 3, 4)
    for a, b in ((m, v), (w, m), (v, v), (batch, v), (w, batch)):
        result = op.matmul(a, b)
        assert result.shape == tuple((a @ b).shape)
        torch.testing.assert_close(result.torch(), a @ b)


def test_extents_and_axes_are_integers_of_any_library() -> None:
    x = op.tensor(torch.arange(6))
    assert x.reshape(numpy.int64(6)).shape == x.reshape([2, numpy.int32(3)]).reshape(-1).shape == (6,)
    with pytest.raises(ArgumentError, match=r"2\.0 as an extent or axis, which is an integer"):
        x.reshape(2.0, 3)
    with pytest.raises(ArgumentError, match="'a' as an extent or axis, which is an integer"):
        x.reshape("ab")
    with pytest.raises(ArgumentError, match=r"1\.0 as an axis, which is an integer"):
        op.softmax(op.tensor((2, 2)), 1.0)  # type: ignore[arg-type]
