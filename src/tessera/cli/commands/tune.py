"""`tessera tune`: finds the best schedules of an operator, or of all kernels that a run used, and keeps them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def tune(
    operator: Annotated[
        list[str] | None,
        typer.Argument(help="An operator of tessera.op: matmul, softmax, ... With --model, what the script is given."),
    ] = None,
    shape: Annotated[
        list[str] | None,
        typer.Option(
            "--shape", "-s", help="M,N,K for matmul; else an operand's shape, once per operand: --shape 4096,4096"
        ),
    ] = None,
    dtype: Annotated[str, typer.Option(help="The dtype of the operands.")] = "fp32",
    target: Annotated[
        str | None,
        typer.Option(help="A device (cpu, cuda:0); for --method model also an absent GPU (H200)."),
    ] = None,
    trials: Annotated[int | None, typer.Option(help="Most candidates to measure, of each kernel.")] = None,
    budget: Annotated[
        float | None, typer.Option(help="Most seconds to spend, on all kernels together; else TESSERA_TUNE_BUDGET.")
    ] = None,
    method: Annotated[str, typer.Option(help="on_device measures, model asks the cost model.")] = "on_device",
    cost_model: Annotated[str | None, typer.Option(help="What predicts: roofline, hardware or learned.")] = None,
    strategy: Annotated[str, typer.Option(help="What proposes: guided, ranking, random or optuna.")] = "guided",
    from_trace: Annotated[
        Path | None, typer.Option(help="Tune what ran in a trace that profiler.timeline wrote, hottest first.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(help="Run a Python script, and tune the kernels that it used, hottest first.")
    ] = None,
    cold: Annotated[
        bool, typer.Option("--cold", help="Time calls that find their operands in memory, not in caches.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Tune although a winner is known.")] = False,
    plot: Annotated[
        bool, typer.Option("--plot", help="Draw the best so far by trials, and predicted against measured times.")
    ] = False,
    picture: Annotated[Path, typer.Option(help="Where --plot draws.")] = Path("tuning.png"),
) -> None:
    """Find the best schedules of an operator, or of all kernels that a run used, and keep them in the tuning cache.

    `q` or Ctrl-C ends the search; what was found by then is kept. Under torchrun the ranks share the candidates.
    """
    from tessera import settings
    from tessera.cli.tune_kernels import Asked, How, run  # which loads torch: --help does not wait for it

    seconds = settings.current().tune_budget_s if budget is None else budget
    asked = Asked(operator or [], shape or [], dtype, target, from_trace, model)
    run(asked, How(method, trials, seconds, cost_model, strategy, cold, force), picture if plot else None)
