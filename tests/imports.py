"""The imports of tessera's modules, those inside functions and under `TYPE_CHECKING` included."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src"


@cache
def _statements(text: str) -> tuple[ast.Import | ast.ImportFrom, ...]:
    """The import statements of a file's text. Several tests ask for those of all files."""
    found: list[ast.Import | ast.ImportFrom] = []
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        # Statements within statements: expressions, which are most of a tree, import nothing.
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            inner = getattr(node, name, ())
            nodes += inner if isinstance(inner, list) else ()
    return tuple(sorted(found, key=lambda node: node.lineno))


def imported(
    text: str, module: str, is_package: bool, is_module: Callable[[str], bool] = lambda name: False
) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import in a module of this text. `is_module` tells which names that are imported
    from a package are modules themselves.
    """
    for node in _statements(text):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                keep = len(parts) - node.level + is_package
                base = ".".join([*parts[:keep], *([base] if base else [])])
            # In `from tessera import x`, x is what is imported; elsewhere the module is enough.
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield node.lineno, name if base == "tessera" or is_module(name) else base


def module_of(source: Path, path: Path) -> str:
    """The dotted name of a file below a folder of sources; that of a package is its folder's."""
    return ".".join(path.relative_to(source).with_suffix("").parts).removesuffix(".__init__")


def modules(source: Path, room: str = "") -> Iterator[tuple[Path, int, str]]:
    """(file, line, dotted name) of every import of tessera in a room of the package in a folder, by default in all."""

    def is_module(name: str) -> bool:
        place = source.joinpath(*name.split("."))
        return place.with_suffix(".py").exists() or place.is_dir()

    place = source / "tessera" / room
    for path in [place] if place.is_file() else sorted(place.rglob("*.py")):
        for line, name in imported(path.read_text(), module_of(source, path), path.name == "__init__.py", is_module):
            if name.split(".")[0] == "tessera":
                yield path.relative_to(source), line, name
