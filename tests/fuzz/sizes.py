"""`python -m tests.fuzz.sizes --minutes N --seed S`: programs that are compiled for sizes as symbols, run with many.

A program is a chain of `PIECES` over tensors of two sizes. It runs through `torch.compile(dynamic=True)`, for primes,
sizes beside powers of two and equal ones, at last for 0 and 1 and over inputs that lie in other ways. After a few sizes
the others are bound by what was recorded (`integrations/torch/partitions/rebinding.py`). Values are compared with torch
in float64, shapes and strides with torch's.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from tessera.integrations.torch.partitions.partition import Partition
from tessera.integrations.torch.partitions.rebinding import ReboundPartition

SIZES = (*range(2, 9), 11, 13, 15, 16, 17, 19, 23, 31, 32, 33, 37, 47, 48, 49, 63, 64, 65, 67, 96, 127, 128, 131)
EDGES = (0, 1, 2, 3, 16, 33)
"""Sizes of the last calls."""

LAST_CALLS = 4
CHANNELS = 6
MOST_PRODUCTS = 1_600_000
"""Of a row, a column and the larger of both: larger sizes are halved."""

Piece = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of the value so far, (n, m, c), another such, over inputs (n, m, c) and (1, m, c); c is `CHANNELS`."""


def _square(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    scores = x @ x.transpose(1, 2) * 0.1
    return scores.softmax(-1) @ x


def _windows(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    image = x.permute(2, 0, 1)[None]
    weights = torch.linspace(-0.3, 0.3, CHANNELS * CHANNELS * 9, dtype=x.dtype).reshape(CHANNELS, CHANNELS, 3, 3)
    return functional.conv2d(image, weights, padding=1)[0].permute(1, 2, 0)


def _pooled(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    found = functional.avg_pool2d(functional.pad(x.permute(2, 0, 1)[None], (1, 1, 1, 1)), 3, 1)
    return found[0].permute(1, 2, 0) - x


def _flat(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    rows = x.reshape(x.shape[0] * x.shape[1], CHANNELS)
    mixed = rows @ torch.linspace(-0.4, 0.4, CHANNELS * CHANNELS, dtype=x.dtype).reshape(CHANNELS, CHANNELS)
    return functional.gelu(mixed).reshape(x.shape)


def _joined(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    return torch.cat((z, x, y), 0)[1 : x.shape[0] + 1]


def _halves(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    middle = int(x.shape[1] / 2)  # by way of a float
    return torch.cat((x[:, middle:] * 2, y[:, :middle]), 1)


def _split(x: Tensor, y: Tensor, z: Tensor) -> Tensor:
    left, right = torch.chunk(x, 2, 2)
    return torch.cat((right * 2, left.tanh()), 2)


PIECES: dict[str, Piece] = {
    "sum of inputs": lambda x, y, z: x + y * 0.5,
    "broadcast": lambda x, y, z: x * z + 1,
    "broadcast mean": lambda x, y, z: x - x.mean(0, keepdim=True),
    "mean of columns": lambda x, y, z: x - x.mean(1, keepdim=True) + y,
    "layer norm": lambda x, y, z: functional.layer_norm(x, (CHANNELS,)),
    "softmax of columns": lambda x, y, z: x.softmax(1),
    "largest": lambda x, y, z: torch.maximum(x, y).clamp(-2, 2),
    "sum along rows": lambda x, y, z: x.cumsum(0) * 0.1,
    "gather": lambda x, y, z: x[torch.arange(x.shape[0]).flip(0)],
    "turned": lambda x, y, z: (x.transpose(0, 1) * 2).transpose(0, 1),
    "turned and made": lambda x, y, z: x.transpose(0, 1).contiguous().sin().transpose(0, 1),
    "times a size": lambda x, y, z: x / x.shape[0] + x.shape[1],
    "padded": lambda x, y, z: functional.pad(x, (0, 0, 1, 2))[:, : x.shape[1]].relu(),
    "each second": lambda x, y, z: torch.cat((x[:, ::2], x[:, 1::2]), 1),
    "attention": _square,
    "convolution": _windows,
    "pooled": _pooled,
    "product": _flat,
    "joined": _joined,
    "split": _split,
    "halves by floats": _halves,
    "masked": lambda x, y, z: torch.where(y > 0, x, z),
    "distances": lambda x, y, z: (x.unsqueeze(1) - x.unsqueeze(2)).abs().mean(2) if x.shape[1] < 24 else x.abs(),
    "added rows": lambda x, y, z: x + x.sum((1, 2), keepdim=True) * 0.01,
}
"""By name what a program is made of. Another kind of program is another entry."""

Layout = Callable[[Tensor], Tensor]

LAYOUTS: Sequence[Layout] = (
    lambda x: x,
    lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    lambda x: torch.cat((x, x), 2)[..., :CHANNELS],
    lambda x: torch.cat((x, x), 1)[:, : x.shape[1]],
    lambda x: x.permute(2, 0, 1).contiguous().permute(1, 2, 0),
)
"""How an input lies in memory."""


@dataclass(frozen=True)
class Dynamic:
    """A program of pieces, by their names; `shown` are those whose values are results too."""

    names: tuple[str, ...]
    shown: frozenset[int] = frozenset()

    def __call__(self, x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        """The results, over inputs of (n, m, c), (n, m, c) and (1, m, c)."""
        results = []
        for place, name in enumerate(self.names):
            x = PIECES[name](x, y, z)
            if place in self.shown or place == len(self.names) - 1:
                results.append(x)
        return tuple(results)


def drawn(seed: int) -> Dynamic:
    """The program of a seed."""
    chance = random.Random(seed)
    names = tuple(chance.choices(list(PIECES), k=chance.randint(1, 5)))
    return Dynamic(names, frozenset(place for place in range(len(names)) if chance.random() < 0.25))


@dataclass
class Tally:
    """What was checked: calls, and those that a recording bound."""

    calls: int = 0
    rebound: int = 0
    wrong: list[str] = field(default_factory=list)


def check(program: Dynamic, seed: int, count: int, tally: Tally) -> None:
    """Runs a program for so many sizes, in an order that the seed draws. Notes what is wrong in the tally."""
    torch._dynamo.reset()
    chance, values = random.Random(seed), torch.Generator().manual_seed(seed)
    compiled = torch.compile(program, backend="tessera", dynamic=True, options={"fallback": "error"})
    rebind = Partition._rebind

    def counted(self: Partition, key: Sequence[object]) -> ReboundPartition | None:
        found = rebind(self, key)
        tally.rebound += found is not None
        return found

    Partition._rebind = counted  # type: ignore[method-assign]
    try:
        for n, m, layouts in _calls(chance, count):
            shapes = (n, m, CHANNELS), (n, m, CHANNELS), (1, m, CHANNELS)
            inputs = [
                layout(torch.randn(shape, generator=values)) for shape, layout in zip(shapes, layouts, strict=True)
            ]
            tally.calls += 1
            told = _wrong(program, compiled, inputs)
            if told:
                tally.wrong.append(f"seed {seed}: {program.names} of {n} x {m}, {told}")
                return
    finally:
        Partition._rebind = rebind  # type: ignore[method-assign]


def _calls(chance: random.Random, count: int) -> list[tuple[int, int, Sequence[Layout]]]:
    """Sizes and layouts of inputs: the same layouts in all calls but the last, which have edges, too."""
    usual = [LAYOUTS[0] if chance.random() < 0.7 else chance.choice(LAYOUTS) for _ in range(3)]
    calls: list[tuple[int, int, Sequence[Layout]]] = []
    for number in range(count):
        is_last = number >= count - LAST_CALLS
        n, m = (chance.choice(EDGES if is_last else SIZES) for _ in range(2))
        if chance.random() < 0.1:
            m = n
        while n * m * max(n, m) > MOST_PRODUCTS:
            n, m = max(n // 2, 1), max(m // 2, 1)
        others = [chance.choice(LAYOUTS) for _ in range(3)]
        calls.append((n, m, others if is_last and number % 2 else usual))
    return calls


def _wrong(program: Dynamic, compiled: Callable[..., tuple[Tensor, ...]], inputs: Sequence[Tensor]) -> str:
    """What is wrong with a call; nothing where all is well."""
    try:
        with torch.no_grad():
            eager = program(*inputs)
            exact = program(*[each.double() for each in inputs])
    except (RuntimeError, IndexError):  # torch refuses these sizes, as empty maxima
        return ""
    with torch.no_grad():
        try:
            results = compiled(*inputs)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what is looked for
            return f"{type(error).__name__}: {error}"
    for place, (result, same, right) in enumerate(zip(results, eager, exact, strict=True)):
        if result.shape != same.shape or _walked(result) != _walked(same):
            return f"result {place} has {tuple(result.shape)}, {result.stride()}, not {same.shape}, {same.stride()}"
        if not result.numel():
            continue
        allowed = 4 * (same.double() - right).abs().amax() + 1e-4 * (1 + right.abs())
        apart = (result.double() - right).abs()
        if not bool(((apart <= allowed) | (result.isnan() & right.isnan())).all()):
            return f"result {place} is off by {float(apart.max()):.3g}"
    return ""


def _walked(tensor: Tensor) -> list[int]:
    """The strides that say anything."""
    if not tensor.numel():
        return []
    return [stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True) if extent != 1]


def main() -> int:
    """Checks programs until time is over. Gives 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sizes", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long to go on")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--programs", type=int, help="how many seeds, whatever the time")
    parser.add_argument("--sizes", type=int, default=24, help="sizes of each program")
    options = parser.parse_args()
    begun, seed, tally = time.monotonic(), options.seed, Tally()
    while (
        seed < options.seed + options.programs
        if options.programs is not None
        else time.monotonic() - begun < 60 * options.minutes
    ):
        known = len(tally.wrong)
        check(drawn(seed), seed, options.sizes, tally)
        for told in tally.wrong[known:]:
            print(told, flush=True)
        seed += 1
    print(
        f"seeds {options.seed} to {seed - 1}: {tally.calls} calls, {tally.rebound} partitions bound by recordings, "
        f"{len(tally.wrong)} findings"
    )
    return int(bool(tally.wrong))


if __name__ == "__main__":
    sys.exit(main())
