"""What devices compute of well-known expressions, as text: a change of rules or of what moves shows here."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tessera import Tensor, dist, grad, op
from tessera.lazy.node import joined
from tessera.sharding.tensors.properties import program_of

MESH = dist.Mesh(["dp", "tp"], devices=range(8), shape=(2, 4))
"""Eight devices that nobody has: programs are made without them."""


def _mlp() -> tuple[Tensor, ...]:
    """Two products, the first split by columns, the second by rows (Megatron-LM), and the gradients of both."""
    columns, rows = dist.ShardSpec(("col",), ("tp",)), dist.ShardSpec(("row",), ("tp",))
    up, down = dist.tensor((512, 2048), columns, MESH), dist.tensor((2048, 512), rows, MESH)
    x = dist.tensor((64, 512), dist.ShardSpec((0,), ("dp",)), MESH)
    y = op.matmul(op.relu(op.matmul(x, up)), down)
    return y, *grad.vjp(y, [up, down], dist.tensor((64, 512), dist.ShardSpec((0,), ("dp",)), MESH))


def _sequence_parallel() -> tuple[Tensor, ...]:
    """The same layer between activations whose rows are split over the devices that split the weights."""
    columns, rows = dist.ShardSpec(("col",), ("tp",)), dist.ShardSpec(("row",), ("tp",))
    up, down = dist.tensor((512, 2048), columns, MESH), dist.tensor((2048, 512), rows, MESH)
    both = dist.ShardSpec((0,), (("dp", "tp"),))
    x = dist.tensor((64, 512), both, MESH)
    return (op.matmul(op.relu(op.matmul(x, up)), down).reshard(both),)


def _attention() -> tuple[Tensor, ...]:
    """Heads over tp, the batch over dp; nothing moves but the sum behind the last product."""
    heads = dist.ShardSpec((0, 1), ("dp", "tp"))
    q, k, v = (dist.tensor((4, 8, 128, 64), heads, MESH) for _ in range(3))
    out = dist.tensor((512, 512), dist.ShardSpec(("row",), ("tp",)), MESH)
    attended = op.flash_attention(q, k, v, causal=True)
    return (op.matmul(attended.transpose(0, 2, 1, 3).reshape(4, 128, 512), out),)


def _pages() -> tuple[Tensor, ...]:
    """Heads of a pool over tp, sequences and their tables over dp; nothing moves."""
    q = dist.tensor((4, 8, 1, 64), dist.ShardSpec((0, 1), ("dp", "tp")), MESH)
    k, v = (dist.tensor((32, 4, 16, 64), dist.ShardSpec((1,), ("tp",)), MESH) for _ in range(2))
    rows = dist.ShardSpec((0,), ("dp",))
    table, lengths = (dist.tensor(shape, rows, MESH, dtype="int32") for shape in ((4, 8), (4,)))
    return (op.paged_attention(q, k, v, table, lengths),)


def _norms() -> tuple[Tensor, ...]:
    """Rows that are split over devices: one or two numbers of each are reduced, not the rows brought together."""
    x = dist.tensor((64, 512), dist.ShardSpec((0, 1), ("dp", "tp")), MESH)
    return op.softmax(x), op.layer_norm(x), op.mean(x)


@pytest.mark.parametrize("made", [_mlp, _sequence_parallel, _attention, _pages, _norms])
def test_the_program_of_each_device(made: Callable[[], tuple[Tensor, ...]], golden: Callable[[str, str], None]) -> None:
    texts = [str(program_of(result.structure)) for result in made()]
    golden("\n\n".join(texts) + "\n", f"{made.__name__.strip('_')}.txt")


def _steps(*results: Tensor) -> list[str]:
    """What devices exchange for results, in order."""
    return [str(move.step) for move in program_of(joined(results)[0]).moves if not move.step.is_local]


def _gradient() -> tuple[Tensor, Tensor]:
    """A gradient whose parts lie on the devices along dp, as its weight lies, on all; and a tensor that dp splits."""
    weight, rows = dist.tensor((64, 32), None, MESH), dist.ShardSpec((0,), ("dp",))
    x = dist.tensor((16, 64), rows, MESH)
    return grad.vjp(op.matmul(x, weight), [weight], dist.tensor((16, 32), rows, MESH))[0], dist.tensor(
        (64, 32), rows, MESH
    )


def test_a_sum_that_all_readers_cut_is_scattered() -> None:
    gradient, moment = _gradient()
    assert str(gradient.layout) == "-, -"

    first, second = 0.9 * moment + 0.1 * gradient, 0.9 * moment + 0.1 * gradient * gradient

    assert _steps(first / op.sqrt(second)) == ["ReduceScatter[dp]"]
    assert _steps(gradient.reshard(dist.ShardSpec((1,), ("dp",)))) == ["ReduceScatter[dp]"]


def test_a_sum_that_one_reader_wants_whole_is_not_scattered() -> None:
    gradient, moment = _gradient()

    assert _steps(moment + gradient, gradient) == ["AllReduce[dp]"]
    assert _steps(op.cumsum(gradient, 0) + moment) == ["AllReduce[dp]"]
