"""What binding costs for sizes that were never seen, and what a warm call costs beside eager's: `python -m
bench.probes.binding`.

Models are compiled for sizes as symbols and called with some sizes, then with others. Each line says how many of these
were bound with kernels of a known class of sizes, with kernels that were chosen anew, or with a kernel that was
compiled, and least time, first quartile and median of the processor time that it took.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional

import tessera.torch  # noqa: F401 - makes torch know the backend
from tessera.compiler.device.compiler import DeviceCompiler
from tessera.compiler.device.cpu_planner import CpuPlanner
from tessera.integrations.torch.partitions.partition import Partition

SEEN, FRESH = 60, 200
WIDTH, HEADS, WORDS = 32, 4, 67


class _Decoder(nn.Module):
    """A decoder of four layers over tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
        self.layers = nn.ModuleList(_Layer() for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for layer in self.layers:
            x = layer(x)
        y: Tensor = self.norm(x) @ self.words.weight.T
        return y


class _Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.joint, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.joint(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        queries, keys, values = parts.unbind(0)
        y = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, WIDTH))
        found: Tensor = x + self.narrow(functional.gelu(self.wide(self.after(x))))
        return found


def _layers() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))


def _convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 8, 3, padding=1))


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int, int], Tensor]]] = {
    "three layers, rows": (_layers, lambda n, m: torch.randn(8 * n + m, 64)),
    "two convolutions, images": (_convolutions, lambda n, m: torch.randn(41 * n + m - 80, 3, 16, 16)),
    "two convolutions, rows and pixels": (_convolutions, lambda n, m: torch.randn(2, 3, n + 8, m + 8)),
    "decoder of four layers, batch and length": (_Decoder, lambda n, m: torch.randint(0, WORDS, (n % 9 + 2, m))),
}


def binding(name: str) -> None:
    """Prints what a model's sizes cost."""
    make, inputs = MODELS[name]
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = make().eval().requires_grad_(False)
    compiled = torch.compile(model, backend="tessera", dynamic=True)
    chance, sizes = random.Random(0), set[tuple[int, int]]()
    while len(sizes) < SEEN + FRESH:
        sizes.add((chance.randint(2, 40), chance.randint(2, 40)))
    drawn = sorted(sizes)
    chance.shuffle(drawn)
    times: dict[str, list[float]] = {}
    nodes: dict[int, int] = {}
    kind = ""
    rebind, code, choice = Partition._rebind, CpuPlanner._code, DeviceCompiler._choice

    def timed(self: Partition, *given: Any) -> Any:
        nonlocal kind
        kind, begun = "known", time.thread_time_ns()
        found = rebind(self, *given)
        took = (time.thread_time_ns() - begun) / 1e3
        nodes[id(self)] = len(self.nodes)
        times.setdefault(kind if found is not None else "not bound so", []).append(took)
        return found

    def compiling(self: CpuPlanner, *given: Any, **named: Any) -> Any:
        nonlocal kind
        kind = "compiled"
        return code(self, *given, **named)

    def choosing(self: DeviceCompiler, *given: Any) -> Any:
        nonlocal kind
        kind = "chosen" if kind == "known" else kind
        return choice(self, *given)

    with (
        torch.no_grad(),
        patch.object(Partition, "_rebind", timed),
        patch.object(CpuPlanner, "_code", compiling),
        patch.object(DeviceCompiler, "_choice", choosing),
    ):
        for place, (n, m) in enumerate(drawn):
            if place == SEEN:
                times.clear()
            compiled(inputs(n, m))
    print(f"{name}: {sum(nodes.values())} operators", flush=True)
    for each, found in times.items():
        found.sort()
        print(
            f"    {each:12} {len(found):4}   least {found[0]:6.0f} us   quartile {found[len(found) // 4]:6.0f} us   "
            f"median {statistics.median(found):6.0f} us",
            flush=True,
        )


def _total(*tensors: Tensor) -> Tensor:
    found = tensors[0]
    for each in tensors[1:]:
        found = found + each
    return found


def warm_calls(calls: int = 1500) -> None:
    """Prints what calls with the same sizes cost: eager, through Tessera, and through torch's own `aot_eager`, which is
    Dynamo and AOTAutograd over eager's operators.
    """
    torch.manual_seed(0)
    cases: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor]]] = {
        "one operator": (torch.relu, [torch.randn(16)]),
        "60 inputs": (_total, [torch.randn(16) for _ in range(60)]),
    }
    for name, (function, inputs) in cases.items():
        torch._dynamo.reset()
        ways = {"eager": function}
        ways |= {each: torch.compile(function, backend=each, dynamic=False) for each in ("tessera", "aot_eager")}
        times: dict[str, list[float]] = {each: [] for each in ways}
        with torch.no_grad():
            for _ in range(calls):
                for each, way in ways.items():
                    begun = time.perf_counter_ns()
                    way(*inputs)
                    times[each].append((time.perf_counter_ns() - begun) / 1e3)
        told = [f"{way} {min(found):.1f} (median {statistics.median(found):.1f}) us" for way, found in times.items()]
        print(f"warm call, {name}: {', '.join(told)}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for each in MODELS:
        binding(each)
    warm_calls()
