"""The command `tessera-prof`: profiles a process from outside or a program that it runs, and reads what was recorded.

A command NAME is a function of the module that stands beside it in `COMMANDS`, imported only when it runs.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from tessera.cli.main import print_error, print_version
from tessera.errors import ArgumentError, TesseraError

COMMANDS = {
    "report": ("report", "Print what ran, operator by operator."),
    "roofline": ("report", "Hold kernels against what the hardware can do."),
    "stalls": ("report", "Print where kernels wait for memory."),
    "memory": ("report", "Print what memory moved, level by level, and copies."),
    "collectives": ("report", "Print how long collectives take, and what hides them."),
    "power": ("report", "Print power, energy and throttling by device."),
    "divergence": ("report", "Print the kernels whose branches diverge."),
    "advise": ("report", "Print what to do about what is slow, with the evidence."),
    "compare": ("report", "Print what got slower from one trace to another."),
    "view": ("view", "Show traces in a browser: timeline, kernels, roofline, two runs side by side."),
    "html": ("html", "Write a trace as a report in one file, for any browser."),
    "top": ("top", "Watch what a process runs."),
}
"""Name -> module of `tessera.cli.profiling`, and one line of help."""

_EXAMPLES = """Profile a process from outside, or a program that this command runs.

tessera-prof --pid 12345 --duration 10 --export trace.json --summary perf.csv

tessera-prof --export trace.parquet -- python train.py --lr 0.1

Without --gpu, --mem, --tc and --collectives all that can be had is recorded. \
Without --export and --summary a report is printed.
"""


class _Commands(typer.core.TyperGroup):
    """The commands; what is none of them is a program that lacks its `--`."""

    def resolve_command(self, context: Any, args: list[str]) -> Any:
        """The command that is named first. Raises ArgumentError for a name that there is not."""
        if args and args[0] not in self.commands:
            raise ArgumentError(
                f"there is no command {args[0]!r}",
                hints=[f"a program stands behind --: tessera-prof -- {shlex.join(args)}", "tessera-prof --help"],
            )
        return super().resolve_command(context, args)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line (default: that of the process) and ends in SystemExit.

    A `TesseraError` is printed to stderr without a traceback; the exit status is then 1. What stands after `--` is the
    program to run, whose exit status is passed on.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    split = words.index("--") if "--" in words else len(words)
    try:
        _application()(args=words[:split], prog_name="tessera-prof", obj=words[split + 1 :])
    except TesseraError as error:
        print_error(error)
        raise SystemExit(1) from error


def _application() -> typer.Typer:
    application = typer.Typer(cls=_Commands, pretty_exceptions_enable=False)
    application.callback(help=_EXAMPLES, invoke_without_command=True)(record)
    untouched = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    for name, (module, meaning) in COMMANDS.items():
        register = application.command(name, help=meaning, add_help_option=False, context_settings=untouched)
        register(_deferred(name, module))
    return application


def _deferred(name: str, module: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        command: Callable[..., Any] = getattr(importlib.import_module(f"tessera.cli.profiling.{module}"), name)
        application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        application.command()(command)
        application(args=context.args, prog_name=f"tessera-prof {name}")

    return run


def record(
    context: typer.Context,
    pid: Annotated[int | None, typer.Option(help="The process to profile; one of your own.")] = None,
    duration: Annotated[
        float | None,
        typer.Option(help="Seconds, of a program from its first kernel on; else until Ctrl-C or its end."),
    ] = None,
    sample_ms: Annotated[float, typer.Option(help="Milliseconds between samples of counters and sensors.")] = 10.0,
    gpu: Annotated[bool, typer.Option("--gpu", help="Kernels, counters and power of GPUs.")] = False,
    mem: Annotated[bool, typer.Option("--mem", help="Copies, and counters of memory.")] = False,
    tc: Annotated[bool, typer.Option("--tc", help="Use of tensor cores.")] = False,
    collectives: Annotated[bool, typer.Option("--collectives", help="Collectives.")] = False,
    shapes: Annotated[bool, typer.Option("--shapes", help="The shapes of operands.")] = False,
    stacks: Annotated[bool, typer.Option("--stacks", help="Python stacks, through py-spy.")] = False,
    replay: Annotated[
        bool, typer.Option("--replay", help="Every counter of every GPU kernel, by repeating it; only of a program.")
    ] = False,
    export: Annotated[
        list[Path] | None,
        typer.Option(
            help="Where to write all events; the name's ending is the format: .json (Perfetto), .parquet, ..."
        ),
    ] = None,
    summary: Annotated[Path | None, typer.Option(help="Where to write one line of CSV per operator.")] = None,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Profiles a process, or the program that stands after `--`."""
    command: list[str] = context.obj
    if context.invoked_subcommand is not None:
        return
    from tessera.cli.profiling import record as prof_record
    from tessera.cli.profiling.record import Order

    if (pid is None) == (not command):
        raise ArgumentError(
            "what to profile is not said" if pid is None else "--pid and a program are two ways to say what to profile",
            hints=[
                "tessera-prof --pid 12345 --export trace.json",
                "tessera-prof --export trace.json -- python train.py",
            ],
        )
    if replay and pid is not None:
        raise ArgumentError(
            "--replay repeats every kernel, which a process at work cannot bear",
            hints=["tessera-prof --replay -- python train.py"],
        )
    domains = {"gpu": gpu, "mem": mem, "tc": tc, "collectives": collectives}
    order = Order(
        domains=tuple(name for name, asked in domains.items() if asked),
        sample_ms=sample_ms,
        shapes=shapes,
        stacks=stacks,
        exports=tuple(export or ()),
        summary=summary,
        duration_s=duration,
        replay=replay,
    )
    order.check()
    status = prof_record.run(command, order) if pid is None else prof_record.attach(pid, order)
    raise typer.Exit(status)
