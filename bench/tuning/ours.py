"""Tessera in the live contest: ``python -m bench.tuning.ours`` serves requests, its caches being empty."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from bench.tuning.contest_problems import Problem
from bench.tuning.contestant import Contestant, Tuned
from bench.worker import answering, serve
from tessera import autotune, op

if TYPE_CHECKING:
    from bench.tuning.contest_problems import Floats

BUDGET_S = 600.0
"""No limit that would end a search before its trials are made."""


def operator(problem: Problem) -> Callable[..., Any]:
    """What `autotune` is asked to tune, and what is called afterwards."""
    if problem.operation == "matmul":
        return op.matmul
    if problem.operation == "softmax":
        return op.softmax
    reach = problem.shape[-1] // 2

    def depthwise(image: Any, window: Any) -> Any:
        return op.depthwise_conv2d(image, window, padding=reach)

    return depthwise


class TesseraTuner:
    """`autotune(..., method="on_device")`."""

    def tune(self, problem: Problem, operands: Sequence[Floats], trials: int) -> Tuned:
        """Tunes, and compiles the winner as a first call does."""
        apply = operator(problem)
        config = autotune(apply, list(problem.operand_shapes), method="on_device", max_trials=trials, budget_s=BUDGET_S)
        tensors = [torch.from_numpy(operand) for operand in operands]
        out = torch.full(problem.result_shape, float("nan"))

        def call() -> object:
            return apply(*tensors).eval(out)

        def result() -> Floats:
            found: Floats = out.numpy()
            return found

        call()
        return Tuned(len(config.trials), str(config.schedule), call, result)


def main() -> None:
    """Serves until there are no more requests."""
    with answering() as (requests, answers):
        torch.set_grad_enabled(False)
        serve(Contestant(TesseraTuner()), requests, answers)


if __name__ == "__main__":
    main()
