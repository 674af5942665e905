"""The command `tessera`.

A command NAME is the function `NAME` of `tessera.cli.commands.NAME`, for typer, or a `typer.Typer` of subcommands. Its
module is imported only when it is the command that runs, so that `tessera --help` and short commands do not wait for
the libraries of the long ones.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from tessera.errors import TesseraError
from tessera.system import distribution

COMMANDS = {
    "quickstart": "Tune and check four real kernels on this machine, run a real program, write a trace and a picture.",
    "tune": "Find the best schedules of an operator, or of all kernels that a run used, and keep them.",
    "doctor": "Print versions, CPU, threads, caches and GPU, and why what is missing is missing.",
    "opt": "Run passes on a file of IR, and print it or what a backend makes of it.",
    "compile": "Compile an operator, or a kernel of a file, for a GPU that need not be there.",
    "run": "Run a script in several processes, or a compiled kernel that `tessera opt --emit=object` wrote.",
    "cache": "List, show, export, import, merge, compare and tidy the winners that tuning found.",
}
"""Name -> one line of help, in the order of the help page."""


_TYPER = os.path.dirname(typer.__file__) + os.sep


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs a command line (default: that of the process) and ends in SystemExit.

    A `TesseraError` is printed to stderr without a traceback; the exit status is then 1.
    """
    try:
        _application()(args=arguments, prog_name="tessera")
    except TesseraError as error:
        print_error(error)
        raise SystemExit(1) from error


def print_error(error: TesseraError) -> None:
    """Prints an error to stderr, without a place where that is not the user's, and without control characters, which
    names of files may have.
    """
    if error.where and error.where.startswith(_TYPER):
        error.where = None
    print("".join(each if each.isprintable() or each == "\n" else "?" for each in str(error)), file=sys.stderr)


def _application() -> typer.Typer:
    application = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    application.callback(help="Tessera, a tile-centric tensor compiler.")(_options)
    # Each command reads its own options, --help included: nothing of them is known before its module is imported.
    untouched = {"allow_extra_args": True, "ignore_unknown_options": True, "allow_interspersed_args": False}
    for name, meaning in COMMANDS.items():
        register = application.command(name, help=meaning, add_help_option=False, context_settings=untouched)
        register(_deferred(name))
    return application


def print_version(wanted: bool) -> None:
    """Prints the version and ends, for an option of that name."""
    if wanted:
        print(f"tessera {distribution.VERSION}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and end.", callback=print_version, is_eager=True)
    ] = False,
) -> None:
    """Declares the options that stand before a command; `--version` acts by its callback."""


def _alone(command: Callable[..., Any]) -> typer.Typer:
    application = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    application.command()(command)
    return application


def _deferred(name: str) -> Callable[[typer.Context], None]:
    def run(context: typer.Context) -> None:
        command: Callable[..., Any] | typer.Typer = getattr(
            importlib.import_module(f"tessera.cli.commands.{name}"), name
        )
        application = command if isinstance(command, typer.Typer) else _alone(command)
        application(args=context.args, prog_name=f"tessera {name}")

    return run
