"""The gallery: a page for each program of `examples/`, with what it says of itself, its picture and its source."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PICTURES: Final = ROOT / "docs" / "images" / "gallery"

ELSEWHERE: Final = {"gpt2": "../images/viewer-overview.png"}
"""Pictures that other pages have."""

INDEX: Final = """# Gallery

Whole programs. Each is a file of `examples/` that the tests run, on sizes that take no time, and compare with torch.

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


def copy_pictures(folder: Path) -> None:
    """Puts the pictures beside the pages."""
    for picture in sorted(PICTURES.glob("*.png")):
        shutil.copy(picture, folder)


def about(path: Path) -> list[str]:
    """The paragraphs of a program's docstring."""
    return (ast.get_docstring(ast.parse(path.read_text())) or "").split("\n\n")


def _picture(path: Path) -> str:
    if path.stem in ELSEWHERE:
        return f"![{path.stem}]({ELSEWHERE[path.stem]})"
    name = f"{path.stem}.png"
    return f"![{path.stem}]({name})" if (PICTURES / name).exists() else ""


def _entry(path: Path) -> str:
    summary = about(path)[0].replace("\n", " ")
    return "\n\n".join(filter(None, [f"## [{path.stem}]({path.stem}.md)", summary, _picture(path)]))


def _page(path: Path) -> str:
    source = path.read_text()
    paragraphs = [paragraph.replace("``", "`") for paragraph in about(path)]
    # A paragraph of a command alone is code.
    text = [
        f"```bash\n{each.strip()}\n```" if each.startswith(("    ", "tessera run")) else each for each in paragraphs
    ]
    listing = f"```python\n{source}```"
    return "\n\n".join([f"# {path.stem}", *text, *filter(None, [_picture(path)]), "## The program", listing]) + "\n"
