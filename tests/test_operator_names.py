"""What an operator is stands in its record: rooms beside and above the records name no operator."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import get_args

import pytest

from tessera.ops import OPERATORS
from tessera.ops.emitter import Comparison, Emitter, Reduction
from tests.imports import SOURCE

ROOMS = ("lazy", "scheduling", "backend", "profiling", "runtime", "tuning", "sharding", "compiler")
"""The rooms that records are above or below of, but not `ir`, whose dialect has an operation for each operator."""

FAMILIES = Path("scheduling/families")

SCALAR = {name for name in vars(Emitter) if not name.startswith("_")} | {*get_args(Comparison), *get_args(Reduction)}
"""Operations of tile bodies. Where kernels are written, these are words of Tile IR, LLVM and Triton, not operators."""

OTHER_WORDS: Mapping[str, str] = {
    "backend/cuda_tile/emission/arithmetic.py": "exp2 log2 tan",
    "backend/cuda_tile/emission/emitter.py": "iota reshape",
    "backend/cuda_tile/program/operations.py": "exp2 iota log2 reshape tan",
    "backend/interpreter/interpreted_functions.py": "log10 tan",
    "backend/llvm/tiles/functions.py": "exp2 log2 log10 tan",
    "backend/llvm/vecmath/__init__.py": "exp2",
    "backend/llvm/native/reduction_ir.py": "sum min max",
    "profiling/analyses/compare.py": "log",
    "profiling/analyses/rules.py": "matmul gemm",
    "profiling/analyses/presentation/result.py": "log",
    "scheduling/language/expression.py": "exp2",
    "sharding/chunk_choice.py": "max",
    "sharding/planner/traced.py": "add max min",
    "runtime/cuda/structures.py": "pad",
    "sharding/exchange/collectives.py": "sum min max",
    "sharding/exchange/communicator.py": "sum min max",
    "tuning/model/ridge.py": "spread",
    "tuning/plots.py": "log",
}
"""By file, words that are no operators there: axes of pictures, columns of tables, collectives, fields of records,
functions of MLIR's `math`, LLVM, Triton and CUDA Tile, parts of the names of other libraries' kernels, and what anchors
reduce with.
"""


def _docstrings(tree: ast.AST) -> set[int]:
    places = (ast.Module, ast.FunctionDef, ast.ClassDef)
    bodies = (node.body for node in ast.walk(tree) if isinstance(node, places) and node.body)
    return {id(body[0].value) for body in bodies if isinstance(body[0], ast.Expr)}


def named(source: Path, room: str) -> Iterator[tuple[str, int, str]]:
    """(file, line, operator) for every string in a room of the package that is the name of an operator."""
    for path in sorted((source / "tessera" / room).rglob("*.py")):
        relative = path.relative_to(source / "tessera")
        if relative.is_relative_to(FAMILIES):
            continue
        tree = ast.parse(path.read_text())
        texts = _docstrings(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and id(node) not in texts and node.value in OPERATORS:
                yield relative.as_posix(), node.lineno, str(node.value)


def _allowed(file: str, room: str) -> set[str]:
    words = set(OTHER_WORDS.get(file, "").split())
    return words | SCALAR if room in ("scheduling", "backend") else words


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_name_no_operator(room: str) -> None:
    found = [each for each in named(SOURCE, room) if each[2] not in _allowed(each[0], room)]
    assert [f"{file}:{line}: {name}" for file, line, name in found] == []


def test_no_word_is_listed_that_is_not_there() -> None:
    there = {(file, name) for room in ROOMS for file, _, name in named(SOURCE, room)}
    assert {(file, name) for file, names in OTHER_WORDS.items() for name in names.split()} - there == set()


def test_a_name_is_found(tmp_path: Path) -> None:
    folder = tmp_path / "tessera" / "compiler"
    folder.mkdir(parents=True)
    (folder / "a.py").write_text('"""softmax"""\n\nif operator == "softmax":\n    pass\n')
    assert list(named(tmp_path, "compiler")) == [("compiler/a.py", 3, "softmax")]
