"""The site's pages in one folder: those of `docs/`, those of the repository's root, and those that are made."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from tools.site import gallery, operators, tables

ROOT: Final = Path(__file__).resolve().parents[2]

ROOT_PAGES: Final[Mapping[str, str]] = {
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}
"""Pages of the root, and what they are called in the site."""

MADE: Final[Mapping[str, Callable[[], Mapping[str, str]]]] = {
    "reference/operators": operators.pages,
    "reference": tables.pages,
    "gallery": gallery.pages,
}
"""Folders of the site, and what makes their pages: text by name."""

_LINK: Final = re.compile(r"(\[[^\]\n]*\]\()([^)\s:#]+)((?:#[^)\s]*)?\))")


def assemble(folder: Path) -> None:
    """Writes all pages, and what they show, into a folder that is not there yet."""
    shutil.copytree(ROOT / "docs", folder)
    for name, called in ROOT_PAGES.items():
        (folder / called).write_text(_from_root((ROOT / name).read_text()))
    for page in sorted(folder.rglob("*.md")):
        page.write_text(_inside(page, folder))
    for place, pages in MADE.items():
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name, text in pages().items():
            (folder / place / name).write_text(text)


def _from_root(text: str) -> str:
    """A page of the root as one of the folder of pages."""
    return _LINK.sub(lambda link: link[1] + link[2].removeprefix("docs/") + link[3], text)


def _inside(page: Path, folder: Path) -> str:
    """A page whose links lead to pages of the site; what leads into the sources is said by its path alone."""

    def inside(link: re.Match[str]) -> str:
        if (page.parent / link[2]).exists():
            return link[0]
        meant = (ROOT / "docs" / page.relative_to(folder).parent / link[2]).resolve()
        if not meant.exists() or not meant.is_relative_to(ROOT):
            return link[0]  # Sphinx says that it leads nowhere
        name = str(meant.relative_to(ROOT))
        if name in ROOT_PAGES:
            up = "../" * (len(page.relative_to(folder).parts) - 1)
            return link[1] + up + ROOT_PAGES[name] + link[3]
        return f"{link[1][1:-2]} (`{name}`)"

    return _LINK.sub(inside, page.read_text())
