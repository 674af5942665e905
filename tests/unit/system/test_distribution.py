"""The name of the distribution, and that what hints tell people to install is what these sources are."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import tessera
from tessera.system import distribution

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
_OLD_NAME = re.compile(r"(?<![-\w])tessera\[|pip install (?:--?\w+ )*'?tessera\b(?!-compiler)")


def test_the_package_has_one_name_and_one_version() -> None:
    assert PROJECT["name"] == distribution.NAME == "tessera-compiler"
    assert tessera.__version__ == distribution.VERSION
    assert PROJECT["dynamic"] == ["version"]


def test_a_checkout_is_installed_from_its_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)
    assert distribution.checkout() == ROOT
    assert distribution.installing("triton") == "python -m pip install -e '.[triton]'"
    assert distribution.installing() == "python -m pip install -e '.'"
    monkeypatch.chdir(tmp_path)
    assert distribution.installing("triton") == f"python -m pip install -e '{ROOT}[triton]'"


def test_a_wheel_is_installed_by_the_distributions_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(distribution, "checkout", lambda: None)
    assert distribution.installing("otlp") == "python -m pip install 'tessera-compiler[otlp]'"
    assert distribution.installing() == "python -m pip install 'tessera-compiler'"


def test_every_extra_that_is_hinted_at_is_one() -> None:
    texts = [path.read_text() for path in (ROOT / "src").rglob("*.py")]
    hinted = {extra for text in texts for extra in re.findall(r'installing\("(\w+)"\)', text)}
    assert {"nvidia", "optuna", "otlp", "triton"} <= hinted <= set(PROJECT["optional-dependencies"])


def test_nobody_is_told_to_install_another_projects_package() -> None:
    found = [path for folder in ("src", "docs", "bench", "examples") for path in (ROOT / folder).rglob("*.py")]
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    assert [path for path in [*found, *pages] if _OLD_NAME.search(path.read_text())] == []
