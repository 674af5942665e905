"""`python -m tests.baseline record FOLDER [--revision REV]` and `compare BEFORE AFTER`: see the package."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
DEVICES = ("avx2", "avx512", "avx512bf16", "amx", "sm90", "gfx942")
LINES = 60
"""Lines of a difference that are printed."""


def record(folder: Path, sources: Path, devices: tuple[str, ...], *how: str) -> None:
    """Has the checkout in `sources` write down what it makes for each device, in processes of their own."""
    for device in devices:
        (folder / device).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="tessera-baseline-") as cache:
            environment = {**os.environ, "TESSERA_CACHE_DIR": cache, "TESSERA_TUNE_SHIPPED": "0"}
            environment["TESSERA_CORE_FACTS"] = "0"
            environment["PYTHONPATH"] = os.pathsep.join((str(sources / "src"), str(sources)))
            command = [sys.executable, "-m", "tests.baseline.recording", device, str((folder / device).resolve()), *how]
            subprocess.run(command, cwd=sources, env=environment, check=True)
        made = _made(folder / device)
        print(f"{device}: {sum(map(len, made.values()))} kernels of {len(made)} cases", flush=True)


def record_revision(folder: Path, revision: str, devices: tuple[str, ...]) -> None:
    """`record` for another revision, which must have this package: its own says how its kernels are made."""
    with tempfile.TemporaryDirectory(prefix="tessera-revision-") as checkout:
        subprocess.run(["git", "worktree", "add", "--detach", checkout, revision], cwd=ROOT, check=True)
        try:
            record(folder, Path(checkout), devices)
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", checkout], cwd=ROOT, check=True)


def compare(before: Path, after: Path) -> int:
    """Prints the cases whose kernels differ, with the difference of their Tile IR. Gives how many there are."""
    differing = 0
    for device in sorted({each.name for folder in (before, after) for each in folder.iterdir()}):
        old, new = _made(before / device), _made(after / device)
        for case in [*old, *(new.keys() - old.keys())]:
            if old.get(case) == new.get(case):
                continue
            differing += 1
            print(f"{device}, {case}: {_told(old.get(case), new.get(case))}")
            for (first, _), (second, _) in zip(old.get(case, ()), new.get(case, ()), strict=False):
                _print_difference(before / device / f"{first}.mlir", after / device / f"{second}.mlir")
        print(f"{device}: {len(old)} cases before, {len(new)} after")
    print(f"{differing} cases differ")
    return differing


def _made(folder: Path) -> dict[str, list[list[str]]]:
    made: dict[str, list[list[str]]] = json.loads((folder / "made.json").read_text())
    return made


def _told(old: list[list[str]] | None, new: list[list[str]] | None) -> str:
    if old is None or new is None:
        return "only before" if new is None else "only after"
    if len(old) != len(new):
        return f"{len(old)} kernels before, {len(new)} after"
    same = [first[1] == second[1] for first, second in zip(old, new, strict=True)]
    return "Tile IR differs, the code does not" if all(same) else f"the code of {same.count(False)} kernels differs"


def _print_difference(before: Path, after: Path) -> None:
    if before.name == after.name:
        return
    texts = before.read_text().splitlines(), after.read_text().splitlines()
    for line in list(difflib.unified_diff(*texts, str(before), str(after), lineterm="", n=1))[:LINES]:
        print(f"    {line}")


def main() -> int:
    """Gives 1 where kernels differ."""
    parser = argparse.ArgumentParser(prog="python -m tests.baseline", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="writes down what kernels are made")
    recording.add_argument("folder", type=Path)
    recording.add_argument("--revision", help="of this revision instead of this checkout")
    recording.add_argument("--text", action="store_true", help="lower what Schedule IR says of each kernel as text")
    recording.add_argument("--device", action="append", choices=DEVICES, help="for this device alone")
    comparing = commands.add_parser("compare", help="prints which kernels differ")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    options = parser.parse_args()
    if options.command == "compare":
        return int(compare(options.before, options.after) > 0)
    devices = tuple(options.device or DEVICES)
    if options.revision:
        record_revision(options.folder, options.revision, devices)
    else:
        record(options.folder, ROOT, devices, *(["text"] if options.text else []))
    return 0


if __name__ == "__main__":
    sys.exit(main())
