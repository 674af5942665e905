"""Folders say by their names what lies in them: none is too full to look through, and `tests/unit` has those of src."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.imports import SOURCE

PACKAGE = SOURCE / "tessera"
UNIT = Path(__file__).parent / "unit"
LIMIT = 15

FULLER: Mapping[str, int] = {".": 21}
"""Folders that may hold more modules, and how many. The package's own has the doors, each of which users import."""

NOT_MIRRORED = {"bench": "the tests of bench/, which is no part of the package"}
DATA = {"goldens", "kernels", "toys"}
"""Folders beside tests that hold what these read."""


def _folders(root: Path) -> Iterator[Path]:
    """All folders at and below a folder that hold modules, relative to it."""
    yield from sorted({path.parent.relative_to(root) for path in root.rglob("*.py")})


def fuller(package: Path) -> dict[str, int]:
    """The folders of a package with more modules than they may have, beside `__init__`, and how many they have."""
    counts = {
        folder.as_posix(): sum(path.name != "__init__.py" for path in (package / folder).glob("*.py"))
        for folder in _folders(package)
    }
    return {folder: count for folder, count in counts.items() if count > FULLER.get(folder, LIMIT)}


def unmirrored(unit: Path, package: Path) -> list[str]:
    """The folders of tests that are neither a folder nor a module of the package."""
    return [
        folder.as_posix()
        for folder in _folders(unit)
        if folder.as_posix() not in NOT_MIRRORED
        and not DATA & set(folder.parts)
        and not (package / folder).is_dir()
        and not (package / folder).with_suffix(".py").is_file()
    ]


def test_no_folder_is_too_full() -> None:
    assert fuller(PACKAGE) == {}


def test_tests_lie_where_what_they_test_does() -> None:
    assert unmirrored(UNIT, PACKAGE) == []


def test_nothing_is_excepted_that_is_not_there() -> None:
    assert [folder for folder, most in FULLER.items() if len([*(PACKAGE / folder).glob("*.py")]) - 1 != most] == []
    assert [folder for folder in NOT_MIRRORED if not (UNIT / folder).is_dir() or (PACKAGE / folder).exists()] == []
    assert {path.name for path in UNIT.rglob("*") if path.name in DATA and path.is_dir()} == DATA


def test_a_folder_that_is_too_full_or_elsewhere_is_found(tmp_path: Path) -> None:
    for folder, count in (("lazy", LIMIT), ("runtime/plans", LIMIT + 1)):
        (tmp_path / "tessera" / folder).mkdir(parents=True)
        for number in range(count):
            (tmp_path / "tessera" / folder / f"m{number}.py").touch()
        (tmp_path / "tessera" / folder / "__init__.py").touch()
    for folder in ("lazy", "lazy/toys", "lazy/m1", "plans", "bench", "runtime/queues"):
        (tmp_path / "unit" / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "unit" / folder / "test_it.py").touch()

    assert fuller(tmp_path / "tessera") == {"runtime/plans": LIMIT + 1}
    assert unmirrored(tmp_path / "unit", tmp_path / "tessera") == ["plans", "runtime/queues"]
