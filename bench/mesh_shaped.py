"""A rank of the suite `mesh` on a slow link (`bench.shaped_link`): how much of what travels is hidden, and what that
gives against torch and against doing one thing after the other. Both sides are checked first, and timed by turns.

    python -m bench.shaped_link --rate 2gbit bench/mesh_shaped.py [--quick]

Rank 0 prints a line of JSON for each case: seconds per call of ours and of what it is held against, round by round;
of a step also what computing alone and sending alone take.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
import torch.distributed as torch_dist
from torch.nn.parallel import DistributedDataParallel

import tessera
from bench.mesh_layers import LAYERS, RATE, WIDTH, apart, matrices, torch_step
from bench.mesh_programs import ENOUGH, ROWS, loss, multilayer
from tessera import Tensor, dist, grad, op
from tessera.sharding.job import join

STEPS = 4
"""Steps of a round: what one leaves to the next is counted, and the last is read."""
ROUNDS = 5
IMAGES, POINTS = 8, 1024
PIECES = 8


@dataclass(frozen=True)
class Shaped:
    """One case. `alone` has, by what is done alone, the seconds that it takes."""

    name: str
    ours: list[float]
    peer: list[float]
    alone: dict[str, list[float]] = field(default_factory=dict)


def seconds(call: Callable[[], Any], count: int) -> float:
    """Seconds per call of several in a row, which ranks begin together; `call` gives what is read in the end."""
    torch_dist.barrier()
    begin = time.perf_counter()
    for _ in range(count):
        made = call()
    for each in made or ():
        each.local()
    return (time.perf_counter() - begin) / count


def training(rounds: int) -> Shaped:
    """A step of data parallel descent against DDP; the same step without others, and its exchanges without a step."""
    weights, (batch,) = matrices(LAYERS, WIDTH, WIDTH, 1), matrices(1, 2 * ROWS, WIDTH, 2)
    mesh, rank = dist.Mesh(["dp"]), torch_dist.get_rank()
    mine = batch[rank * ROWS : (rank + 1) * ROWS]
    x = dist.distribute(batch, dist.ShardSpec((0,), ("dp",)), mesh)
    laid: list[Tensor] = [dist.distribute(weight, None, mesh) for weight in weights]
    plain: list[Tensor] = [op.tensor(weight) for weight in weights]
    step_of = grad.value_and_grad(loss, tuple(range(LAYERS)))

    def step(held: list[Tensor], rows: Tensor) -> Tensor:
        value, gradients = step_of(*held, rows)
        held[:] = [weight - RATE * each for weight, each in zip(held, gradients, strict=True)]
        tessera.eval(value, *held)
        made: Tensor = value
        return made

    def ours() -> list[Tensor]:
        step(laid, x)
        return laid

    def computing() -> None:
        step(plain, op.tensor(mine))

    group = join().communicator(range(2))
    sums = [group.empty((WIDTH, WIDTH), torch.float32).fill_(1.0) for _ in range(LAYERS)]

    def sending() -> None:
        for handle in [group.start_all_reduce(each, "sum") for each in sums]:
            handle.wait()

    model = DistributedDataParallel(multilayer(weights))
    step_of_torch = torch_step(model, lambda: model(mine).square().mean())

    def peer() -> None:
        step_of_torch()

    for _ in range(2):
        ours()
        peer()
    far = max(apart(held.local().torch(), own.detach().T) for held, own in zip(laid, model.parameters(), strict=True))
    assert far < ENOUGH, f"weights are {far} apart"
    found = Shaped("training, data parallel", [], [], {"computing": [], "sending": []})
    for _ in range(rounds):
        found.ours.append(seconds(ours, STEPS))
        found.peer.append(seconds(peer, STEPS))
        found.alone["computing"].append(seconds(computing, STEPS))
        found.alone["sending"].append(seconds(sending, STEPS))
    return found


def transform(rounds: int) -> Shaped:
    """Transforms of images whose rows are split: in pieces that travel while others are computed, against one piece."""
    shape = (IMAGES, POINTS, POINTS)
    whole = torch.randn(shape, dtype=torch.complex64, generator=torch.Generator().manual_seed(4))
    x = dist.distribute(whole, dist.ShardSpec((1,), ("x",)), dist.Mesh(["x"]))

    def in_pieces(count: int) -> list[Tensor]:
        with dist.communication(chunk=count):
            return [op.fft2(x).eval()]

    (made,) = in_pieces(PIECES)
    far = apart(made.full().torch(), torch.fft.fft2(whole))
    assert far < ENOUGH, f"transforms are {far} apart"
    in_pieces(1)
    found = Shaped(f"transform of {IMAGES} images of {POINTS} x {POINTS} points, {PIECES} pieces", [], [])
    for _ in range(rounds):
        found.ours.append(seconds(lambda: in_pieces(PIECES), 2))
        found.peer.append(seconds(lambda: in_pieces(1), 2))
    return found


def main() -> None:
    """Runs all cases."""
    torch.set_num_threads(1)
    rounds = 2 if "--quick" in sys.argv else ROUNDS
    job = join()
    for case in (training, transform):
        result = case(rounds)
        if job.rank == 0:
            print(json.dumps(asdict(result)), flush=True)


if __name__ == "__main__":
    main()
