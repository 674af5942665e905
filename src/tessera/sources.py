"""The package's own sources, wherever they lie: in a folder, or in an archive that Python imports from."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable


def resource(name: str) -> Traversable:
    """A file or folder of the package, "backend/llvm" for one."""
    return files("tessera").joinpath(*name.split("/"))


def python_sources(room: str) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every Python file at or below a file or folder of the package, in the order of the names."""
    yield from sorted(_below(resource(room), room))


def _below(found: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".py"):
        yield name, found.read_bytes()
    elif found.is_dir():
        for each in found.iterdir():
            yield from _below(each, f"{name}/{each.name}")
