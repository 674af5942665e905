"""Tensors of indices: what is out of range is named and touches nothing, sums have one order, gradients are torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from tessera import grad, op, stream
from tessera.errors import ArgumentError, DTypeError, IndexRangeError, ShapeMismatchError
from tessera.handle import Tensor
from tessera.ops.algebra import call
from tests.threads import torch_threads

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1))

WRONG: dict[str, Callable[[int], Tensor]] = {
    "embedding": lambda index: op.embedding(X, torch.tensor([[0, 1], [index, 2]])),
    "take": lambda index: op.take(X, torch.tensor([[0, 1], [index, 2]])),
    "index_select": lambda index: op.index_select(X, 0, torch.tensor([0, index])),
    "index_copy": lambda index: op.index_copy(X, 0, torch.tensor([0, index]), torch.ones(2, 3)),
    "gather": lambda index: op.gather(X, 0, torch.tensor([[0, 1], [index, 2]])),
    "scatter_add": lambda index: op.scatter_add(X, 0, torch.tensor([[0, 1], [index, 2]]), torch.ones(2, 2)),
    "one_hot": lambda index: op.one_hot(torch.tensor([[0, 1], [index, 2]]), 4),
}


@pytest.mark.parametrize("name", sorted(WRONG))
@pytest.mark.parametrize("index", [4, -1, 1 << 40])
def test_an_index_out_of_range_has_its_value_and_place(name: str, index: int) -> None:
    result = WRONG[name](index) + 1
    with pytest.raises(IndexRangeError, match=rf"{name}: index {index} at \(1,.*\) of the indices, where there are 4"):
        result.torch()
    assert WRONG[name](3).torch().shape  # the same plan goes on working


def test_an_index_out_of_range_on_a_stream_is_that_streams_error() -> None:
    s = stream.create()
    result = op.embedding(X, torch.tensor([9]), stream=s)
    with pytest.raises(IndexRangeError, match="embedding: index 9"):
        result.torch()


def test_indices_that_are_computed() -> None:
    scores = torch.randn(5, 4)
    best = op.argmax(scores, 1)
    assert torch.equal(op.embedding(X, best).torch(), X[scores.argmax(1)])
    assert torch.equal((op.embedding(X, best) * 2 + 1).torch(), X[scores.argmax(1)] * 2 + 1)


def test_embedding_of_any_layout_and_dtype() -> None:
    indices = torch.tensor([[3, 0, 1], [2, 2, 0]])
    for table in (X, X.T.contiguous().T, X.bfloat16(), X.double()[:, ::2], X.long()):
        for places in (indices, indices.T, indices.int(), indices[0, 0]):
            assert torch.equal(op.embedding(table, places).torch(), table[places.long()])
    assert op.embedding(X, torch.zeros(0, 2, dtype=torch.int64)).torch().shape == (0, 2, 3)


def test_parts_are_replaced_along_any_axis() -> None:
    index = torch.tensor([2, 0])
    for x in (X, X.T.contiguous().T, X.bfloat16(), X.long()):
        for axis in (0, 1):
            source = torch.arange(12).view(4, 3).narrow(axis, 0, 2).to(x.dtype)
            assert torch.equal(op.index_copy(x, axis, index, source).torch(), x.index_copy(axis, index, source))
    with pytest.raises(ShapeMismatchError, match="no part of the tensor's shape for each index"):
        op.index_copy(X, 0, index, torch.ones(3, 3))


def test_the_padding_row_gets_no_gradient() -> None:
    indices = torch.tensor([[3, 0, 1], [2, 1, 0]])
    weight = torch.randn(2, 3, 3)
    for padding in (None, 1, -1):
        ours = grad.grad(lambda w, row=padding: (op.embedding(w, indices, row) * weight).sum())(X)
        leaf = X.clone().requires_grad_()
        (torch.nn.functional.embedding(indices, leaf, padding) * weight).sum().backward()  # type: ignore[no-untyped-call]
        torch.testing.assert_close(ours.torch(), leaf.grad)


def test_sums_have_one_order() -> None:
    generator = torch.Generator().manual_seed(3)
    index = torch.randint(0, 5, (20_000, 4), generator=generator)
    source = torch.randn(20_000, 4, generator=generator)
    start = torch.zeros(5, 4)
    expected = op.scatter_add(start, 0, index, source).torch()
    one_by_one = start.clone()
    for row in range(2000):
        one_by_one[index[row], torch.arange(4)] += source[row]
    assert torch.equal(op.scatter_add(start, 0, index[:2000], source[:2000]).torch(), one_by_one)
    for threads in (1, 2, 3):
        with torch_threads(threads):
            again = op.scatter_add(start, 0, index, source).torch()
        assert torch.equal(again, expected)


def test_sums_of_narrow_floats_are_formed_in_fp32() -> None:
    index, ones = torch.zeros(1000, 1, dtype=torch.int64), torch.ones(1000, 1, dtype=torch.bfloat16)
    assert op.scatter_add(torch.zeros(1, 1, dtype=torch.bfloat16), 0, index, ones).item() == 1000.0
    assert call("put_sum", ones, index[:, 0], axis=0, extent=1).item() == 1000.0


def test_one_hot_is_torchs() -> None:
    indices = torch.tensor([[1, 0, 4], [2, 2, 3]])
    assert torch.equal(op.one_hot(indices, 5).torch(), torch.nn.functional.one_hot(indices, 5))
    assert op.one_hot(indices, 5, "bf16").torch().dtype == torch.bfloat16
    assert op.one_hot(torch.zeros(0, dtype=torch.int64), 5).torch().shape == (0, 5)


def test_what_is_refused_at_the_call() -> None:
    index = torch.tensor([0])
    with pytest.raises(DTypeError, match="indices are integers"):
        op.embedding(X, torch.tensor([0.5]))
    with pytest.raises(DTypeError, match="the tensors have one dtype"):
        op.scatter_add(X, 0, index[:, None], torch.ones(1, 1, dtype=torch.float64))
    with pytest.raises(ShapeMismatchError, match="a weight of shape"):
        op.embedding(X[0], index)
    with pytest.raises(ShapeMismatchError, match="same number of dimensions"):
        op.gather(X, 0, index)
    with pytest.raises(ShapeMismatchError, match="more indices than elements"):
        op.scatter_add(X, 0, torch.zeros(2, 2, dtype=torch.int64), torch.ones(1, 2))
    with pytest.raises(ShapeMismatchError, match="beyond the tensor"):
        op.gather(X, 0, torch.zeros(1, 4, dtype=torch.int64))
    with pytest.raises(ShapeMismatchError, match="one dimension"):
        op.index_select(X, 0, index[:, None])
    with pytest.raises(ArgumentError, match="padding_idx=7"):
        op.embedding(X, index, 7)
    with pytest.raises(ArgumentError, match="num_classes=-1"):
        op.one_hot(index, -1)
    with pytest.raises(ShapeMismatchError, match="without dimensions"):
        op.gather(torch.tensor(1.0), 0, torch.tensor(0))


def test_on_the_interpreter() -> None:
    table = op.tensor(X, device="interpreter")
    index = op.tensor(torch.tensor([[1, 0], [3, 3]]), device="interpreter")
    assert torch.equal((op.embedding(table, index) * 2).torch(), X[torch.tensor([[1, 0], [3, 3]])] * 2)
    assert torch.equal(op.gather(table, 0, index).torch(), X.gather(0, torch.tensor([[1, 0], [3, 3]])))
    assert torch.equal(op.one_hot(index, 4).torch(), torch.nn.functional.one_hot(torch.tensor([[1, 0], [3, 3]]), 4))
