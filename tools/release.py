"""Builds the sdist, and of that the wheel, into dist/; then tries the wheel in an environment of its own, without what
developers have: `make release`, or `python -m tools.release [--python PYTHON] [--quickstart]`.

The environment gets the versions of constraints.txt. Under the same Python as this one it borrows torch, and what torch
needs, from here by links, since that is what takes minutes to install.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
DIST: Final = ROOT / "dist"

BUILD_SDIST: Final = "import sys; from setuptools.build_meta import build_sdist; print(build_sdist(sys.argv[1]))"

TRIAL: Final = """
import importlib.util, pathlib, sys
import torch
import tessera
from tessera import autotune, op, profile

assert importlib.util.find_spec("pytest") is None, "this environment has what developers have"
assert "site-packages" in tessera.__file__, tessera.__file__
x, w, b = torch.randn(64, 96), torch.randn(96, 32), torch.randn(32)
with profile.session(exporters=[profile.chrome("trace.json")]) as session:
    y = op.gelu(op.matmul(x, w) + b)
    torch.testing.assert_close(y.torch(), torch.nn.functional.gelu(x @ w + b), atol=1e-4, rtol=1e-4)
session.report()
print(autotune(op.matmul, shapes=(64, 64, 64), method="on_device", max_trials=2))
assert pathlib.Path("trace.json").stat().st_size > 0
print("tessera", tessera.__version__, "works on Python", sys.version.split()[0])
"""


def build(folder: Path) -> Path:
    """Builds sdist and wheel into a folder; the wheel's path. What an earlier build left there goes."""
    for old in folder.glob("tessera_compiler-*"):
        old.unlink()
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        # A copy, so that the build takes nothing that an earlier one left in the sources.
        sources = Path(place) / "sources"
        shutil.copytree(ROOT / "src", sources / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        for name in ("pyproject.toml", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md"):
            shutil.copy(ROOT / name, sources)
        sdist = _run(sys.executable, "-c", BUILD_SDIST, str(folder), cwd=sources).splitlines()[-1]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    _run(*pip, "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(folder / sdist))
    (wheel,) = folder.glob("tessera_compiler-*.whl")
    return wheel


def environment(folder: Path, wheel: Path, python: str) -> Path:
    """Makes an environment with the wheel and what it needs, no more; the path of its `bin`."""
    _run(python, "-m", "venv", str(folder))
    own = folder / "bin" / "python"
    version = _run(str(own), "-c", "import sys; print(*sys.version_info[:2])").split()
    if version == [str(part) for part in sys.version_info[:2]]:
        site = Path(_run(str(own), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        _borrow("torch", site)
    pip = [str(own), "-m", "pip", "--disable-pip-version-check", "--quiet", "install"]
    _run(*pip, "--constraint", str(ROOT / "constraints.txt"), "torch==" + metadata.version("torch").split("+")[0])
    _run(*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel))
    return folder / "bin"


def _borrow(name: str, site: Path) -> None:
    """Links a distribution, and those that it requires, into the site-packages of an environment."""
    for each in set(_required(name, set())):
        for file in metadata.distribution(each).files or ():
            top = Path(str(file)).parts[0]
            source = Path(str(metadata.distribution(each).locate_file(top)))
            if top not in ("..", "__pycache__") and source.exists() and not (site / top).exists():
                (site / top).symlink_to(source)


def _required(name: str, seen: set[str]) -> Iterator[str]:
    """A distribution and those that it requires, as far as they are installed."""
    if name in seen:
        return
    seen.add(name)
    try:
        requirements = metadata.requires(name) or []
    except metadata.PackageNotFoundError:
        return
    yield name
    for requirement in requirements:
        if "extra ==" not in requirement:
            yield from _required(re.split(r"[^\w.-]", requirement, maxsplit=1)[0], seen)


def _run(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, check=False, cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def main() -> None:
    """Builds, installs and tries; says what there is at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--python", default=sys.executable, help="the Python of the environment")
    parser.add_argument("--quickstart", action="store_true", help="run `tessera quickstart` there, too")
    options = parser.parse_args()
    wheel = build(DIST)
    print(f"built {wheel.relative_to(ROOT)} and its sdist")
    with tempfile.TemporaryDirectory() as place:
        binaries = environment(Path(place) / "environment", wheel, options.python)
        print(_run(str(binaries / "python"), "-c", TRIAL, cwd=Path(place)))
        print(_run(str(binaries / "tessera"), "--version").strip())
        if options.quickstart:
            print(_run(str(binaries / "tessera"), "quickstart", "--budget", "1", cwd=Path(place)))


if __name__ == "__main__":
    main()
