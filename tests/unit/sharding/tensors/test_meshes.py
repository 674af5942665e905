"""Meshes, layouts and tensors on them, as users write them."""

from __future__ import annotations

import tracemalloc

import pytest
import torch

from tessera import Tensor, dist, grad, graph, op
from tessera.errors import AbstractMeshError, ArgumentError, DeviceError, ImplicitCommunicationError, MeshError
from tessera.sharding.tensors.mesh import Alone, as_even_as_possible
from tessera.sharding.tensors.shards import shards_of

COLUMNS, ROWS, BATCH = (
    dist.ShardSpec(("col",), ("tp",)),
    dist.ShardSpec(("row",), ("tp",)),
    dist.ShardSpec((0,), ("dp",)),
)


@pytest.fixture
def mesh() -> dist.Mesh:
    """Two by two devices in this process."""
    return dist.Mesh(["dp", "tp"], shape=(2, 2), backend="emulated")


def test_the_snippet_of_the_specification_takes_no_memory() -> None:
    mesh = dist.Mesh(axes=["tp", "pp", "dp"], devices=range(72))
    tracemalloc.start()
    W = dist.tensor(
        shape=(1_000_000, 1_000_000),
        layout=dist.ShardSpec(partition=("row", "col"), mesh_axes=("tp", "pp")),
        mesh=mesh,
    )
    taken = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert dict(mesh.shape) == {"tp": 6, "pp": 4, "dp": 3}
    assert mesh.state == "abstract"
    assert taken < 100_000
    assert repr(W).endswith('"tp, pp": 166.7 GB for each of 6 x 4 shards)')
    assert str((W + W).layout) == "tp, pp"
    with pytest.raises(AbstractMeshError, match="tessera run --ranks 72"):
        (W + W).eval()


@pytest.mark.parametrize(
    ("devices", "axes", "wanted"),
    [(72, 3, (6, 4, 3)), (8, 2, (4, 2)), (7, 2, (7, 1)), (1, 3, (1, 1, 1)), (12, 1, (12,))],
)
def test_devices_are_shared_out_evenly(devices: int, axes: int, wanted: tuple[int, ...]) -> None:
    assert as_even_as_possible(devices, axes) == wanted


def test_ranks_of_another_job_are_another_mesh() -> None:
    class Pair(Alone):
        size = 2  # type: ignore[misc]

    first, second = Pair(), Pair()  # as where a process group is replaced, perhaps with ranks in another order
    assert dist.Mesh(["dp"], job=first) == dist.Mesh(["dp"], job=first)
    assert dist.Mesh(["dp"], job=first) != dist.Mesh(["dp"], job=second)
    assert dist.Mesh(["dp"], job=Alone()) == dist.Mesh(["dp"], job=Alone())


def test_what_makes_no_mesh_is_refused() -> None:
    for axes, devices, shape in (
        (["a", "a"], range(4), None),
        ([], range(4), None),
        ("ab", range(4), None),
        (["a"], [0, 0], None),
        (["a"], range(4), (3,)),
        (["a", "b"], range(4), (4,)),
    ):
        with pytest.raises(MeshError):
            dist.Mesh(axes, devices, shape=shape, backend="emulated")


def test_part_of_a_mesh(mesh: dist.Mesh) -> None:
    assert dict(mesh["tp", 0:1].shape) == {"dp": 2, "tp": 1}
    assert mesh["tp", 0:1].devices == (0, 2)
    assert dict(mesh["dp", 1].shape) == {"tp": 2}
    assert mesh["dp", 1].devices == (2, 3)
    assert mesh == dist.Mesh(["dp", "tp"], shape=(2, 2), backend="emulated") != mesh["dp", 0]


def test_layouts_that_a_mesh_does_not_have_are_refused(mesh: dist.Mesh) -> None:
    for spec in (
        dist.ShardSpec(("row",), ("pp",)),
        dist.ShardSpec((0, 1), ("tp", "tp")),
        dist.ShardSpec((2,), ("tp",)),
        dist.ShardSpec(("batch",), ("tp",)),
        dist.ShardSpec((0, 1), ("tp",)),
    ):
        with pytest.raises(MeshError):
            dist.tensor((4, 4), spec, mesh)
    assert str(dist.tensor((4, 4), dist.ShardSpec(("b",), ("dp",)), mesh, dims=("a", "b")).layout) == "-, dp"


