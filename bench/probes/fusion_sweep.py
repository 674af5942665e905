"""``python -m bench.probes.fusion_sweep [--cases N] [--seed S] [--least N]``: is what fusion makes of an expression
ever slower than its operators one by one?

Expressions are drawn: chains of maps of depth 1 to 40 over tensors of many sizes, which read further tensors, rows,
columns and earlier values, with norms, softmax, reductions and products in between. Each is run as it is and with
`pin(fusion=False)` on all of its operators, in turns in one process on one thread; a line shows the ratio of the least
times, unfused over fused, and the worst stand last. Where the two results differ, nothing is timed. Tensors are large
enough for what pins cost in Python (half a microsecond an operator) not to count.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.jobs.job import deviation
from tessera import Tensor, op

ROWS = (1, 3, 16, 64, 250, 1024, 4096)
COLUMNS = (1, 17, 64, 200, 768, 1000, 4096)
MOST_ELEMENTS = 1 << 22
TOLERANCE = 1e-3
"""Most that the two results may differ by, as a share of the largest value: 40 operators round in another order."""
LOSS = 0.95
"""The ratio below which a case counts as lost: less than that is the spread of a busy machine's minima."""

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": op.relu,
    "tanh": op.tanh,
    "gelu": op.gelu,
    "silu": op.silu,
    "abs": op.abs,
    "neg": op.neg,
}
ROWWISE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": op.softmax,
    "layer_norm": op.layer_norm,
    "rms_norm": op.rms_norm,
    "minus row mean": lambda x: x - op.mean(x, axis=1, keepdims=True),
    "minus column mean": lambda x: x - op.mean(x, axis=0, keepdims=True),
}


@dataclass(frozen=True)
class Expression:
    """An expression over tensors that exist: `build` makes it, with `each` applied to the result of every operator."""

    title: str
    build: Callable[[Callable[[Tensor], Tensor]], Tensor]


def draw(seed: int, least: int = 0, most: int = MOST_ELEMENTS) -> Expression:
    """A random expression over tensors of at least and at most so many elements, the same for the same seed."""
    choice = random.Random(seed)
    shapes = [(rows, columns) for rows in ROWS for columns in COLUMNS]
    rows, columns = choice.choice([(m, n) for m, n in shapes if least <= m * n <= most])
    depth = choice.choice((1, 2, 3, 5, 8, 12, 20, 40))
    names = [choice.choices(("map", "read", "earlier", "row", "product"), (8, 4, 2, 2, 0.5))[0] for _ in range(depth)]
    generator = torch.Generator().manual_seed(seed)
    start = op.tensor(torch.randn(rows, columns, generator=generator))
    steps = [_step(name, (rows, columns), choice, generator) for name in names]
    title = f"{seed}: [{rows}, {columns}] " + " . ".join(label for label, _ in steps)

    def build(each: Callable[[Tensor], Tensor]) -> Tensor:
        values = [start]
        for _, step in steps:
            values.append(each(step(values)))
        return values[-1]

    return Expression(title, build)


Step = Callable[[Sequence[Tensor]], Tensor]
"""What makes the next value of all before it."""


def _step(kind: str, shape: tuple[int, int], choice: random.Random, generator: torch.Generator) -> tuple[str, Step]:
    """A label, and one operator."""
    if kind == "map":
        name = choice.choice(list(MAPS))
        return name, lambda values: MAPS[name](values[-1])
    if kind == "row":
        name = choice.choice(list(ROWWISE))
        return name, lambda values: ROWWISE[name](values[-1])
    if kind == "earlier":
        back = choice.randint(2, 6)
        return f"add -{back}", lambda values: values[-1] + values[max(len(values) - back, 0)]
    if kind == "product":
        weights = op.tensor(torch.randn(shape[1], shape[1], generator=generator) / shape[1])
        return "matmul", lambda values: op.matmul(values[-1], weights)
    sizes = choice.choice((shape, (1, shape[1]), (shape[0], 1)))
    other = op.tensor(torch.randn(*sizes, generator=generator))
    if choice.random() < 0.5:
        return f"mul {list(sizes)}", lambda values: values[-1] * other
    return f"add {list(sizes)}", lambda values: values[-1] + other


def fused(expression: Expression) -> torch.Tensor:
    """The result as fusion computes it."""
    return expression.build(lambda x: x).eval().torch()


def unfused(expression: Expression) -> torch.Tensor:
    """The result with every operator in a kernel of its own."""
    return expression.build(lambda x: x.pin(fusion=False)).eval().torch()


def seconds(call: Callable[[], object]) -> float:
    """CPU seconds of one call in this thread."""
    start = time.thread_time()
    call()
    return time.thread_time() - start


def ratio(expression: Expression, budget_s: float = 0.4) -> tuple[float, float]:
    """(unfused over fused, seconds of the fused one): least times of as many turns as fit into the budget."""
    ways = (partial(fused, expression), partial(unfused, expression))
    for call in ways * 3:
        call()
    least = [math.inf, math.inf]
    spent, turns = 0.0, 0
    while turns < 10 or (spent < budget_s and turns < 2000):
        for place, call in enumerate(ways):
            took = seconds(call)
            least[place] = min(least[place], took)
            spent += took
        turns += 1
    return least[1] / least[0], least[0]


def main(arguments: Sequence[str] | None = None) -> None:
    """Prints a line for each expression, those that lost last, and the geometric mean."""
    parser = argparse.ArgumentParser(prog="python -m bench.probes.fusion_sweep", description=__doc__)
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--least", type=int, default=1 << 13, help="elements that the tensors have at least")
    asked = parser.parse_args(arguments)
    torch.set_num_threads(1)
    found: list[tuple[float, float, str]] = []
    wrong = 0
    for seed in range(asked.seed, asked.seed + asked.cases):
        expression = draw(seed, asked.least)
        off = deviation(fused(expression), unfused(expression))
        if off > TOLERANCE:
            wrong += 1
            print(f"  WRONG  off by {off:.1e} of the largest value  {expression.title}", flush=True)
            continue
        times, took = ratio(expression)
        found.append((times, took, expression.title))
        print(f"{times:7.2f}  {took * 1e6:9.1f} us  {expression.title}", flush=True)
    lost = sorted(each for each in found if each[0] < LOSS)
    mean = f"{statistics.geometric_mean(times for times, _, _ in found):.2f}" if found else "not measured"
    print(f"{len(found)} expressions, geometric mean {mean}, {len(lost)} below {LOSS}, {wrong} wrong")
    for times, took, title in lost:
        print(f"{times:7.2f}  {took * 1e6:9.1f} us  {title}")


if __name__ == "__main__":
    main()
