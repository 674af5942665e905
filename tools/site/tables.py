"""Pages of tables that the package itself says: environment variables, and commands with their options."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

import typer

from tessera import settings
from tessera.cli import main, prof
from tools.site.operators import escaped

VARIABLES = """# Environment variables

All of them, with what they are when they are not set. They are read once, when the process begins to use Tessera.

| variable | meaning | default |
| --- | --- | --- |
{rows}
"""

COMMANDS = """# Commands

`tessera` has a command for each task, `tessera-prof` profiles. Each says the same with `--help`.

{commands}
"""


def pages() -> Mapping[str, str]:
    """The pages by name."""
    return {"environment.md": environment(), "commands.md": commands()}


def environment() -> str:
    """The page of environment variables."""
    known = settings.Settings().variables()
    rows = (f"| `{name}` | {escaped(meaning)} | {_shown(value)} |" for name, value, meaning in known)
    return VARIABLES.format(rows="\n".join(rows))


def _shown(value: object) -> str:
    return "" if value is None else f"`{value}`"


def commands() -> str:
    """The page of commands and their options."""
    found: dict[str, Any] = {}
    for name in main.COMMANDS:
        command = getattr(importlib.import_module(f"tessera.cli.commands.{name}"), name)
        application = command if isinstance(command, typer.Typer) else _alone(command)
        made: Any = typer.main.get_command(application)
        subcommands = getattr(made, "commands", {})
        found |= {f"tessera {name} {each}": sub for each, sub in subcommands.items()} or {f"tessera {name}": made}
    found["tessera-prof"] = typer.main.get_command(_alone(prof.record))
    for name, (module, _) in prof.COMMANDS.items():
        command = getattr(importlib.import_module(f"tessera.cli.profiling.{module}"), name)
        found[f"tessera-prof {name}"] = typer.main.get_command(_alone(command))
    return COMMANDS.format(commands="\n\n".join(_command(name, command) for name, command in found.items()))


def _alone(command: Any) -> typer.Typer:
    application = typer.Typer(add_completion=False)
    application.command()(command)
    return application


def _command(name: str, command: Any) -> str:
    about = escaped((command.help or "").split("\n\n")[0].replace("\n", " "))
    rows = [_option(each) for each in command.params if getattr(each, "help", None)]
    table = ["| argument or option | meaning |", "| --- | --- |", *rows] if rows else []
    return "\n\n".join([f"## {name}", about, *(["\n".join(table)] if table else [])])


def _option(option: Any) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    return f"| {names} | {escaped(option.help.replace(chr(10), ' '))} |"
