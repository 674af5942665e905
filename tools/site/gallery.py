"""The gallery: a page for each program of `examples/`, with what it says of itself, its picture, what it printed and
its source.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
KEPT: Final = ROOT / "docs" / "gallery"
"""Pictures and what programs printed, as `python -m tools.site.recording` keeps them."""

ELSEWHERE: Final = {"gpt2": "../images/viewer-overview.png"}
"""Pictures that other pages have."""
SHORT: Final = 8
"""Lines that the first page shows of what a program printed."""

INDEX: Final = """# Gallery

Whole programs. Each is a file of `examples/` that the tests run, on sizes that take no time, and compare with torch.
What they print was printed in one run of each, on a machine that other programs used too: times are better measured
by [the benchmarks](../benchmarks.md).

{entries}

```{{toctree}}
:hidden:

{pages}
```
"""


def programs() -> list[Path]:
    """The programs, in order of their names."""
    return sorted((ROOT / "examples").glob("*.py"))


def pages() -> Mapping[str, str]:
    """The pages by name: one for each program, and the index."""
    made = {f"{path.stem}.md": _page(path) for path in programs()}
    entries = "\n\n".join(_entry(path) for path in programs())
    made["index.md"] = INDEX.format(entries=entries, pages="\n".join(path.stem for path in programs()))
    return made


def about(path: Path) -> list[str]:
    """The paragraphs of a program's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")


def command(path: Path) -> str:
    """How a program is run, as its docstring says first."""
    spoken = re.compile(rf"(?:python|tessera run|torchrun) [^`\n]*examples[./]{path.stem}\b[^`\n]*")
    found: list[str] = spoken.findall("\n\n".join(about(path)))
    return found[0].partition("   #")[0].strip()


def _picture(path: Path) -> str:
    if path.stem in ELSEWHERE:
        return f"![{path.stem}]({ELSEWHERE[path.stem]})"
    name = f"{path.stem}.png"
    return f"![{path.stem}]({name})" if (KEPT / name).exists() else ""


def _printed(path: Path, lines: int | None = None) -> str:
    """What the program printed, cut after some lines."""
    kept = KEPT / f"{path.stem}.txt"
    if not kept.exists():
        return ""
    printed = kept.read_text().splitlines()
    shown = [*printed[:lines], "..."] if lines and len(printed) > lines else printed
    return "\n".join(["```text", *shown, "```"])


def _entry(path: Path) -> str:
    summary = about(path)[0].replace("\n", " ")
    parts = [f"## [{path.stem}]({path.stem}.md)", summary, _picture(path), _printed(path, SHORT)]
    return "\n\n".join(filter(None, parts))


def _page(path: Path) -> str:
    source = path.read_text()
    paragraphs = [paragraph.replace("``", "`") for paragraph in about(path)]
    # A paragraph of a command alone is code.
    text = [
        f"```bash\n{each.strip()}\n```" if each.startswith(("    ", "tessera run")) else each for each in paragraphs
    ]
    listing = f"```python\n{source}```"
    printed = _printed(path)
    shown = filter(None, [_picture(path), printed and "## What it prints", printed])
    return "\n\n".join([f"# {path.stem}", *text, *shown, "## The program", listing]) + "\n"
