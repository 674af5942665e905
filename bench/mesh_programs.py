"""A rank of the suite `mesh`: times whole programs on two ranks, ours against torch's by turns, after checking both.

    tessera run --ranks 2 bench/mesh_programs.py [--quick]
    python -m bench.mesh_programs --alone|--plan [--quick]

Both sides have the same weights and inputs, and exchange as each does by itself: ours by what the job chooses, torch's
by Gloo. Rank 0 prints a line of JSON for each program, as `mesh_probe` does for collectives. A process that is no rank
runs some of them alone (`--alone`), or decides how programs are divided (`--plan`).
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import tessera
from bench.mesh_layers import (
    LAYERS,
    RATE,
    WIDTH,
    Block,
    Program,
    apart,
    layered,
    losses_apart,
    matrices,
    torch_step,
)
from bench.mesh_probe import Timed, calls_of, timed
from tessera import Tensor, dist, grad, graph, op
from tessera.sharding.job import join

ROWS = 128
ROUNDS = 7
MICROBATCHES = 8
TOKENS = (1, 16)
CALLS_ALONE = 5
SPLITS = (((0, 3), ("dp", "tp")), ((1, 2), ("pp", "tp")))
"""Operands of a product that is planned: a batch each over one axis, and what is summed over the third."""
ENOUGH = 1e-4
"""How far results may be apart, of the largest: orders of sums differ."""


# -- tensor parallel decoding -----------------------------------------------------------------------------------------


def decoding(tokens: int) -> Program:
    """Feed-forward blocks whose columns, then rows are split: an all-reduce each."""
    ups, downs = matrices(LAYERS, WIDTH, 4 * WIDTH, 1), matrices(LAYERS, 4 * WIDTH, WIDTH, 2)
    (x,) = matrices(1, tokens, WIDTH, 3)
    mesh = dist.Mesh(["tp"])
    columns, rows, whole = (dist.ShardSpec(*spec) for spec in ((("col",), ("tp",)), (("row",), ("tp",)), ((), ())))
    laid = [
        (op.constant(dist.distribute(up, columns, mesh)), op.constant(dist.distribute(down, rows, mesh)))
        for up, down in zip(ups, downs, strict=True)
    ]
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    devices = init_device_mesh("cpu", (2,))
    blocks = [parallelize_module(Block(*pair), devices, plan) for pair in zip(ups, downs, strict=True)]
    model = nn.Sequential(*blocks)
    given = dist.distribute(x, whole, mesh)

    def ours() -> Tensor:
        y: Tensor = given
        for up, down in laid:
            y = y + op.matmul(op.relu(op.matmul(y, up)), down)
        made: Tensor = y.reshard(whole).eval()  # as DTensor gives it: several rows would be split over the ranks
        return made

    @torch.no_grad()
    def peer() -> torch.Tensor:
        made: torch.Tensor = model(x)
        return made

    name = decoding_name(tokens)
    return Program(name, ours, {"DTensor": peer}, lambda: apart(ours().local().torch(), peer()))


def decoding_name(tokens: int) -> str:
    """What it is called in tables."""
    return f"decoding, tensor parallel, {tokens} token{'s' if tokens > 1 else ''}"


def decoding_alone(tokens: int) -> Program:
    """The same blocks in one process that is no rank, with its threads."""
    ups, downs = matrices(LAYERS, WIDTH, 4 * WIDTH, 1), matrices(LAYERS, 4 * WIDTH, WIDTH, 2)
    (x,) = matrices(1, tokens, WIDTH, 3)
    constants = [(op.constant(up), op.constant(down)) for up, down in zip(ups, downs, strict=True)]
    model = nn.Sequential(*(Block(*pair) for pair in zip(ups, downs, strict=True)))

    def ours() -> torch.Tensor:
        y = op.tensor(x)
        for up, down in constants:
            y = y + op.matmul(op.relu(op.matmul(y, up)), down)
        made: torch.Tensor = y.torch()
        return made

    @torch.no_grad()
    def check() -> float:
        return apart(ours(), model(x))

    return Program(decoding_name(tokens), ours, {}, check)


def alone(quick: bool) -> Iterator[Callable[[], Program]]:
    """Programs of a process that is no rank, which has the threads that it is given."""
    for tokens in TOKENS[:1] if quick else TOKENS:
        yield partial(decoding_alone, tokens)
    if not quick:
        yield from layered()


def timed_alone(program: Program, rounds: int) -> Timed:
    """Checks a program of one process, then times it."""
    far = program.check()
    assert far < ENOUGH, f"{program.name}: ours and torch's are {far} apart"
    found = []
    for _ in range(rounds):
        begin = time.perf_counter()
        for _ in range(CALLS_ALONE):
            program.ours()
        found.append((time.perf_counter() - begin) / CALLS_ALONE)
    return Timed(program.name, 1, 0, found, [])


def planning(rounds: int) -> Iterator[Timed]:
    """Deciding how programs are divided, each of new shapes, so that nothing is remembered; nothing is computed."""
    mesh = dist.Mesh(["dp", "tp", "pp"], shape=(3, 4, 6), devices=range(72))

    def product(number: int) -> None:
        shape = (48, 24, 512 + 8 * number, 512 + 8 * number)
        a, b = (dist.tensor(shape, dist.ShardSpec(*spec), mesh) for spec in SPLITS)
        with contextlib.redirect_stdout(io.StringIO()):
            assert graph.explain(op.matmul(a, b)).meshes[0].bytes

    def model(number: int) -> None:
        gpt = dist.Transformer(
            layers=96, hidden=12_288, heads=96, feedforward=49_152, vocabulary=51_200 + number, sequence=2_048
        )
        dist.plan(gpt, batch=1536, topology="gb200-nvl72", devices=72)

    for name, decide in (("planning a 4-D matmul on three axes", product), ("planning 96 layers on 72 devices", model)):
        decide(0)
        found = []
        for number in range(1, rounds + 1):
            begin = time.perf_counter()
            decide(number)
            found.append(time.perf_counter() - begin)
        yield Timed(name, 72, 0, found, [])


# -- training ---------------------------------------------------------------------------------------------------------


def multilayer(weights: list[torch.Tensor]) -> nn.Sequential:
    """Linear layers with relu between."""
    layers: list[nn.Module] = []
    for weight in weights:
        layer = nn.Linear(weight.shape[0], weight.shape[1], bias=False)
        with torch.no_grad():
            layer.weight.copy_(weight.T)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


def loss(*operands: Tensor) -> Tensor:
    """The mean square of what the layers make of the last operand."""
    *weights, y = operands
    for weight in weights:
        y = op.relu(op.matmul(y, weight))
    made: Tensor = op.mean(y * y)
    return made


def training(split: bool) -> Program:
    """A step of plain descent on two halves of a batch: weights as copies, or split over the ranks (ZeRO-3)."""
    weights, (batch,) = matrices(LAYERS, WIDTH, WIDTH, 1), matrices(1, 2 * ROWS, WIDTH, 2)
    mesh = dist.Mesh(["dp"])
    rows, copies = dist.ShardSpec((0,), ("dp",)), dist.ShardSpec((), ())
    laid = [dist.distribute(weight, rows if split else copies, mesh) for weight in weights]
    x = dist.distribute(batch, rows, mesh)
    step_of = grad.value_and_grad(loss, tuple(range(LAYERS)))

    def ours() -> Tensor:
        value, gradients = step_of(*laid, x)
        laid[:] = [weight - RATE * each for weight, each in zip(laid, gradients, strict=True)]
        tessera.eval(value, *laid)
        made: Tensor = value
        return made

    rank = torch_dist.get_rank()
    mine = batch[rank * ROWS : (rank + 1) * ROWS]
    model: nn.Module = multilayer(weights)
    if split:
        devices = init_device_mesh("cpu", (2,))
        for layer in model.children():
            if isinstance(layer, nn.Linear):
                fully_shard(layer, mesh=devices)
        fully_shard(model, mesh=devices)
    else:
        model = DistributedDataParallel(model)
    peer = torch_step(model, lambda: model(mine).square().mean())
    name = "training, ZeRO-3" if split else "training, data parallel"
    return Program(name, ours, {"FSDP2" if split else "DDP": peer}, lambda: losses_apart(ours, peer, 2))


def pipelined() -> Program:
    """A step of two stages of equal layers, and eight microbatches."""
    weights, (batch,) = matrices(LAYERS, WIDTH, WIDTH, 1), matrices(1, 4 * ROWS, WIDTH, 2)
    rank, half = torch_dist.get_rank(), LAYERS // 2
    mesh = dist.Mesh(["pp"])

    def stage(held: list[Tensor], x: Tensor) -> Tensor:
        for weight in held:
            x = op.relu(op.matmul(x, weight))
        return x

    def ours_loss(y: Tensor, _: Tensor) -> Tensor:
        made: Tensor = op.mean(y * y)
        return made

    step = dist.pipeline([stage, stage], mesh, microbatches=MICROBATCHES, schedule="1f1b", loss=ours_loss)
    held = [[op.tensor(each) for each in weights[n * half : (n + 1) * half]] for n in range(2)]
    given = [held[n] if n in step.stages else None for n in range(2)]
    wanted = torch.zeros(4 * ROWS, 1)

    def ours() -> Any:
        value, gradients = step(given, batch, wanted)
        tessera.eval(*gradients[rank])
        return value

    def peer_of(schedule: Any) -> Callable[[], Any]:
        model = multilayer(weights[rank * half : (rank + 1) * half])
        part = batch[: 4 * ROWS // MICROBATCHES]
        torch_stage = PipelineStage(model, rank, 2, torch.device("cpu"), input_args=(part,))
        made = schedule(torch_stage, MICROBATCHES, loss_fn=lambda y, _: (y * y).mean())

        def peer() -> Any:
            losses: list[torch.Tensor] = []
            for parameter in model.parameters():
                parameter.grad = None
            if rank == 0:
                made.step(batch)
                return None
            made.step(target=wanted, losses=losses)
            return torch.stack([each.detach() for each in losses]).mean()

        return peer

    peers = {"torch's GPipe": peer_of(ScheduleGPipe), "torch's 1F1B": peer_of(Schedule1F1B)}

    def check() -> float:
        value, far = float(ours()), 0.0
        for peer in peers.values():
            found = peer()
            far = max(far, 0.0 if found is None else apart(torch.tensor(value), found))
        return far

    return Program("training, two stages", ours, peers, check)


def programs(quick: bool) -> Iterator[Callable[[], Program]]:
    """What makes each program, which is done with before the next is made."""
    for tokens in TOKENS[:1] if quick else TOKENS:
        yield partial(decoding, tokens)
    yield partial(training, split=False)
    yield partial(training, split=True)
    yield pipelined
    if not quick:
        yield from layered()


def measure(program: Program, rounds: int) -> Iterator[Timed]:
    """Checks both sides, then times them by turns: ours against each of the peers."""
    far = program.check()
    assert far < ENOUGH, f"{program.name}: ours and torch's are {far} apart"
    calls = {name: calls_of(call) for name, call in program.peers.items()}
    own_calls = calls_of(program.ours)
    ours: list[float] = []
    peers: dict[str, list[float]] = {name: [] for name in program.peers}
    for _ in range(rounds):
        ours.append(timed(program.ours, own_calls))
        for name, call in program.peers.items():
            peers[name].append(timed(call, calls[name]))
    for name, times in peers.items():
        yield Timed(f"{program.name}, against {name}", 2, 0, ours, times)
    if not peers:
        yield Timed(program.name, 2, 0, ours, [])


def main() -> None:
    """Runs all programs."""
    quick = "--quick" in sys.argv
    if "--alone" in sys.argv:
        for make in alone(quick):
            print(json.dumps(asdict(timed_alone(make(), 2 if quick else ROUNDS))))
        return
    if "--plan" in sys.argv:
        for result in planning(2 if quick else ROUNDS):
            print(json.dumps(asdict(result)))
        return
    job = join()
    assert job.size == 2, "these programs are of two ranks"
    for make in programs(quick):
        for result in measure(make(), 2 if quick else ROUNDS):
            if job.rank == 0:
                print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