def test_a_layout_of_another_tensor_is_one(mesh: dist.Mesh) -> None:
    layout = dist.tensor((4, 8), COLUMNS, mesh).layout
    assert layout is not None
    made = (
        dist.tensor((3, 5), layout, mesh),
        dist.distribute(torch.ones(2, 2), layout, mesh),
        dist.from_local(lambda at: torch.ones(2, 2), layout, mesh),
        dist.tensor((3, 5), None, mesh).reshard(layout),
    )
    assert [tensor.layout for tensor in made] == [layout] * 4
    with pytest.raises(MeshError, match="for 1 dimensions"):
        dist.tensor((3,), layout, mesh)
    for wrong in ("tp", 0):
        with pytest.raises(MeshError, match="is no layout"):
            dist.tensor((3, 5), wrong, mesh)  # type: ignore[arg-type]


def test_values_are_the_same_in_every_layout(mesh: dist.Mesh) -> None:
    specs = (None, COLUMNS, ROWS, dist.ShardSpec((0,), (("tp", "dp"),)))
    whole = [dist.tensor((7, 5), spec, mesh, seed=3).full().torch() for spec in specs]
    assert all(torch.equal(whole[0], other) for other in whole[1:])
    assert not torch.equal(whole[0], dist.tensor((7, 5), None, mesh, seed=4).full().torch())


def test_a_seed_and_an_init_hold_without_a_mesh(mesh: dist.Mesh) -> None:
    whole = dist.tensor((7, 5), COLUMNS, mesh, seed=3).full().torch()
    assert torch.equal(dist.tensor((7, 5), seed=3).torch(), whole)
    assert dist.tensor((2,), init="zeros").tolist() == [0, 0]
    assert dist.tensor((2,), dtype="int32", init="ones").tolist() == [1, 1]
    with pytest.raises(ArgumentError, match="normal, uniform"):
        dist.tensor((2,), init="gaussian")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="64 bits"):
        dist.tensor((2,), None, mesh, seed=1 << 64)


def test_uneven_shards_are_short_or_empty(mesh: dist.Mesh) -> None:
    x = dist.distribute(torch.arange(5), dist.ShardSpec((0,), (("dp", "tp"),)), mesh)
    shards = [x.local({"dp": dp, "tp": tp}).tolist() for dp in range(2) for tp in range(2)]
    assert shards == [[0, 1], [2], [3], [4]]
    narrow = dist.distribute(torch.arange(1), dist.ShardSpec((0,), ("tp",)), mesh)
    assert [narrow.local({"dp": 0, "tp": tp}).tolist() for tp in range(2)] == [[0], []]


def test_shards_become_a_tensor(mesh: dist.Mesh) -> None:
    x = dist.from_local(lambda at: torch.full((2, 3), at["dp"]), BATCH, mesh)
    assert x.full().tolist() == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]
    with pytest.raises(MeshError, match="function of coordinates"):
        dist.from_local(torch.ones(2, 3), BATCH, mesh)
    with pytest.raises(MeshError, match="it is"):
        dist.from_local(lambda at: torch.ones(1 + 2 * at["dp"], 3), BATCH, mesh)


def test_a_layer_and_its_gradients_shard_by_themselves(mesh: dist.Mesh) -> None:
    w1, w2 = dist.tensor((8, 16), COLUMNS, mesh), dist.tensor((16, 8), ROWS, mesh)
    x = dist.tensor((6, 8), BATCH, mesh)

    def loss(w1: Tensor, w2: Tensor, x: Tensor) -> Tensor:
        return op.mean(op.matmul(op.relu(op.matmul(x, w1)), w2) ** 2)

    value, (g1, g2) = grad.value_and_grad(loss, (0, 1))(w1, w2, x)

    a, b = (t.full().torch().requires_grad_() for t in (w1, w2))
    wanted = ((x.full().torch() @ a).relu() @ b).square().mean()
    wanted.backward()  # type: ignore[no-untyped-call]
    assert (str(g1.layout), str(g2.layout)) == ("-, tp", "tp, -")
    assert value.item() == pytest.approx(wanted.item(), rel=1e-5)
    for found, parameter in ((g1, a), (g2, b)):
        torch.testing.assert_close(found.full().torch(), parameter.grad, rtol=1e-4, atol=1e-5)


