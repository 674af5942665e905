"""The gallery shows each program of `examples/`, how it is run, and what it prints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site.gallery import KEPT, command, pages, programs


@pytest.mark.parametrize("path", programs(), ids=lambda path: path.stem)
def test_a_program_says_how_it_is_run(path: Path) -> None:
    # A script finds what lies beside it, not the package that both are in.
    assert ("-m examples." in command(path)) == ("from examples" in path.read_text())


def test_every_program_is_shown_with_what_is_kept_of_it() -> None:
    made = pages()
    assert {path.stem for path in KEPT.iterdir()} <= {path.stem for path in programs()}
    for path in programs():
        page = made[f"{path.stem}.md"]
        assert path.read_text() in page
        assert f"({path.stem}.md)" in made["index.md"]
        if (KEPT / f"{path.stem}.txt").exists():
            assert f"\n$ {command(path)}\n" in page, f"python -m tools.site.recording {path.stem}"
