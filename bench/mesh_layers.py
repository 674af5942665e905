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


def torch_step(model: nn.Module, loss_of: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """A step of plain descent as torch takes it; gives the loss before it."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        value = loss_of()
        torch.autograd.backward(value)
        optimizer.step()
        return value.detach()

    return step


def losses_apart(ours: Callable[[], Tensor], peer: Callable[[], torch.Tensor], shares: int) -> float:
    """How far losses of three steps are apart, of 1: later ones hang on the weights of earlier ones. What the peer
    gives is summed over ranks, for so many equal shares.
    """
    far = 0.0
    for _ in range(3):
        own, value = ours(), peer()
        torch_dist.all_reduce(value)
        far = max(far, apart(torch.tensor(own.item()), value / shares))
    return far


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

    def loss(*operands: Tensor) -> Tensor:
        *weights, y = operands
        for up, down in zip(weights[::2], weights[1::2], strict=True):
            y = y + op.matmul(op.relu(op.matmul(y, up)), down)
            if mesh is not None:
                y = y.reshard(rows)
        made: Tensor = op.mean(y * y)
        return made

    step_of = grad.value_and_grad(loss, tuple(range(2 * LAYERS)))

    def ours() -> Tensor:
        value, gradients = step_of(*weights, x)
        weights[:] = [weight - RATE * each for weight, each in zip(weights, gradients, strict=True)]
        tessera.eval(value, *weights)
        made: Tensor = value
        return made

    name = "training, tensor and sequence parallel"
    blocks = [Block(*pair) for pair in pairs]
    if mesh is None:
        wanted = nn.Sequential(*blocks)(batch).square().mean().detach()
        return Program(name, ours, {}, lambda: apart(torch.tensor(ours().item()), wanted))
    plan = {"up": ColwiseParallel(input_layouts=Shard(0)), "down": RowwiseParallel(output_layouts=Shard(0))}
    devices = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*[parallelize_module(block, devices, plan) for block in blocks])
    size, rank = SEQUENCE // 2, torch_dist.get_rank()
    mine = batch[rank * size : (rank + 1) * size]

    def peer_loss() -> torch.Tensor:
        made: torch.Tensor = model(mine).square().sum() / batch.numel()
        return made

    peer = torch_step(model, peer_loss)
    return Program(name, ours, {"DTensor": peer}, lambda: losses_apart(ours, peer, 1))


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


class Mixture:
    """Experts and their router, and the same by hand in torch's operations, for rows of tokens."""

    def __init__(self) -> None:
        self.x = matrices(1, TOKENS, WIDTH // 2, 5)[0] * TOKENS**0.5
        (self.router,) = matrices(1, WIDTH // 2, EXPERTS, 6)
        self.ups = matrices(EXPERTS, WIDTH // 2, HIDDEN, 7)
        self.downs = matrices(EXPERTS, HIDDEN, WIDTH // 2, 8)

    def mixed(self, x: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        """What a group of tokens becomes; `compute` takes and gives the places of all experts."""
        scores, chosen = (x @ self.router).topk(CHOSEN)
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

    def whole(self) -> torch.Tensor:
        """All tokens, in two groups, by experts that are all here."""

        def here(held: torch.Tensor) -> torch.Tensor:
            return torch.stack([self.expert(n, held[n]) for n in range(EXPERTS)])

        return torch.cat([self.mixed(half, here) for half in self.x.chunk(2)])

    def expert(self, n: int, rows: torch.Tensor) -> torch.Tensor:
        """What an expert makes of rows."""
        return (rows @ self.ups[n]).relu() @ self.downs[n]

    def exchanged(self, held: torch.Tensor) -> torch.Tensor:
        """The places of all experts, computed by the ranks that have them."""
        ranks, rank, places = torch_dist.get_world_size(), torch_dist.get_rank(), held.shape[1]
        own = EXPERTS // ranks
        got = torch.empty_like(held)
        torch_dist.all_to_all_single(got, held)
        rows = got.view(ranks, own, places, -1)
        made = torch.stack([self.expert(rank * own + n, rows[:, n].reshape(ranks * places, -1)) for n in range(own)], 0)
        back = made.view(own, ranks, places, -1).transpose(0, 1).contiguous().view_as(held)
        found = torch.empty_like(back)
        torch_dist.all_to_all_single(found, back)
        return found


def experts() -> Program:
    """A layer of experts that are pinned to ranks, two to each; tokens are split, and take the two best."""
    by_hand, mesh = Mixture(), mesh_or_none("ep")
    ranks = 1 if mesh is None else torch_dist.get_world_size()
    parts = [None if mesh is None else mesh["ep", n * ranks // EXPERTS] for n in range(EXPERTS)]
    tokens, routes = laid(by_hand.x, dist.ShardSpec((0,), ("ep",)), mesh), laid(by_hand.router, None, mesh)

    def expert(n: int) -> Any:
        up, down = (op.constant(laid(each, None, parts[n])) for each in (by_hand.ups[n], by_hand.downs[n]))

        def made(rows: Tensor) -> Tensor:
            return op.matmul(op.relu(op.matmul(rows, up)), down)

        part = parts[n]
        return made if part is None else dist.pin(made, part)

    functions = [expert(n) for n in range(EXPERTS)]

    def ours() -> Tensor:
        made: Tensor = op.moe(tokens, routes, functions, top_k=CHOSEN, capacity=CAPACITY, groups=2)
        return made.eval()

    name = "experts pinned to ranks"
    if mesh is None:
        return Program(name, ours, {}, lambda: apart(ours().torch(), by_hand.whole()))
    rank = torch_dist.get_rank()
    mine = by_hand.x.chunk(ranks)[rank].contiguous()

    @torch.no_grad()
    def peer() -> torch.Tensor:
        return by_hand.mixed(mine, by_hand.exchanged)

    def check() -> float:
        right = by_hand.whole()
        return max(apart(ours().full().torch(), right), apart(peer(), right.chunk(ranks)[rank]))

    return Program(name, ours, {"torch's all-to-all by hand": peer}, check)


def layered() -> Iterator[Callable[[], Program]]:
    """What makes each program, here as on ranks."""
    yield sequence_parallel
    yield partial(transform, (IMAGE, IMAGE))
    yield partial(transform, (SIGNAL,))
    yield experts
