"""Layers import downwards only, and `import tessera` loads no heavy library (CONTRIBUTING.md)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Set
from pathlib import Path

import pytest

from tests.imports import SOURCE, imported, module_of, modules

LAYERS = (
    ("errors",),
    ("dtypes", "settings", "system", "target"),
    ("lazy", "ir"),
    ("ops",),
    ("rewrite",),
    ("scheduling",),
    ("backend",),
    ("profiling", "viewer"),
    ("runtime",),
    ("tuning",),
    ("sharding",),
    ("compiler",),
    ("handle", "methods"),
)
"""Lowest first. All other modules are doors: they stand above these, and `cli` above all. Beside the doors
stand `integrations`, which are written with them.
"""

HEAVY = ("xdsl", "llvmlite", "polars", "rich", "typer", "matplotlib")


def level(room: str) -> int:
    """The height of a top-level module or package of tessera."""
    if room == "cli":
        return len(LAYERS) + 1
    return next((height for height, rooms in enumerate(LAYERS) if room in rooms), len(LAYERS))


def room_of(module: str) -> str:
    """The top-level name below tessera: that of `tessera.ir.tile` is `ir`.

    The package itself and `__main__` may import all, as the command line may.
    """
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[1] not in ("__init__", "__main__") else "cli"


def violations(source: Path) -> list[str]:
    """Every import that goes upwards in the package `tessera` of a folder, as "file:line: what imports what"."""
    found = []
    for path in sorted((source / "tessera").rglob("*.py")):
        relative = path.relative_to(source)
        module = module_of(source, path)
        here = room_of(module)
        for line, name in imported(path.read_text(), module, path.name == "__init__.py"):
            there = room_of(name)
            if name.split(".")[0] == "tessera" and here != "cli" and level(there) > level(here):
                found.append(f"{relative}:{line}: {here} imports {there}, which stands above it")
    return found


def test_imports_go_downwards() -> None:
    assert violations(SOURCE) == []


BELOW_BACKENDS = {"ir", "target", "errors", "dtypes", "settings", "system"}


def test_backends_know_tile_ir_and_targets_alone() -> None:
    assert [
        f"{path}:{line}: {name}"
        for path, line, name in modules(SOURCE, "backend")
        if room_of(name) not in BELOW_BACKENDS | {"backend"}
    ] == []


CONTRACT = {"contract", "registry"}
LAYOUT = {"tile_times"}
"""The layout of what timed kernels write, which those who read it need."""
NATIVE = {
    "llvm.machine_code.library",
    "llvm.machine_code.loading",
    "llvm.machine_code.openmp",
    "llvm.native.calls_ir",
    "llvm.native.crowd_ir",
    "llvm.native.driver_ir",
    "llvm.native.exchange_ir",
    "llvm.native.polling_ir",
    "llvm.native.reduction_ir",
    "llvm.native.spectral_ir",
}
"""The runtime's own native code, which is text for LLVM and no kernel of Tile IR."""
KNOWN: Mapping[str, Set[str]] = {
    "runtime": CONTRACT | LAYOUT | NATIVE | {"interpreter.interpreted"},
    "profiling": CONTRACT | LAYOUT | NATIVE | {"llvm.ceilings"},
    "tuning": CONTRACT,
    "sharding": CONTRACT | NATIVE,
    "compiler": CONTRACT,
    "handle.py": CONTRACT,
    "integrations": CONTRACT,
    "cli": CONTRACT | {"triton.ceilings", "llvm.machine_code.engine"},
}
"""What each room above backends knows of them: ceilings are measured by those who were asked to, `doctor` looks at LLVM
itself, and the driver of "interpreter" is the interpreter.
"""


@pytest.mark.parametrize("room", KNOWN)
def test_backends_are_known_by_their_contract(room: str) -> None:
    prefix = "tessera.backend."
    assert [
        f"{path}:{line}: {name}"
        for path, line, name in modules(SOURCE, room)
        if room_of(name) == "backend" and name.removeprefix(prefix) not in KNOWN[room]
    ] == []


def test_what_backends_share_names_none_of_them() -> None:
    folder = SOURCE / "tessera" / "backend"
    backends = {f"tessera.backend.{path.parent.name}" for path in folder.glob("*/__init__.py")}
    assert {"tessera.backend.llvm", "tessera.backend.triton"} <= backends
    shared = [(path, name) for path, _, name in modules(SOURCE, "backend") if SOURCE / path.parent == folder]
    assert [(path, name) for path, name in shared if ".".join(name.split(".")[:3]) in backends] == []


@pytest.mark.parametrize(
    "statement",
    [
        "from tessera.compiler import pipeline",
        "from tessera import compiler",
        "import tessera.compiler.pipeline as p",
        "from ..compiler import pipeline",
        "from .. import compiler",
        "def late():\n    from tessera.op import matmul",
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, statement: str) -> None:
    package = tmp_path / "tessera" / "lazy"
    package.mkdir(parents=True)
    (package / "node.py").write_text(f"from tessera import dtypes\n{statement}\n")

    (found,) = violations(tmp_path)

    line = 3 if statement.startswith("def") else 2
    room = "op" if "tessera.op" in statement else "compiler"
    assert found == f"tessera/lazy/node.py:{line}: lazy imports {room}, which stands above it"


@pytest.mark.parametrize(
    "statement",
    ["from tessera.errors import IRError", "from . import leaf", "import torch", "from tessera.ir import tile"],
)
def test_a_downward_import_is_none(tmp_path: Path, statement: str) -> None:
    package = tmp_path / "tessera" / "lazy"
    package.mkdir(parents=True)
    (package / "node.py").write_text(statement)

    assert violations(tmp_path) == []


def loaded_by(program: str) -> set[str]:
    """The modules that a program has loaded when it ends."""
    program = f"{program}; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=SOURCE)
    return set(done.stdout.splitlines()[-1].split())


def test_importing_tessera_loads_no_heavy_library() -> None:
    loaded = loaded_by("from tessera import *") - loaded_by("import torch")  # what torch loads is none of our doing
    assert "tessera.compiler.entry" in loaded
    assert loaded & set(HEAVY) == set()


@pytest.mark.parametrize(
    "module",
    ["tessera", "tessera.cli.prof", "tessera.cli.profiling.report", "tessera.cli.profiling.view", "tessera.analyze"],
)
def test_what_reads_traces_loads_neither_torch_nor_llvm(module: str) -> None:
    loaded = loaded_by(f"import {module}")
    assert module in loaded
    assert loaded & {"torch", "llvmlite", "xdsl"} == set()
