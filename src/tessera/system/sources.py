"""The package's own sources and modules, wherever they lie: in a folder, or in an archive that Python imports from."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from importlib.resources import files
from importlib.resources.abc import Traversable
from types import ModuleType


def resource(name: str) -> Traversable:
    """A file or folder of the package, "backend/llvm" for one."""
    return files("tessera").joinpath(*name.split("/"))


def python_sources(room: str) -> Iterator[tuple[str, bytes]]:
    """(name, content) of every Python file at or below a file or folder of the package, in the order of the names."""
    yield from sorted(_below(resource(room), room))


def members(package: ModuleType, folders: bool = False) -> Iterator[ModuleType]:
    """The modules beside each other in a package, imported, in the order of their names; of `folders` those alone that
    are packages themselves. So what is added to a folder is found without a table.
    """
    found = pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
    for name in sorted(module.name for module in found if module.ispkg or not folders):
        yield importlib.import_module(name)


def _below(found: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    if name.endswith(".py"):
        yield name, found.read_bytes()
    elif found.is_dir():
        for each in found.iterdir():
            yield from _below(each, f"{name}/{each.name}")
