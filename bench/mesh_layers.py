"""Programs of the suite `mesh` that divide one layer: tensor and sequence parallel training, transforms, experts.

Each is made for ranks and for a process that is no rank alike: `ours` of the first against torch's own, or a peer by
hand where torch has none, and against `ours` of the second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as torch_dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import tessera
from tessera import Tensor, dist, grad, op

LAYERS, WIDTH, RATE = 4, 1024, 1e-2
SEQUENCE = 256
IMAGE = 1024
SIGNAL = 1 << 20
TOKENS, HIDDEN, EXPERTS, CHOSEN, CAPACITY = 512, 2048, 4, 2, 1.25


@dataclass(frozen=True)
class Program:
    """A program of both sides: one call of each is a step. `check` says how far apart their results are, of 1."""

    name: str
    ours: Callable[[], Any]
    peers: dict[str, Callable[[], Any]]
    check: Callable[[], float]


def matrices(count: int, rows: int, columns: int, seed: int) -> list[torch.Tensor]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(rows, columns, generator=generator) / rows**0.5 for _ in range(count)]


def apart(ours: torch.Tensor, peer: torch.Tensor) -> float:
    """The largest difference, of the largest number."""
    return float((ours - peer).abs().max() / peer.abs().max())


def mesh_or_none(axis: str) -> dist.Mesh | None:
    """All ranks along an axis; None in a process that is no rank."""
    return dist.Mesh([axis]) if torch_dist.is_initialized() else None


def laid(whole: torch.Tensor, spec: dist.ShardSpec | None, mesh: dist.Mesh | None) -> Tensor:
    """A tensor on a mesh, or on this device."""
    made: Tensor = op.tensor(whole) if mesh is None else dist.distribute(whole, spec, mesh)
    return made


def local(x: Tensor) -> torch.Tensor:
    """What this process has of it."""
    made: torch.Tensor = x.torch() if x.mesh is None else x.local().torch()
    return made


class Block(nn.Module):
    """Two products of a feed-forward block."""

    def __init__(self, up: torch.Tensor, down: torch.Tensor) -> None:
        super().__init__()
        self.up, self.down = (nn.Linear(each.shape[0], each.shape[1], bias=False) for each in (up, down))
        with torch.no_grad():
            self.up.weight.copy_(up.T)
            self.down.weight.copy_(down.T)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Rows of as many columns."""
        made: torch.Tensor = x + self.down(torch.relu(self.up(x)))
        return made


def sequence_parallel() -> Program:
    """A step of plain descent on feed-forward blocks: weights split by columns, then rows; what lies between blocks is
    split by rows of the sequence.
    """
    ups, downs = matrices(LAYERS, WIDTH, 4 * WIDTH, 1), matrices(LAYERS, 4 * WIDTH, WIDTH, 2)
    (batch,) = matrices(1, SEQUENCE, WIDTH, 3)
    mesh = mesh_or_none("tp")
    rows = dist.ShardSpec((0,), ("tp",))
    specs = [dist.ShardSpec((1,), ("tp",)), rows]
    pairs = list(zip(ups, downs, strict=True))
    weights = [laid(each, spec, mesh) for pair in pairs for each, spec in zip(pair, specs, strict=True)]
    x = laid(batch, rows, mesh)
    losses: list[Tensor] = []

    def loss(*operands: Tensor) -> Tensor:
        *weights, y = operands
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            y = y + op.matmul(op.relu(op.matmul(y, up)), down)
            if mesh is not None:
                y = y.reshard(rows)
        made: Tensor = op.mean(y * y)
        return made

    step_of = grad.value_and_grad(loss, tuple(range(2 * LAYERS)))

    def ours() -> None:
        value, gradients = step_of(*weights, x)
        weights[:] = [weight - RATE * each for weight, each in zip(weights, gradients, strict=True)]
        tessera.eval(value, *weights)
        losses[:] = [value]

    name = "training, tensor and sequence parallel"
    blocks = [Block(*pair) for pair in pairs]
    if mesh is None:
        wanted = nn.Sequential(*blocks)(batch).square().mean().detach()

        def first() -> float:
            ours()
            return apart(torch.tensor(losses[0].item()), wanted)

        return Program(name, ours, {}, first)
    plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
    devices = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*[parallelize_module(block, devices, plan) for block in blocks])
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    size, rank = SEQUENCE // 2, torch_dist.get_rank()
    mine = batch[rank * size : (rank + 1) * size]

    def peer() -> torch.Tensor:
        optimizer.zero_grad()
        y = model(mine)
        value: torch.Tensor = (y * y).sum() / batch.numel()
        torch.autograd.backward(value)
        optimizer.step()
        return value.detach()

    def check() -> float:
        far = 0.0
        for _ in range(3):  # the losses of later steps hang on the weights of earlier ones
            ours()
            value = peer()
            torch_dist.all_reduce(value)
            far = max(far, apart(torch.tensor(losses[0].item()), value))
        return far

    return Program(name, ours, {"DTensor": peer}, check)


