"""The package's public face: `__all__` of `tessera` and of its doors holds what docs/api.md documents, and no more.

`pytest tests/test_exports.py --update-goldens` rewrites docs/api.md after a name was added.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import re
import sys
import types
import typing
from collections.abc import Mapping
from pathlib import Path

import pytest

from tessera import dtypes
from tests.imports import SOURCE
from tests.test_layers import LAYERS

PAGE = SOURCE.parent / "docs" / "api.md"

HEADING = """# The public names

What users import, module by module; everything else may change without notice. This page is made from the docstrings
(`pytest tests/test_exports.py --update-goldens`), and a test keeps the two equal.
"""


def doors() -> list[str]:
    """The package and those of its top-level modules that users import."""
    rooms = {room for layer in LAYERS for room in layer}
    modules = sorted(path.stem for path in (SOURCE / "tessera").glob("*.py") if not path.stem.startswith("__"))
    return ["tessera", *(f"tessera.{name}" for name in modules if name not in rooms)]


def summary(name: str, value: object) -> str:
    """The first sentence of what is said of a name, for a cell of a table; for a plain value, what it is."""
    if typing.get_origin(value) is typing.Literal:
        return f"one of {', '.join(f'`{choice!r}`' for choice in typing.get_args(value))}"
    if isinstance(value, dtypes.DType):
        return f"the dtype {value}"
    documented = isinstance(value, types.ModuleType | type) or inspect.isroutine(value)
    if documented or (callable(value) and type(value).__module__.startswith("tessera.")):
        text = inspect.getdoc(value) or ""
    else:
        text = said_of(name, value) or f"`{value!r}`"
    return text.split("\n\n", 1)[0].replace("\n", " ").split(". ", 1)[0].rstrip(".:").replace("|", "\\|")


def said_of(name: str, value: object) -> str:
    """The text that stands below the assignment of a module's name; empty where there is none."""
    homes = [each for path, each in sorted(sys.modules.items()) if path.startswith("tessera")]
    for module in homes:
        if vars(module).get(name) is not value:
            continue
        body = ast.parse(Path(module.__file__ or "").read_text()).body
        for node, following in itertools.pairwise(body):
            target = getattr(node, "target", None) or getattr(node, "targets", [None])[0]
            if isinstance(target, ast.Name) and target.id == name and isinstance(following, ast.Expr):
                return inspect.cleandoc(ast.literal_eval(following.value))
    return ""


def page() -> str:
    """docs/api.md as the package's docstrings say it."""
    sections = []
    for door in doors():
        module = importlib.import_module(door)
        names = (
            f"| `{name}` | {summary(name, getattr(module, name))} |" for name in sorted(module.__all__, key=str.lower)
        )
        sections.append(
            "\n".join([f"## {door}", "", f"{summary(door, module)}.", "", "| name | |", "| --- | --- |", *names])
        )
    return "\n\n".join([HEADING.rstrip(), *sections]) + "\n"


@pytest.mark.parametrize("door", doors())
def test_a_door_exports_names_that_exist_once(door: str) -> None:
    module = importlib.import_module(door)
    exported = list(module.__all__)
    assert len(exported) == len(set(exported))
    assert [name for name in exported if not hasattr(module, name)] == []


@pytest.mark.parametrize("door", doors())
def test_a_door_defines_no_public_name_beyond_its_exports(door: str) -> None:
    module = importlib.import_module(door)
    defined = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == door
    }
    assert defined - set(module.__all__) == set()


def test_exports_are_the_documented_names(request: pytest.FixtureRequest) -> None:
    if request.config.getoption("--update-goldens"):
        PAGE.write_text(page())
    assert page() == PAGE.read_text(), "docs/api.md is out of date: run pytest tests/test_exports.py --update-goldens"


def deprecated() -> dict[str, str]:
    """The public names that are going, with what is said of them."""
    names = ((door, name) for door in doors() for name in importlib.import_module(door).__all__)
    values = {f"{door}.{name}": getattr(importlib.import_module(door), name) for door, name in names}
    return {name: value.__deprecated__ for name, value in values.items() if hasattr(value, "__deprecated__")}


def unannounced(going: Mapping[str, str], changes: str) -> list[str]:
    """The names of which nobody says when they go and what to write instead, or that the list of changes lacks."""
    said = re.compile(r"goes in \d+\.\d+.*: write ")
    return [name for name, message in going.items() if not said.search(message) or f"`{name}`" not in changes]


def test_what_goes_is_announced() -> None:
    changes = (SOURCE.parent / "CHANGELOG.md").read_text()
    assert unannounced(deprecated(), changes) == []
    going = {"tessera.op.old": "goes in 0.3: write op.new", "tessera.op.older": "do not use it"}
    assert unannounced(going, "- `tessera.op.old`, `tessera.op.older`") == ["tessera.op.older"]
    assert unannounced(going, "") == list(going)
