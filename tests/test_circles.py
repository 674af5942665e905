"""No two files need each other, however late they import: a circle is one file in several, and hides who owns what."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from pathlib import Path

import pytest

from tests.imports import SOURCE, module_of, modules


def graph(source: Path) -> dict[str, set[str]]:
    """By module of the package in a folder, the others that it imports."""
    found: dict[str, set[str]] = {module_of(source, path): set() for path in (source / "tessera").rglob("*.py")}
    for path, _, name in modules(source):
        found[module_of(source, source / path)] |= {name} & found.keys()
    return found


def circles(needs: Mapping[str, Set[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one module (Tarjan, "Depth-first search and linear graph
    algorithms", 1972), and the modules that import themselves.
    """
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found = {frozenset({module}) for module, others in needs.items() if module in others}

    def visit(module: str) -> None:
        number[module] = lowest[module] = len(number)
        stack.append(module)
        for other in needs[module]:
            if other not in number:
                visit(other)
                lowest[module] = min(lowest[module], lowest[other])
            elif other in stack:
                lowest[module] = min(lowest[module], number[other])
        if lowest[module] == number[module]:
            place = stack.index(module)
            if len(stack) - place > 1:
                found.add(frozenset(stack[place:]))
            del stack[place:]

    for module in needs:
        if module not in number:
            visit(module)
    return found


def looked_up(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that a file looks up in `sys.modules`, in whatever way."""
    for node in ast.walk(tree):
        parts: Iterable[ast.expr] = ()
        if isinstance(node, ast.Subscript):
            parts = (node.value, node.slice)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            parts = (node.func.value, *node.args)
        elif isinstance(node, ast.Compare):
            parts = (*node.comparators, node.left)
        if any(ast.unparse(part) == "sys.modules" for part in parts):
            texts = [part.value for part in parts if isinstance(part, ast.Constant)]
            yield from (str(text) for text in texts if str(text).split(".")[0] == "tessera")


def all_looked_up(source: Path) -> list[str]:
    """ "file: module" for each in the package in a folder."""
    texts = {path.relative_to(source): path.read_text() for path in sorted((source / "tessera").rglob("*.py"))}
    return [
        f"{path}: {name}" for path, text in texts.items() if "modules" in text for name in looked_up(ast.parse(text))
    ]


def test_no_files_need_each_other() -> None:
    assert circles(graph(SOURCE)) == set()


def test_no_module_of_ours_is_looked_up_among_those_loaded() -> None:
    assert all_looked_up(SOURCE) == []


@pytest.mark.parametrize(
    "statement",
    [
        "from tessera.lazy import structure",
        "from tessera.lazy.structure import Structure",
        "import tessera.lazy.structure as structures",
        "from . import structure",
        "from .structure import Structure",
        "def late():\n    from tessera.lazy.structure import Structure",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from tessera.lazy.structure import Structure",
    ],
)
def test_a_circle_is_found(tmp_path: Path, statement: str) -> None:
    package = tmp_path / "tessera" / "lazy"
    package.mkdir(parents=True)
    (package / "leaf.py").write_text("from tessera import dtypes")
    (package / "node.py").write_text("from tessera.lazy.leaf import Leaf")
    (package / "structure.py").write_text("from tessera.lazy.node import Node")
    assert circles(graph(tmp_path)) == set()

    (package / "leaf.py").write_text(statement)

    found = {"tessera.lazy.leaf", "tessera.lazy.node", "tessera.lazy.structure"}
    assert circles(graph(tmp_path)) == {frozenset(found)}


@pytest.mark.parametrize(
    "expression",
    ['sys.modules.get("tessera.op")', 'sys.modules["tessera.op"]', '"tessera.op" in sys.modules'],
)
def test_a_look_up_of_a_module_of_ours_is_found(expression: str) -> None:
    assert list(looked_up(ast.parse(f"def late():\n    return {expression}"))) == ["tessera.op"]
    assert list(looked_up(ast.parse(expression.replace("tessera.op", "asyncio")))) == []
