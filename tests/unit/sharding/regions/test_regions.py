"""Functions that devices apply to their shards, and what devices along an axis do together."""

from __future__ import annotations

import pytest
import torch

from tessera import Tensor, dist, grad, graph, memcpy, op, stream
from tessera.errors import ArgumentError, DTypeError, MeshError, ValueControlFlowError
from tests.mesh.references import by_references
from tests.mesh.regions import CASES, faults

ROWS, COLUMNS, BATCH = (
    dist.ShardSpec((0,), ("tp",)),
    dist.ShardSpec((1,), ("tp",)),
    dist.ShardSpec((0,), ("dp",)),
)


@pytest.fixture
def mesh() -> dist.Mesh:
    """Two by three devices in this process."""
    return dist.Mesh(["dp", "tp"], shape=(2, 3), backend="emulated")


def whole(*shape: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(shape).numel())).reshape(shape).remainder(7) - 3


@pytest.mark.parametrize("shape", [(2, 2), (3, 2), (4, 1), (1, 3)])
def test_steps_and_their_gradients_are_those_of_torch(shape: tuple[int, int]) -> None:
    mesh = dist.Mesh(["x", "y"], shape=shape, backend="emulated")
    assert len(CASES) > 10
    if shape[0] == 1:  # a group of one device does nothing
        x = dist.distribute(whole(4, 6), dist.ShardSpec((1,), ("y",)), mesh)
        assert dist.all_reduce(x, axis="x") is x
        return
    with by_references():
        assert list(faults(mesh)) == []


def megatron(x: Tensor, w: Tensor, v: Tensor) -> Tensor:
    return dist.all_reduce(op.matmul(op.relu(op.matmul(x, w)), v), axis="tp")


def test_a_function_of_shards_has_gradients_and_lies_as_it_says(mesh: dist.Mesh) -> None:
    x, w, v = whole(4, 6), whole(6, 9), whole(9, 5)
    given = [dist.distribute(each, spec, mesh) for each, spec in ((x, BATCH), (w, COLUMNS), (v, ROWS))]
    layer = dist.shard_map(megatron, mesh, (BATCH, COLUMNS, ROWS), BATCH)

    y = layer(*given)
    value, gradients = grad.value_and_grad(lambda *each: op.sum(layer(*each) ** 2), (0, 1, 2))(*given)

    leaves = [each.clone().requires_grad_() for each in (x, w, v)]
    wanted = (leaves[0] @ leaves[1]).relu() @ leaves[2]
    wanted.square().sum().backward()  # type: ignore[no-untyped-call]
    assert (str(y.layout), y.shape) == ("dp, -", (4, 5))
    assert torch.equal(y.full().torch(), wanted.detach())
    assert value.item() == wanted.square().sum().item()
    for found, leaf, before in zip(gradients, leaves, given, strict=True):
        assert torch.equal(found.full().torch(), leaf.grad)  # type: ignore[arg-type]
        assert found.layout == before.layout


def test_what_moves_is_what_the_function_says(mesh: dist.Mesh) -> None:
    given = [dist.tensor(shape, spec, mesh) for shape, spec in (((4, 6), BATCH), ((6, 9), COLUMNS), ((9, 5), ROWS))]
    layer = dist.shard_map(megatron, mesh, (BATCH, COLUMNS, ROWS), BATCH)
    y = layer(*given)
    assert [move.step for move in graph.explain(y).meshes[0].moves] == ["AllReduce[tp]"]
    # The cotangent of a sum goes to all devices as it is; what all hold of an argument is summed over them.
    g_x, g_w, _ = grad.vjp(y, given, dist.tensor((4, 5), BATCH, mesh))
    assert [move.step for move in graph.explain(g_x).meshes[0].moves] == ["AllReduce[tp]"]
    assert [move.step for move in graph.explain(g_w).meshes[0].moves] == ["AllReduce[dp]"]


