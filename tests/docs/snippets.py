"""The fenced Python snippets of a page of documentation, and running them."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SPEC = Path(__file__).resolve().parent / "spec"

_OPENING = "```python"
_CLOSING = "```"


@dataclass(frozen=True)
class Snippet:
    """One fenced block: its code, and where it begins, so that a traceback points into the page."""

    code: str
    page: Path
    line: int

    def run(self, names: dict[str, Any]) -> None:
        """Executes the code with `names` as its globals."""
        source = "\n" * (self.line - 1) + self.code
        exec(compile(source, str(self.page), "exec"), names)


def snippets(page: Path) -> list[Snippet]:
    """The Python snippets of a page, in order, without common indentation. Raises ValueError for a fence left open."""
    found = []
    block: list[str] | None = None
    begin = 0
    for number, line in enumerate(page.read_text().splitlines(), start=1):
        if block is None and line.strip() == _OPENING:
            block, begin = [], number + 1
        elif block is not None and line.strip() == _CLOSING:
            found.append(Snippet(textwrap.dedent("\n".join(block)) + "\n", page, begin))
            block = None
        elif block is not None:
            block.append(line)
    if block is not None:
        raise ValueError(f"{page}:{begin}: the fence is not closed")
    return found


def run_all(found: Sequence[Snippet], given: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Runs snippets in order in one namespace that begins with `given`, and gives the namespace back."""
    names: dict[str, Any] = {"__name__": "__main__", **(given or {})}
    for snippet in found:
        snippet.run(names)
    return names
