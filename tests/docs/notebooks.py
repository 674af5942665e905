"""The cells of a notebook, and running them as a notebook does: what the last line of a cell gives is shown."""

from __future__ import annotations

import ast
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Cell:
    """A cell of code: its source, and its place in the notebook for tracebacks."""

    source: str
    place: str

    def run(self, names: dict[str, Any]) -> Any:
        """Executes the cell with `names` as its globals, and gives the value of its last line, None where that is
        no expression.
        """
        tree = ast.parse(self.source, self.place)
        last = tree.body[-1]
        if not isinstance(last, ast.Expr):
            exec(compile(tree, self.place, "exec"), names)
            return None
        exec(compile(ast.Module(tree.body[:-1], []), self.place, "exec"), names)
        return eval(compile(ast.Expression(last.value), self.place, "eval"), names)


def cells(notebook: Path) -> list[Cell]:
    """The cells of code, in order. Raises ValueError for a format other than 4."""
    text = json.loads(notebook.read_text())
    if text["nbformat"] != 4:
        raise ValueError(f"{notebook}: format {text['nbformat']}, not 4")
    return [
        Cell("".join(cell["source"]), f"{notebook.name}[{number}]")
        for number, cell in enumerate(text["cells"])
        if cell["cell_type"] == "code"
    ]


def shown(value: object) -> str:
    """What a notebook shows of a value: its HTML, else its text."""
    rich = getattr(value, "_repr_html_", None)
    found = rich() if rich is not None else None
    return found if isinstance(found, str) else repr(value)