def test_a_gradient_that_is_a_constant_lies_where_its_input_does(mesh: dist.Mesh) -> None:
    image = dist.tensor((2, 4, 3, 1), BATCH, mesh)
    weight = dist.distribute(torch.ones(4, 4, 2, 2), None, mesh)
    missed = op.conv2d(
        image, weight, stride=(1, 3), padding=(0, 1), dilation=(1, 2)
    )  # its taps lie on both sides of the one column

    (found,) = grad.vjp(missed, [image], dist.distribute(torch.ones(missed.shape), None, mesh))

    assert found.layout == image.layout
    assert torch.equal(found.full().torch(), torch.zeros(2, 4, 3, 1))


def test_what_moves_is_explained(mesh: dist.Mesh, capsys: pytest.CaptureFixture[str]) -> None:
    x, w = dist.tensor((6, 8), BATCH, mesh), dist.tensor((8, 4), ROWS, mesh)
    (explained,) = graph.explain(op.matmul(x, w)).meshes
    assert [move.step for move in explained.moves] == ["Slice[tp]", "AllReduce[tp]"]
    assert explained.bytes == 2 * (3 * 4 * 4) // 2
    assert "AllReduce[tp]" in capsys.readouterr().out


def test_what_nobody_asks_for_may_be_refused(mesh: dist.Mesh) -> None:
    x = dist.tensor((6, 8), COLUMNS, mesh)
    with dist.communication(implicit="error"):
        op.matmul(x, x.T).eval()  # a sum over devices is what the algebra says
        with pytest.raises(ImplicitCommunicationError, match="AllToAll"):
            op.cumsum(x, 1).eval()
        op.cumsum(x.reshard(None), 1).eval()


def test_tensors_of_one_device_do_not_mix_with_those_of_a_mesh(mesh: dist.Mesh) -> None:
    x = dist.tensor((4,), None, mesh)
    with pytest.raises(DeviceError, match=r"dist\.distribute"):
        x + op.tensor(torch.ones(4))
    y = dist.tensor((4,), None, dist.Mesh(["dp"], shape=(2,), backend="emulated"))
    with pytest.raises(DeviceError):
        x + y


def test_printing_computes_nothing(mesh: dist.Mesh) -> None:
    x = dist.tensor((4, 4), COLUMNS, mesh) + 1
    assert "pending" in str(x)
    assert x.is_pending


def test_a_tensor_on_a_mesh_is_read_whole(mesh: dist.Mesh) -> None:
    x = dist.distribute(torch.arange(6.0), dist.ShardSpec((0,), ("tp",)), mesh)
    assert (x * 2).numpy().tolist() == [0, 2, 4, 6, 8, 10]
    assert op.sum(x).item() == 15
    assert x.reshard(None).local({"dp": 0, "tp": 1}).tolist() == x.tolist()


def test_a_constant_on_a_mesh_is_one_of_each_shard(mesh: dist.Mesh) -> None:
    whole = torch.randn(48, 64)
    w = op.constant(dist.distribute(whole, COLUMNS, mesh))
    x = torch.randn(4, 48)

    assert str(w.layout) == "-, tp"
    assert all(shard.structure.frozen for shard in shards_of(w.leaves[0]).leaves().values())
    product = op.matmul(dist.distribute(x, None, mesh), w)
    torch.testing.assert_close(product.full().torch(), x @ whole)
    abstract = dist.tensor((48, 64), COLUMNS, dist.Mesh(["tp"], range(3)))
    assert op.constant(abstract).shape == (48, 64)


def test_a_constant_on_a_mesh_is_read_as_it_is_now() -> None:
    mesh = dist.Mesh(["tp"], range(1))
    shard = torch.ones(3, 2)
    w = op.constant(dist.from_local(shard, COLUMNS, mesh))
    x = dist.distribute(torch.ones(1, 3), None, mesh)

    assert op.matmul(x, w).full().tolist() == [[3.0, 3.0]]
    shard.fill_(2.0)
    assert op.matmul(x, w).full().tolist() == [[6.0, 6.0]]
