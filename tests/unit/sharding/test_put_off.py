"""Programs are left when their exchanges have begun: who reads results does the rest, and nobody can tell."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch

import tessera
from tessera import Tensor, dist, graph, op
from tessera.errors import RankLostError
from tessera.runtime.memory.buffers import AwaitedBuffer, Buffer
from tessera.sharding.put_off import Later, Rest
from tessera.sharding.tensors.shards import Shards, shards_of

BATCH = dist.ShardSpec((0,), ("dp",))


@pytest.fixture
def mesh() -> dist.Mesh:
    """Two devices in this process."""
    return dist.Mesh(["dp"], shape=(2,), backend="emulated")


def step(mesh: dist.Mesh, weight: Tensor) -> tuple[Tensor, Tensor]:
    """A sum over devices, and a weight that is one of its readers; both are left."""
    x = dist.distribute(torch.arange(24.0).reshape(6, 4), BATCH, mesh)
    total = op.sum(op.matmul(x, weight), 0)
    after = weight - total
    tessera.eval(total, after)
    return total, after


def owned(weight: Tensor) -> Tensor:
    """The same numbers in memory that nobody else knows."""
    return (weight + 0).eval()


def shards(tensor: Tensor) -> Shards:
    return shards_of(tensor.state[1][0])


def is_there(tensor: Tensor) -> bool:
    made = shards(tensor)._made
    return not isinstance(made, Later) or made.made is not None


def wanted() -> tuple[torch.Tensor, torch.Tensor]:
    total = torch.arange(24.0).reshape(6, 4).sum(0) @ torch.eye(4)
    return total, torch.eye(4) - total


def test_results_come_when_they_are_read(mesh: dist.Mesh) -> None:
    total, after = step(mesh, owned(dist.distribute(torch.eye(4), None, mesh)))
    assert not is_there(total)
    assert not is_there(after)
    assert '"-, -"' in str(after)  # shows no values, and waits for none
    assert not is_there(after)
    assert torch.equal(after.full().torch(), wanted()[1])
    assert is_there(total)  # what comes of one exchange comes together
    assert torch.equal(total.full().torch(), wanted()[0])


def test_who_may_write_to_what_is_yet_to_be_read_has_it_read_first(mesh: dist.Mesh) -> None:
    weight = owned(dist.distribute(torch.eye(4), None, mesh))
    own = weight.local({"dp": 0})
    _, after = step(mesh, weight)
    assert not is_there(after)
    own.torch().zero_()  # where the other device's memory is not written to, it is read later still
    for place in range(2):
        assert torch.equal(after.local({"dp": place}).torch(), wanted()[1])


def test_results_that_others_are_made_of_are_not_handed_out_before_those(mesh: dist.Mesh) -> None:
    total, after = step(mesh, owned(dist.distribute(torch.eye(4), None, mesh)))
    total.local({"dp": 0}).torch().zero_()
    assert torch.equal(after.full().torch(), wanted()[1])


def test_memory_of_users_is_read_at_once(mesh: dist.Mesh) -> None:
    theirs = [torch.eye(4), torch.eye(4)]
    weight = dist.from_local(lambda at: theirs[at["dp"]], dist.ShardSpec((), ()), mesh)
    _, after = step(mesh, weight)
    for each in theirs:
        each.zero_()
    assert torch.equal(after.full().torch(), wanted()[1])


def test_what_nobody_reads_goes(mesh: dist.Mesh) -> None:
    weight = owned(dist.distribute(torch.eye(4), None, mesh))
    total, after = step(mesh, weight)
    made = shards(after)._made
    assert isinstance(made, Later)
    rest = weakref.ref(made.rest)
    (owner,) = {type(leaf.owner) for leaf in shards(weight).leaves().values()}
    assert owner is AwaitedBuffer
    total.full()
    assert rest() is None  # all is taken: an unread result keeps itself alone
    assert {type(leaf.owner) for leaf in shards(weight).leaves().values()} == {Buffer}
    total, after = step(mesh, weight)
    made = shards(after)._made
    assert isinstance(made, Later)
    rest = weakref.ref(made.rest)
    del total, after, made
    gc.collect()
    assert rest() is None
    assert torch.equal(weight.local({"dp": 0}).torch(), torch.eye(4))  # nobody is to read it any more


def test_the_next_program_waits_where_it_reads(mesh: dist.Mesh) -> None:
    with dist.communication(bucket_bytes=0):
        weight = owned(dist.distribute(torch.eye(4), None, mesh))
        (first,) = graph.explain(lambda: step(mesh, weight)).meshes
        _, after = step(mesh, weight)
        (second,) = graph.explain(lambda: step(mesh, after)).meshes
    ends = "here the program ends; who first reads a result does what it hangs on:"
    assert ends in first.schedule
    assert not any("programs before" in line for line in first.schedule)
    assert second.schedule[0].startswith("wait for results of programs before: ")
    with dist.communication(overlap=False):
        total, after = step(mesh, weight)
        assert is_there(total)
        assert is_there(after)


class _Failing:
    """A step that fails."""

    may_wait = True

    def held(self) -> tuple[Any, ...]:
        return ()

    def take(self) -> None:
        raise RankLostError("rank 2 has ended")

    def given(self, root: int) -> dict[int, Any]:
        return {}


def test_what_fails_is_raised_to_all_who_read(mesh: dist.Mesh) -> None:
    later = Rest([_Failing()]).later(0, 1)
    for _ in range(2):
        with pytest.raises(RankLostError, match="rank 2"):
            later.take()
