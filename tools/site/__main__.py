"""`python -m tools.site [FOLDER]`: builds the site, checks its links, and says where it lies."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from sphinx.cmd import build as sphinx

from tools.site import links, sources


def build(site: Path) -> list[str]:
    """Builds the site into a folder, whose contents are replaced; gives what is wrong with it: nothing, if all is well.

    What Sphinx finds wrong it prints, with page and line.
    """
    if site.exists():
        shutil.rmtree(site)
    with tempfile.TemporaryDirectory() as place:
        pages = Path(place) / "pages"
        sources.assemble(pages)
        options = ["-q", "-W", "--keep-going", "-c", str(Path(__file__).parent), "-d", f"{place}/doctrees"]
        status = sphinx.build_main(["-b", "html", *options, str(pages), str(site)])
    if status:
        return ["Sphinx has warnings"]
    return list(links.broken(site))


def main(arguments: list[str]) -> int:
    """Builds into the folder that is named, build/site by default."""
    site = Path(arguments[0]) if arguments else sources.ROOT / "build" / "site"
    wrong = build(site)
    for each in wrong:
        print(each, file=sys.stderr)
    if not wrong:
        print(f"{site}/index.html")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
