"""Views of leaves: the same elements as torch's views, and no copy where torch needs none."""

from __future__ import annotations

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessera.lazy.leaves import views
from tessera.lazy.leaves.export import to_torch
from tessera.lazy.leaves.sources import from_torch


@st.composite
def strided_tensors(draw: st.DrawFn) -> torch.Tensor:
    """Transposed, sliced, expanded tensors of small extents, 0 and 1 included."""
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    tensor = torch.arange(math.prod(shape), dtype=torch.float64).reshape(shape)
    tensor = tensor.permute(draw(st.permutations(range(tensor.ndim))))
    for axis in range(tensor.ndim):
        start, step = draw(st.integers(0, 2)), draw(st.integers(1, 3))
        tensor = tensor.movedim(axis, 0)[start::step].movedim(0, axis)
    if draw(st.booleans()):
        tensor = tensor.expand(draw(st.integers(1, 3)), *tensor.shape)
    return tensor


def factorization(data: st.DataObject, count: int) -> list[int]:
    shape: list[int] = []
    while count > 1:
        factor = data.draw(st.sampled_from([d for d in range(2, count + 1) if count % d == 0]))
        shape.append(factor)
        count //= factor
    for _ in range(data.draw(st.integers(0, 2))):
        shape.insert(data.draw(st.integers(0, len(shape))), 1)
    return shape


@given(strided_tensors(), st.data())
def test_reshape_is_a_view_exactly_where_torch_has_one(tensor: torch.Tensor, data: st.DataObject) -> None:
    target = factorization(data, tensor.numel()) if tensor.numel() else [0, 3]
    if not tensor.numel():
        assert views.reshaped_strides(tuple(tensor.shape), tensor.stride(), tuple(target)) is not None
        return
    view = views.reshaped(from_torch(tensor), tuple(target))
    try:
        expected = tensor.view(target)
    except RuntimeError:
        assert view is None
    else:
        assert view is not None
        assert torch.equal(to_torch(view), expected)
        assert view.address == expected.data_ptr()


@given(strided_tensors(), st.data())
def test_transpose_slice_and_broadcast_agree_with_torch(tensor: torch.Tensor, data: st.DataObject) -> None:
    leaf = from_torch(tensor)
    order = data.draw(st.permutations(range(tensor.ndim)))
    assert torch.equal(to_torch(views.transposed(leaf, order)), tensor.permute(order))

    wide = (2, *tensor.shape)
    assert torch.equal(to_torch(views.broadcast(leaf, wide)), tensor.broadcast_to(wide))

    starts = tuple(data.draw(st.integers(0, extent)) for extent in tensor.shape)
    steps = tuple(data.draw(st.integers(1, 3)) for _ in tensor.shape)
    expected = tensor[tuple(slice(start, None, step) for start, step in zip(starts, steps, strict=True))]
    assert torch.equal(to_torch(views.sliced(leaf, starts, tuple(expected.shape), steps)), expected)


@given(strided_tensors())
def test_contiguity_is_what_torch_says(tensor: torch.Tensor) -> None:
    assert views.is_contiguous(tuple(tensor.shape), tensor.stride()) == tensor.is_contiguous()


def test_views_keep_the_memory_alive_and_know_the_version() -> None:
    tensor = torch.arange(6.0).reshape(2, 3)
    view = views.transposed(from_torch(tensor), (1, 0))
    expected = tensor.T.clone()
    assert view.version == tensor._version
    del tensor
    assert torch.equal(to_torch(view), expected)
