"""What the package is called where it is installed from, which version it is, and how to install more of it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

NAME: Final = "tessera-compiler"
"""What pip installs; `tessera` is what Python imports. Another project's package is called `tessera`."""

VERSION: Final = "0.1.0"

_ROOT: Final = Path(__file__).absolute().parents[3]


def checkout() -> Path | None:
    """The folder of the sources that run, if they are those of a checkout; None where a wheel was installed."""
    package = Path(__file__).absolute().parents[1]
    return _ROOT if package == _ROOT / "src" / "tessera" and (_ROOT / "pyproject.toml").is_file() else None


def installing(extra: str = "") -> str:
    """The command that installs Tessera with what an extra ("triton", "nvidia") names: of the checkout whose sources
    run, else of the distribution.
    """
    root, wanted = checkout(), f"[{extra}]" if extra else ""
    if root is None:
        return f"python -m pip install '{NAME}{wanted}'"
    return f"python -m pip install -e '{'.' if _is_here(root) else root}{wanted}'"


def _is_here(folder: Path) -> bool:
    try:
        return folder.samefile(Path.cwd())
    except OSError:  # the working directory may have been removed
        return False
