"""Torch's default device is the user's: what Tessera makes for itself lies where it says."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import torch

from tessera import op
from tessera.compiler import pipeline
from tessera.tuning.measure.workload import OperandSpec, materialize
from tests.imports import SOURCE

MAKERS = {
    *("arange", "as_tensor", "empty", "empty_strided", "eye", "full", "linspace", "ones", "rand", "randint", "randn"),
    *("randperm", "scalar_tensor", "tensor", "zeros"),
}
OF_USERS = {
    *("doors/array_api/creation.py", "doors/flow/bodies.py", "lazy/leaves/sources.py", "sharding/tensors/making.py"),
}
"""Where lists and numbers of users become tensors, which torch puts on the default device."""


def _silent(path: Path) -> Iterator[int]:
    """Lines that have torch make a tensor, and do not say where."""
    for node in ast.walk(ast.parse(path.read_text())):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in MAKERS):
            continue
        made = isinstance(node.func.value, ast.Name) and node.func.value.id == "torch"
        if made and all(keyword.arg not in ("device", None) for keyword in node.keywords):
            yield node.lineno


def test_tensors_are_made_on_a_device_that_is_named() -> None:
    found = []
    for path in sorted((SOURCE / "tessera").rglob("*.py")):
        name = path.relative_to(SOURCE / "tessera").as_posix()
        # References run where the oracle has them run, and the interpreter of Tile IR is the tests' own.
        if not name.startswith(("ops/", "ir/interpreter/")) and name not in OF_USERS:
            found += [f"{name}:{line}" for line in _silent(path)]
    assert found == []


def test_results_are_right_whatever_the_default_device_is() -> None:
    x, w = torch.randn(33, 17), torch.randn(17, 9)
    pipeline.forget_plans()
    with torch.device("meta"):
        found = op.softmax(op.matmul(x[1:], w) * 2.0 + op.sum(x, axis=1)[1:, None]).torch()
        values = materialize(OperandSpec((5, 3), (3, 1), "fp32", seed=1)).tensor
    torch.testing.assert_close(found, torch.softmax(x[1:] @ w * 2.0 + x.sum(1)[1:, None], -1))
    assert values.device.type == "cpu"
    assert values.isfinite().all()
