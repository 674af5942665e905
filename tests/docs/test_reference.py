"""What `help(op.NAME)` says of every operator holds: its dtypes, its example, and that it says shapes at all."""

from __future__ import annotations

import doctest
import inspect
import re

import pytest

from tessera import op
from tessera.errors import TesseraError
from tools.site import dtypes, operators

DECORATORS = {"kernel", "autotune"}
"""Names of `op` that make kernels of functions."""

THEMES = operators.by_theme()
NAMES = sorted(set(op.__all__) - DECORATORS)


def doc_of(name: str) -> str:
    """An operator's docstring."""
    return inspect.getdoc(getattr(op, name)) or ""


def codes(kind: type[TesseraError] = TesseraError) -> set[str]:
    """The codes of all errors."""
    return {kind.code}.union(*(codes(each) for each in kind.__subclasses__()))


def test_every_operator_says_its_shapes_and_has_an_example() -> None:
    assert [name for name in NAMES if "Shapes: " not in doc_of(name) or ">>> " not in doc_of(name)] == []


def test_every_operator_says_what_it_takes() -> None:
    said = {name: re.search(r"Dtypes: ([^.]*)\.", doc_of(name).replace("\n", " ")) for name in NAMES}
    wrong = {
        name: f"Dtypes: {dtypes.line(name)}."
        for name, found in said.items()
        if name not in dtypes.UNTYPED and (found is None or found[1] != dtypes.line(name))
    }
    assert wrong == {}, "what stands here belongs into the docstrings"


def test_the_codes_that_operators_name_are_there() -> None:
    named = {code for name in NAMES for code in re.findall(r"\bE_[A-Z_]+\b", doc_of(name))}
    assert len(named) > 5
    assert named <= codes()


@pytest.mark.parametrize("theme", THEMES, ids=lambda module: operators.title(module)[:30])
def test_the_examples_of_a_theme_give_what_they_say(theme: object) -> None:
    runner = doctest.DocTestRunner(verbose=False)
    parser = doctest.DocTestParser()
    shown: list[str] = []
    for name in THEMES[theme]:  # type: ignore[index]
        test = parser.get_doctest(doc_of(name), {"op": op}, f"op.{name}", None, 0)
        runner.run(test, out=shown.append)
    assert runner.failures == 0, "".join(shown)
    assert runner.tries > 0 or set(THEMES[theme]) <= DECORATORS  # type: ignore[index]


def test_the_reference_has_every_operator_once() -> None:
    pages = operators.pages()
    headings = [heading for page in pages.values() for heading in re.findall(r"^## (\w+)$", page, re.MULTILINE)]
    assert sorted(headings) == sorted(op.__all__)
    assert "op.matmul(\n    a: ArrayLike,\n    b: ArrayLike,\n    *,\n" in pages["products.md"]
