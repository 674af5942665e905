"""A name says one thing: no two files define a class of the same name, unless they are listed."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Mapping, Set
from pathlib import Path

from tests.imports import SOURCE

SHARED: Mapping[str, Set[str]] = {
    "Layout": {"integrations/torch/partitions/layouts.py", "lazy/layouts.py"},
    "Schedule": {"profiling/session/steps.py", "scheduling/language/schedule.py"},
    "Subject": {"compiler/bind/subjects.py", "profiling/counters/interfaces.py"},
    "Tensor": {"handle.py", "scheduling/binding/arrays.py"},
    "Timing": {"compiler/device/timing.py", "tuning/measure/trial.py"},
}
"""Names with two meanings, and the files that define them."""


def classes_of_same_name(source: Path) -> Mapping[str, Set[str]]:
    """The files below a package that define a class, for each public name that several define."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for path in sorted(source.rglob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].add(path.relative_to(source).as_posix())
    return {name: files for name, files in found.items() if len(files) > 1}


def test_no_name_has_two_meanings() -> None:
    assert classes_of_same_name(SOURCE / "tessera") == SHARED


def test_a_name_that_two_files_define_is_found(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / f"{name}.py").write_text("class Same: ...\nclass _Private: ...\n")
    assert classes_of_same_name(tmp_path) == {"Same": {"one.py", "other.py"}}
