"""A wheel built from the sources, installed elsewhere, works there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.whole import some

ROOT = Path(__file__).parent.parent
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")

SMOKE = """
import pathlib, sys
import numpy, torch
import tessera
from tessera import op
from tessera.system import distribution
from importlib import metadata
from tessera.sharding.published import tables
from tessera.viewer import assets

a, b = torch.randn(5, 7), torch.randn(7, 3)
difference = op.matmul(a, b).torch() - a @ b
assert difference.abs().max() < 1e-5, difference
assert metadata.version("tessera-compiler") == tessera.__version__ == sys.argv[1]
assert len(tables.all_reduces()) == 4
assert {"index.html", "app.css", "main.js"} <= assets.files().keys()
(backend,) = metadata.entry_points(group="torch_dynamo_backends", name="tessera")
assert callable(backend.load())
assert distribution.installing("triton") == "python -m pip install 'tessera-compiler[triton]'"
print(pathlib.Path(tessera.__file__).parent)
"""


FROM_ARCHIVE = """
import importlib.metadata, pathlib, sys
import torch

def version(name):
    # An archive of the sources alone has no metadata.
    raise importlib.metadata.PackageNotFoundError(name)

importlib.metadata.version = version if sys.argv[1] == "without" else importlib.metadata.version
import tessera
from tessera import op
from tessera.backend.llvm.machine_code import objects
from tessera.compiler.process import revision
from tessera.tuning.model.learned import _shipped
from tessera.viewer import assets

a, b = torch.randn(5, 7), torch.randn(7, 3)
assert torch.allclose(op.matmul(a, b).torch(), a @ b, atol=1e-5)
assert tessera.__version__ == "0.1.0"
assert _shipped().residuals
assert "modules['main.js']" in assets.bundle()
assert "e3b0c44298fc" not in (revision.generator_revision(), objects.generator_revision()[:12])  # SHA-256 of nothing
print(pathlib.Path(tessera.__file__).parent)
"""


def run(*command: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT.anchor, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # A copy, so that the build leaves nothing in the sources and takes nothing that an earlier build left there.
    sources = folder / "sources"
    shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE"):
        shutil.copy(ROOT / name, sources)
    run(*PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(sources))
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    about = "tessera_compiler-0.1.0.dist-info"
    assert {name.split("/")[0] for name in names} == {"tessera", about}
    assert {"tessera/__init__.py", "tessera/py.typed", f"{about}/licenses/LICENSE"} <= set(names)
    packaged = {name for name in names if name.endswith(".py")}
    assert packaged == {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "tessera").rglob("*.py")}


@pytest.mark.parametrize("metadata", some(["without", "with"]))
def test_the_wheel_computes_as_the_archive_that_it_is(wheel: Path, tmp_path: Path, metadata: str) -> None:
    environment = {"PYTHONPATH": str(wheel), "PATH": os.environ["PATH"], "TESSERA_CACHE_DIR": str(tmp_path)}
    done = run(sys.executable, "-c", FROM_ARCHIVE, metadata, environment=environment)
    assert done.strip() == str(wheel / "tessera")


def test_the_installed_wheel_computes(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    run(*PIP, "install", "--no-deps", "--target", str(site), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(site), "HOME": str(tmp_path)}

    place = run(sys.executable, "-c", SMOKE, "0.1.0", environment=environment)
    assert Path(place.strip()) == site / "tessera"

    version = run(str(site / "bin" / "tessera"), "--version", environment=environment)
    assert version.strip() == "tessera 0.1.0"
