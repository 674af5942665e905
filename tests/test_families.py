"""What is particular to a family stands in its folder, or in its value: nobody elsewhere asks which family it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.imports import SOURCE


def is_family(node: ast.expr) -> bool:
    """Whether an expression is the name of a family: a variable, an attribute, or a call that gives one."""
    if isinstance(node, ast.Call):
        return is_family(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr in ("family", "family_of") or (node.attr == "data" and is_family(node.value))
    return isinstance(node, ast.Name) and node.id in ("family", "family_of")


def is_fixed(node: ast.expr) -> bool:
    """Whether an expression is text, several, or a constant that holds such."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set):
        return all(is_fixed(each.value if isinstance(each, ast.Starred) else each) for each in node.elts)
    if isinstance(node, ast.Name):
        return node.id.isupper()
    return isinstance(node, ast.Constant) and isinstance(node.value, str)


def is_question(node: ast.AST) -> bool:
    """Whether code asks which family something is of: by name, or by the class of a specification or problem."""
    if isinstance(node, ast.Compare):
        sides = [node.left, *node.comparators]
        return any(map(is_family, sides)) and any(map(is_fixed, sides))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
        names = [each.id for each in ast.walk(node.args[1]) if isinstance(each, ast.Name)]
        return any(name.endswith(("Spec", "Problem")) and name not in NOT_OF_FAMILIES for name in names)
    return False


NOT_OF_FAMILIES = {"OperandSpec", "ShardSpec", "TuningProblem"}


def questions(source: Path) -> Iterator[str]:
    """The file of each such question outside of the folders of families."""
    room = source / "tessera"
    for path in sorted(room.rglob("*.py")):
        relative = path.relative_to(room)
        if relative.parts[:2] == ("scheduling", "families") and len(relative.parts) > 3:
            continue
        text = path.read_text()
        if any(word in text for word in ("family", "Spec", "Problem")):  # without, there is no question to parse for
            yield from [relative.as_posix()] * sum(map(is_question, ast.walk(ast.parse(text))))


def test_nobody_outside_of_a_family_asks_which_one_it_is() -> None:
    assert list(questions(SOURCE)) == []


@pytest.mark.parametrize(
    "code",
    [
        'item.family == "row"',
        'family not in ("row", "column")',
        "family_of(op.operator) in PRODUCTS",
        'kernel.family.data != "window"',
        "isinstance(spec, ContractionSpec)",
        "isinstance(problem, AttentionProblem | RowsProblem)",
    ],
)
def test_a_question_is_found(tmp_path: Path, code: str) -> None:
    for place in ("compiler", "scheduling/families", "scheduling/families/rows"):
        (tmp_path / "tessera" / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / "tessera" / place / "asking.py").write_text(f"found = {code}\n")
    assert list(questions(tmp_path)) == ["compiler/asking.py", "scheduling/families/asking.py"]


@pytest.mark.parametrize("code", ["item.family == family", "families == ()", "isinstance(space, Space)"])
def test_what_is_no_question_is_not_found(tmp_path: Path, code: str) -> None:
    (tmp_path / "tessera").mkdir()
    (tmp_path / "tessera" / "asking.py").write_text(f"found = {code}\n")
    assert list(questions(tmp_path)) == []