def test_forward_and_backward_share_what_devices_compute(mesh: dist.Mesh) -> None:
    x = dist.tensor((4, 6), BATCH, mesh)
    layer = dist.shard_map(lambda x: op.exp(dist.all_reduce(x, axis="dp")), mesh, BATCH, None)
    y = layer(x)
    (g,) = grad.vjp(y, [x])
    (program,) = graph.explain(op.sum(y) + op.sum(g)).meshes
    assert program.program.count("exp(") == 1
    assert program.program.count("AllReduce[dp]") == 2  # of the operand, and of the sum over all of its gradient


def test_gradients_inside_of_a_function_are_those_of_all_devices(mesh: dist.Mesh) -> None:
    x, w = whole(4, 6), whole(6, 3)

    def step(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        def loss(w: Tensor, x: Tensor = x) -> Tensor:
            return op.sum(op.square(op.matmul(x, w)))

        own = grad.grad(lambda x: loss(w, x))(x)
        return grad.grad(loss)(w), grad.grad(lambda w: dist.all_reduce(loss(w), axis="dp"))(w), own

    found = dist.shard_map(step, mesh, (BATCH, None), (None, None, BATCH))(
        dist.distribute(x, BATCH, mesh), dist.distribute(w, None, mesh)
    )
    a, b = w.clone().requires_grad_(), x.clone().requires_grad_()
    (b @ a).square().sum().backward()  # type: ignore[no-untyped-call]
    for each, wanted in zip(found, (a.grad, a.grad, b.grad), strict=True):
        assert torch.equal(each.full().torch(), wanted)  # type: ignore[arg-type]


def test_second_gradients(mesh: dist.Mesh) -> None:
    x = dist.distribute(whole(6), ROWS, mesh)
    cube = dist.shard_map(lambda v: dist.all_reduce(op.sum(v * v * v), axis="tp"), mesh, ROWS, None)
    slope = grad.grad(lambda x: op.sum(grad.grad(cube)(x) ** 2))(x)
    assert slope.full().tolist() == (36 * whole(6) ** 3).tolist()


def test_steps_of_whole_tensors_go_by_their_shards(mesh: dist.Mesh) -> None:
    w = whole(6, 9)
    x = dist.distribute(w, COLUMNS, mesh)
    total = w[:, :3] + w[:, 3:6] + w[:, 6:]
    for found, layout, wanted in (
        (dist.all_reduce(x, axis="tp"), "-, -", total),
        (dist.all_reduce(x, axis="dp"), "-, tp", 2 * w),
        (dist.all_gather(x, "tp", 1), "-, -", w),
        (dist.all_to_all(x, "tp", 0, 1), "tp, -", w),
        (dist.reduce_scatter(x, "tp", 0), "tp, -", total),
        (dist.permute(x, "tp", 1), "-, tp", w.roll(3, 1)),
        (dist.permute(x, "dp", 1), "-, tp", w),
        (dist.broadcast(x, "tp", 2), "-, -", w[:, 6:]),
    ):
        assert str(found.layout) == layout
        assert torch.equal(found.full().torch(), wanted)


def test_numbers_and_places(mesh: dist.Mesh) -> None:
    def own(x: Tensor, factor: float) -> Tensor:
        number: Tensor = dist.axis_index("dp") * 10 + dist.axis_index("tp")
        placed: Tensor = number + x * factor * 0.3
        return placed

    x = dist.distribute(torch.zeros(6), None, mesh)
    both = dist.ShardSpec((0,), (("dp", "tp"),))
    found = dist.shard_map(own, mesh, None, both)(x, 2.0).full().torch()
    assert found[::6].tolist() == [0, 1, 2, 10, 11, 12]


def test_halves_are_averaged_in_fp32(mesh: dist.Mesh) -> None:
    x = dist.distribute(torch.full((6, 2), 60000.0).half(), ROWS, mesh)
    assert dist.all_reduce(x, "avg", "tp").full().tolist() == [[60000.0] * 2] * 2


def test_what_cannot_be_is_refused(mesh: dist.Mesh) -> None:
    x = dist.distribute(whole(6, 4), ROWS, mesh)
    here = op.tensor(torch.ones(2))

    def mapped(function: object, in_specs: object = ROWS, out_specs: object = ROWS) -> None:
        dist.shard_map(function, mesh, in_specs, out_specs)(x)  # type: ignore[arg-type]

    for call, error, text in (
        (lambda: mapped(lambda v: v, ROWS, None), MeshError, "differs between the devices along tp"),
        (lambda: mapped(lambda v: v, (ROWS, ROWS)), MeshError, "for 1 arguments"),
        (lambda: mapped(lambda v: v + here[0]), MeshError, "no argument"),
        (lambda: mapped(lambda v: op.ones((2, 2))), MeshError, "reads none"),
        (lambda: mapped(dist.all_reduce), MeshError, "axis=None"),
        (lambda: mapped(lambda v: dist.reduce_scatter(v, "tp", 0)), MeshError, "do not divide"),
        (lambda: mapped(lambda v: mapped(lambda w: w)), MeshError, "inside a function of shards"),
        (lambda: mapped(lambda v: v, dist.ShardSpec((1,), ("tp",))), MeshError, "do not divide"),
        (lambda: mapped(lambda v: v * v[0, 0].item()), ValueControlFlowError, "traced"),
        (lambda: mapped(lambda v: dist.all_reduce(v, axis="pp")), MeshError, "one of dp, tp|axis='pp'"),
        (lambda: mapped(lambda v: dist.all_to_all(v, "tp", 1, 1)), ArgumentError, "two dimensions"),
        (lambda: mapped(lambda v: dist.broadcast(v, "tp", 3)), ArgumentError, "place 3"),
        (lambda: mapped(lambda v: dist.all_gather(v, "tp", 2)), ArgumentError, "dimension 2"),
        (lambda: mapped(lambda v: dist.all_reduce(v, "median", "tp")), ArgumentError, "one of|op='median'"),
        (lambda: mapped(lambda v: dist.all_reduce(v.to("bool"), axis="tp")), DTypeError, "bool"),
        (lambda: dist.all_reduce(x), MeshError, "axis=None"),
        (lambda: dist.all_reduce(here, axis="tp"), MeshError, "lies on no mesh"),
        (lambda: dist.shard_map(lambda v: v, mesh, None, None)(here), MeshError, "lies on no mesh"),
        (lambda: dist.axis_index("tp"), MeshError, "outside of a function"),
    ):  # fmt: skip
        with pytest.raises(error, match=text):
            call()
    product = dist.shard_map(lambda v: dist.all_reduce(v, "product", "tp"), mesh, ROWS, None)
    with pytest.raises(ArgumentError, match="no gradient"):
        grad.grad(lambda x: op.sum(product(x)))(x)


def test_a_mesh_computes_on_a_stream(mesh: dist.Mesh) -> None:
    w, x = whole(6, 9), whole(4, 6)
    communicating = stream.create(name="communicating")
    product = op.matmul(dist.distribute(x, BATCH, mesh), dist.distribute(w, COLUMNS, mesh), stream=communicating)
    gathered = dist.all_gather(product, "tp", 1, stream=communicating)
    assert not product.is_pending
    assert torch.equal((gathered * 2).full().torch(), 2 * (x @ w))
    assert torch.equal(product.local({"dp": 1, "tp": 2}).torch(), (x @ w)[2:, 6:])


def test_queued_work_does_not_wait_for_what_is_behind_it(mesh: dist.Mesh) -> None:
    parts = torch.ones(6, 4)
    one = dist.Mesh(["dp"], shape=(1,), backend="emulated")
    x = dist.from_local(parts, None, one)
    queue = stream.create(name="queue")
    doubled = op.add(x, x, stream=queue)
    memcpy.async_(dst=parts, src=torch.zeros(6, 4), stream=queue)
    assert doubled.full().sum().item() == 48
