"""When exchanges begin and are waited for, what travels together, and that none of it changes a bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch

from tessera import Tensor, dist, grad, graph, op
from tessera.errors import ArgumentError
from tessera.sharding.chunk_choice import ROUNDS, ChunkTrials, modelled
from tessera.sharding.exchange import communication
from tessera.sharding.exchange.communication import CommunicationOptions
from tessera.sharding.partitioning.chunking import choices_of, chunked
from tessera.sharding.partitioning.program import LocalProgram, ShardMove
from tessera.sharding.partitioning.schedule import Evaluate, Leave, OverlapLimits, Start, schedule_of
from tessera.sharding.planner.local_programs import predicted, rates_of
from tessera.sharding.tensors.properties import program_of
from tests.mesh.checking import agree
from tests.mesh.drawing import drawn
from tests.mesh.references import by_references

COLUMNS, ROWS, BATCH = (
    dist.ShardSpec(("col",), ("tp",)),
    dist.ShardSpec(("row",), ("tp",)),
    dist.ShardSpec((0,), ("dp",)),
)
SEQUENCE = dist.ShardSpec((0,), ("tp",))
EAGER = OverlapLimits(worth_flops=0, bucket_bytes=0)


@pytest.fixture
def mesh() -> dist.Mesh:
    """Two by two devices in this process."""
    return dist.Mesh(["dp", "tp"], shape=(2, 2), backend="emulated")


@contextmanager
def limited(limits: OverlapLimits) -> Iterator[None]:
    with communication.using(CommunicationOptions(limits=limits)):
        yield


def integers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(seed)).float()


def layers(mesh: dist.Mesh, spec: dist.ShardSpec | None) -> tuple[list[Tensor], Tensor]:
    """Four square weights, and a batch over dp."""
    weights = [dist.distribute(integers(64, 64, seed=n), spec, mesh) for n in range(4)]
    return weights, dist.distribute(integers(128, 64, seed=9), BATCH, mesh)


def gradients(weights: list[Tensor], x: Tensor) -> list[Tensor]:
    """The gradients of all layers, the last one first computed."""

    def loss(*weights: Tensor) -> Tensor:
        value = x
        for weight in weights:
            value = op.matmul(value, weight)
        return op.sum(value)

    _, found = grad.value_and_grad(loss, tuple(range(len(weights))))(*weights)
    return list(found)


def program(results: list[Tensor]) -> LocalProgram:
    from tessera.lazy.node import joined

    return program_of(joined(results)[0])


def told(made: LocalProgram, limits: OverlapLimits) -> str:
    """The steps as letters: a product is computed, or something else, an exchange begins, is waited for."""
    letters = []
    for step in schedule_of(made, limits):
        if isinstance(step, Evaluate):
            products = sum("matmul" in str(made.instructions[number]) for number in step.members)
            letters.append("P" * products or "c")
        elif not isinstance(step, Leave):
            letters.append(("S" if isinstance(step, Start) else "W") + str(len(step.bucket)))
    return " ".join(letters)


def test_gradients_are_sent_while_the_backward_pass_goes_on(mesh: dist.Mesh) -> None:
    made = program(gradients(*layers(mesh, None)))
    each = told(made, OverlapLimits(worth_flops=1 << 17, bucket_bytes=0))
    assert each.count("S1") == 4
    assert each.index("S1") < each.rindex("P") < each.index("W1")  # waits come last
    together = told(made, OverlapLimits())
    assert together.split()[-2:] == ["S4", "W4"]  # all are smaller than a bucket
    pairs = told(made, OverlapLimits(worth_flops=1 << 17, bucket_bytes=2 * 64 * 64 * 4))
    assert "S1" in pairs.split()[1]  # the first bucket is small
    assert pairs.count("S2") == 1


def test_what_does_not_need_an_exchange_is_computed_before_it_is_waited_for(mesh: dist.Mesh) -> None:
    x, w = dist.tensor((128, 128), COLUMNS, mesh), dist.tensor((128, 128), ROWS, mesh)
    other = dist.tensor((128, 128), None, mesh)
    y = op.matmul(op.relu(op.matmul(x, w)), op.matmul(other, other))
    assert told(program([y]), OverlapLimits()) == "P S1 P W1 P"
    assert told(program([y]), OverlapLimits(worth_flops=1e12)) == "P S1 W1 PP"
    assert told(program([y]), OverlapLimits(overlap=False)) in ("P S1 W1 PP", "P S1 W1 P P")


@pytest.mark.parametrize("spec", [None, dist.ShardSpec((0,), ("dp",)), dist.ShardSpec((0, 1), ("dp", "tp"))])
def test_buckets_change_no_bit(mesh: dist.Mesh, spec: dist.ShardSpec | None) -> None:
    weights, x = layers(mesh, spec)
    with by_references():
        with limited(OverlapLimits(overlap=False, bucket_bytes=0)):
            wanted = [each.full().torch() for each in gradients(weights, x)]
        for limits in (OverlapLimits(), EAGER, OverlapLimits(worth_flops=0)):
            with limited(limits):
                found = gradients(weights, x)
                dist_evaluated(found)
                assert all(torch.equal(each.full().torch(), one) for each, one in zip(found, wanted, strict=True))


def dist_evaluated(tensors: list[Tensor]) -> None:
    """Evaluates tensors in one program."""
    from tessera.lazy.evaluation import evaluate

    evaluate(tensors)


def test_scattered_gradients_travel_together(mesh: dist.Mesh) -> None:
    made = program(gradients(*layers(mesh, dist.ShardSpec((0,), ("dp",)))))
    steps = [step for step in schedule_of(made, OverlapLimits()) if isinstance(step, Start) and len(step.bucket) > 1]
    kinds = {str(made.instructions[number].step) for step in steps for number in step.bucket}  # type: ignore[union-attr]
    assert kinds == {"ReduceScatter[dp]"}


def sequence_parallel(mesh: dist.Mesh) -> Tensor:
    up = dist.distribute(integers(64, 512, seed=1), COLUMNS, mesh)
    down = dist.distribute(integers(512, 64, seed=2), ROWS, mesh)
    x = dist.distribute(integers(16, 64, seed=3), SEQUENCE, mesh)
    return op.matmul(op.relu(op.matmul(x, up)), down).reshard(SEQUENCE)


def tensor_parallel(mesh: dist.Mesh) -> Tensor:
    a = dist.distribute(integers(64, 32, seed=1), dist.ShardSpec((0, 1), ("dp", "tp")), mesh)
    b = dist.distribute(integers(32, 16, seed=2), ROWS, mesh)
    return op.matmul(a, b)


@pytest.mark.parametrize(("made", "pieces"), [(sequence_parallel, 2), (tensor_parallel, 1)])
def test_products_beside_exchanges_go_in_pieces(
    mesh: dist.Mesh, made: Callable[[dist.Mesh], Tensor], pieces: int
) -> None:
    wanted = made(mesh).full().torch()
    y = made(mesh)
    cut = chunked(program_of(y.structure), 4)
    moves = [each for each in cut.instructions if isinstance(each, ShardMove) and each.is_piece]
    assert len(moves) == 4 * pieces
    assert sum(move.step.nbytes for move in cut.moves) == sum(
        move.step.nbytes for move in program_of(y.structure).moves
    )
    with dist.communication(chunk=4):
        assert torch.equal(y.full().torch(), wanted)


def test_pieces_travel_while_the_next_is_computed(mesh: dist.Mesh) -> None:
    cut = chunked(program_of(sequence_parallel(mesh).structure), 2)
    # Both gathers begin; a piece is multiplied while the next one travels, and sent while the next is multiplied.
    steps = told(cut, OverlapLimits(worth_flops=1)).split()
    assert steps[:2] == ["c", "S1"] or steps[0].startswith("S")
    starts = [n for n, step in enumerate(steps) if step.startswith("S")]
    products = [n for n, step in enumerate(steps) if step.startswith("P")]
    waits = [n for n, step in enumerate(steps) if step.startswith("W")]
    assert len(starts) == 4
    assert starts[1] < products[0] < waits[1]
    assert starts[2] < products[-1] < waits[-1]


def wide(mesh: dist.Mesh, extent: int) -> Tensor:
    """A product that is summed over tp, of so many rows."""
    a = dist.tensor((extent, 4096), COLUMNS, mesh)
    return op.matmul(a, dist.tensor((4096, extent), ROWS, mesh))


def test_the_model_says_what_binds_and_in_how_many_pieces() -> None:
    host, rack = (dist.Mesh(["tp"], devices=range(8), topology=name) for name in (None, "gb200-nvl72"))
    limits = OverlapLimits()
    program = program_of(wide(host, 4096).structure)
    times = {count: predicted(program, limits, count, rates_of(None)) for count in choices_of(program)}

    assert list(times) == [1, 2, 4, 8]
    # In one piece nothing is hidden; in eight all but the last one.
    assert times[1].exposed == times[1].communication
    assert times[8].exposed == pytest.approx(times[8].communication / 8, rel=1e-6)
    assert times[1].seconds == pytest.approx(times[1].compute + times[1].communication)
    assert {each.bound for each in times.values()} == {"compute"}
    assert modelled(program, limits, host.topology) == min(times, key=lambda count: times[count].seconds) == 8
    # Between devices that compute faster than their links carry, joining pieces costs more than is hidden.
    program = program_of(wide(rack, 32768).structure)
    whole = predicted(program, limits, 1, rates_of("gb200-nvl72"))
    assert whole.bound == "communication"
    assert "bound by communication" in str(whole)
    assert modelled(program, limits, rack.topology) == 1
    (told,) = graph.explain(wide(rack, 32768)).meshes
    assert told.predicted == whole
    assert "; bound by communication (rates of gb200-nvl72)" in str(told)
    # Of what was run, by the topology of the mesh on which it ran.
    here = dist.Mesh(["tp"], shape=(2,), topology="dgx-a100", backend="emulated")
    (ran,) = graph.explain(
        lambda: op.matmul(dist.tensor((4, 8), COLUMNS, here), dist.tensor((8, 4), ROWS, here))
    ).meshes
    assert ran.topology == "dgx-a100"
    assert ran.predicted.communication > 0


def test_calls_try_pieces_in_turn_and_settle(mesh: dist.Mesh) -> None:
    trials = ChunkTrials(program_of(sequence_parallel(mesh).structure))
    seen = []
    while not trials.is_settled:
        seen.append(trials.choice)
        trials.add({1: 3.0, 2: 1.0, 4: 2.0, 8: 5.0}[trials.choice] - len(seen) * 1e-3, mesh)
    count = len(set(seen))
    assert seen == seen[:count] * (ROUNDS + 1)
    assert trials.choice == 2
    with by_references():
        wanted = sequence_parallel(mesh).full().torch()
        for limits in (OverlapLimits(chunk="auto"), OverlapLimits(chunk="tune")):
            with limited(limits):
                for _ in range(count * (ROUNDS + 1) + 1):
                    assert torch.equal(sequence_parallel(mesh).full().torch(), wanted)


def test_what_is_not_even_stays_whole(mesh: dist.Mesh) -> None:
    a = dist.distribute(integers(6, 8), COLUMNS, mesh)
    b = dist.distribute(integers(8, 5), ROWS, mesh)
    y = op.matmul(a, b)
    assert chunked(program_of(y.structure), 4) is program_of(y.structure) or not any(
        isinstance(each, ShardMove) and each.is_piece for each in chunked(program_of(y.structure), 4).instructions
    )
    with dist.communication(chunk=4):
        assert torch.equal(y.full().torch(), integers(6, 8) @ integers(8, 5))


@pytest.mark.parametrize("limits", [EAGER, OverlapLimits(worth_flops=0, chunk=2), OverlapLimits(overlap=False)])
def test_drawn_expressions_are_the_same_in_any_order(limits: OverlapLimits) -> None:
    checked = 0
    with by_references(), limited(limits):
        for seed in range(4000, 4060):
            case = drawn(seed)
            if not case.steps:
                continue
            place = case.steps[-1][0]
            here, there = case.values(None)[place].torch(), case.values(case.mesh())[place].full().torch()
            assert agree(here, there, case.exact and not case.rounding, case.rounding), case.text()
            checked += 1
    assert checked > 40


def test_options_hold_inside_of_others(mesh: dist.Mesh) -> None:
    with dist.communication(chunk=2, overlap=False), dist.communication(bucket_bytes=7):
        limits = communication.current().limits
        assert (limits.chunk, limits.overlap, limits.bucket_bytes) == (2, False, 7)
    assert communication.current().limits == OverlapLimits()
    for wrong in ({"chunk": 0}, {"chunk": "some"}, {"bucket_bytes": -1}, {"implicit": "maybe"}):
        with pytest.raises(ArgumentError), dist.communication(**wrong):
            pass