def transform(points: tuple[int, ...]) -> Program:
    """A Fourier transform over all dimensions, of which the first is split."""
    name = f"transform of {' x '.join(map(str, points))} points"
    (whole,) = [torch.randn(points, dtype=torch.complex64, generator=torch.Generator().manual_seed(4))]
    mesh = mesh_or_none("x")
    x = laid(whole, dist.ShardSpec((0,), ("x",)), mesh)

    def ours() -> Tensor:
        made: Tensor = (op.fft2(x) if len(points) == 2 else op.fft(x)).eval()
        return made

    def check() -> float:
        made = ours()
        found = made.torch() if mesh is None else made.full().torch()
        return apart(found, torch.fft.fftn(whole))

    if mesh is None or len(points) == 1:
        return Program(name, ours, {}, check)
    ranks, rank = torch_dist.get_world_size(), torch_dist.get_rank()
    size = points[0] // ranks
    mine = whole[rank * size : (rank + 1) * size].contiguous()
    got = torch.empty(ranks, size, points[1] // ranks, dtype=whole.dtype)

    def peer() -> torch.Tensor:
        rows = torch.fft.fft(mine, dim=1)
        sent = rows.view(size, ranks, -1).transpose(0, 1).contiguous()
        torch_dist.all_to_all_single(torch.view_as_real(got), torch.view_as_real(sent))
        made: torch.Tensor = torch.fft.fft(got.view(points[0], -1), dim=0)
        return made

    def both() -> float:
        width = points[1] // ranks
        return max(check(), apart(peer(), torch.fft.fft2(whole)[:, rank * width : (rank + 1) * width]))

    return Program(name, ours, {"torch.fft and one all-to-all": peer}, both)


def experts() -> Program:
    """A layer of experts that are pinned to ranks, two to each; tokens are split, and take the two best."""
    x, router = matrices(1, TOKENS, WIDTH // 2, 5)[0] * TOKENS**0.5, matrices(1, WIDTH // 2, EXPERTS, 6)[0]
    ups, downs = matrices(EXPERTS, WIDTH // 2, HIDDEN, 7), matrices(EXPERTS, HIDDEN, WIDTH // 2, 8)
    mesh = mesh_or_none("ep")
    ranks = 1 if mesh is None else torch_dist.get_world_size()
    parts = [None if mesh is None else mesh["ep", n * ranks // EXPERTS] for n in range(EXPERTS)]
    weights = [
        (op.constant(laid(up, None, part)), op.constant(laid(down, None, part)))
        for up, down, part in zip(ups, downs, parts, strict=True)
    ]
    tokens, routes = laid(x, dist.ShardSpec((0,), ("ep",)), mesh), laid(router, None, mesh)

    def expert(up: Tensor, down: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda rows: op.matmul(op.relu(op.matmul(rows, up)), down)

    functions: list[Any] = [expert(*pair) for pair in weights]
    if mesh is not None:
        functions = [dist.pin(functions[n], mesh["ep", n * ranks // EXPERTS]) for n in range(EXPERTS)]

    def ours() -> Tensor:
        made: Tensor = op.moe(tokens, routes, functions, top_k=CHOSEN, capacity=CAPACITY, groups=2)
        return made.eval()

    def by_hand(x: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """Of a group of tokens; `compute` takes and gives the places of all experts."""
        scores, chosen = (x @ router).topk(CHOSEN)
        places = max(1, math.ceil(CHOSEN * len(x) * CAPACITY / EXPERTS))
        wanted = chosen.T.reshape(-1)  # first choices take places before second ones
        place = nn.functional.one_hot(wanted, EXPERTS).cumsum(0).gather(1, wanted[:, None])[:, 0] - 1
        kept = place < places
        token = torch.arange(len(x)).repeat(CHOSEN)
        held = torch.zeros(EXPERTS, places, x.shape[1])
        held[wanted[kept], place[kept]] = x[token[kept]]
        made = compute(held)
        found = made[wanted, place.clamp(max=places - 1)] * kept[:, None]
        return (found * scores.softmax(-1).T.reshape(-1, 1)).view(CHOSEN, len(x), -1).sum(0)

    def one(n: int, rows: torch.Tensor) -> torch.Tensor:
        return (rows @ ups[n]).relu() @ downs[n]

    def all_here(held: torch.Tensor) -> torch.Tensor:
        return torch.stack([one(n, held[n]) for n in range(EXPERTS)])

    def whole() -> torch.Tensor:
        return torch.cat([by_hand(half, all_here) for half in x.chunk(2)])

    name = "experts pinned to ranks"
    if mesh is None:
        return Program(name, ours, {}, lambda: apart(ours().torch(), whole()))
    own, rank = EXPERTS // ranks, torch_dist.get_rank()
    mine = x.chunk(ranks)[rank].contiguous()

    def exchanged(held: torch.Tensor) -> torch.Tensor:
        places = held.shape[1]
        got = torch.empty_like(held)
        torch_dist.all_to_all_single(got, held)
        rows = got.view(ranks, own, places, -1)
        made = torch.stack([one(rank * own + n, rows[:, n].reshape(ranks * places, -1)) for n in range(own)], 0)
        back = made.view(own, ranks, places, -1).transpose(0, 1).contiguous().view_as(held)
        found = torch.empty_like(back)
        torch_dist.all_to_all_single(found, back)
        return found

    @torch.no_grad()
    def peer() -> torch.Tensor:
        return by_hand(mine, exchanged)

    def check() -> float:
        right = whole()
        return max(apart(ours().full().torch(), right), apart(peer(), right.chunk(ranks)[rank]))

    return Program(name, ours, {"torch's all-to-all by hand": peer}, check)


def layered() -> Iterator[Callable[[], Program]]:
    """What makes each program, here as on ranks."""
    yield sequence_parallel
    yield partial(transform, (IMAGE, IMAGE))
    yield partial(transform, (SIGNAL,))
    yield experts
